"""What chapter 15 says in its prose, held to the trace, to the recorded run and to arithmetic."""

import pytest
from edited_cells import counts

from sovereign_lab.engine import PHASES
from sovereign_lab.notebook import tensor_roofs, tile_waste
from sovereign_lab.notebook.tile_waste import MMA_TILE, WMMA_TILE, Waste

pytestmark = pytest.mark.usefixtures("simt")


@pytest.fixture(scope="module")
def wmma() -> tile_waste.Counts:
    return tile_waste.counts(tile_waste.traced("wmma"))


def test_a_tile_wastes_by_shape() -> None:
    for rows, cols in tile_waste.SHAPES[:-1]:
        assert Waste(rows, cols, 1, WMMA_TILE).made == 16 * rows * cols
        assert Waste(rows, cols, 1, MMA_TILE).made == 8 * rows * cols
    odd = Waste(40, 96, 1, WMMA_TILE)
    assert odd.products == 3 * 6
    assert odd.made / odd.needed == pytest.approx(19.2)
    assert Waste(2048, 2048, 16, WMMA_TILE).share == 1


def test_counted_products_are_those_of_the_arithmetic(wmma: tile_waste.Counts) -> None:
    whole = Waste(tile_waste.ROWS, tile_waste.COLS, 1, WMMA_TILE)
    assert wmma.products == 2 * whole.products
    assert wmma.products * tile_waste.PRODUCT == whole.made


def test_counts_are_the_gpu_s_to_the_last_digit(wmma: tile_waste.Counts) -> None:
    counted = tensor_roofs.recorded_tensor_run().counters["gemv_q4_0:wmma"]
    assert counted[tile_waste.COUNTERS["load requests"]] == wmma.requests == 81_920
    assert counted[tile_waste.COUNTERS["sectors of them"]] == wmma.sectors == 1_212_416
    trips = tile_waste.ROWS // 16 * tile_waste.COLS // 32
    assert wmma.warp_barriers == 2 * trips
    assert wmma.requests == 10 * trips
    assert wmma.shuffles == 0


def test_float4_makes_more_requests_and_fewer_sectors(wmma: tile_waste.Counts) -> None:
    plain = tile_waste.counts(tile_waste.traced("float4"))
    assert (plain.requests, plain.sectors, plain.products) == (196_608, 999_424, 0)
    assert f"{wmma.sectors / plain.sectors - 1:.0%}" == "21%"
    assert (plain.shared_requests, wmma.shared_requests) == (0, 316_416)


def test_slower_at_every_shape_with_idle_tensor_cores() -> None:
    run = tensor_roofs.recorded_tensor_run()
    us = tile_waste.times(run)
    ratios = [us["wmma"][shape] / us["float4"][shape] for shape in us["wmma"]]
    assert (f"{min(ratios):.2f}", f"{max(ratios):.2f}") == ("1.75", "3.38")
    assert f"{us['float4']['2,048 x 2,048']:.1f} {us['wmma']['2,048 x 2,048']:.1f}" == "5.6 10.5"
    assert f"{tile_waste.busy(run, 'wmma'):.2f}" == "1.84"
    assert tile_waste.shared_wavefronts(run, "wmma") == 315_392
    assert tile_waste.shared_wavefronts(run, "float4") == 0


def test_the_model_got_slower() -> None:
    nine_a = tensor_roofs.decode_of(tensor_roofs.recorded_tensor_run(), "9a")
    assert f"{nine_a.speedup:.3f} {1 / nine_a.speedup:.2f} {nine_a.verdict}" == "0.725 1.38 revert"
    assert PHASES["9a"].verdict == "revert"
    assert (PHASES["9a"].base, dict(PHASES["9a"].change)) == ("8c", {"gemv_q4_0": "wmma"})


def test_recorded_speeds_are_those_of_the_milliseconds() -> None:
    run = tensor_roofs.recorded_tensor_run()
    rates = tile_waste.as_run(run, "9a").ladder()
    assert rates["9a"] / rates["8c"] == pytest.approx(
        tensor_roofs.decode_of(run, "9a").speedup, rel=0.005
    )


def test_half_each_loads_less_and_stores_the_same() -> None:
    card = counts("15")
    assert card["load requests"] == (1280, 768)
    assert card["load sectors"] == (18944, 12800)
    assert card["divergent branches"] == (146, 18)
    for same in ("shared-memory wavefronts", "products of Tensor Cores", "barriers"):
        assert card[same][0] == card[same][1]
    trips = 16 * 8  # storyteller's 256 rows by 8 blocks
    assert (card["load requests"][0] / trips, card["load requests"][1] / trips) == (10, 6)
