"""What chapter 16 says in its prose, held to the trace, the kernels' layout, the sanitizer and the recorded run."""

from pathlib import Path

import nbformat
import numpy as np
import pytest
from edited_cells import counts, kernel_source

from sovereign_lab.devices import Device
from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import trace
from sovereign_lab.measure.roofline import find_gpu, floor, token_bytes
from sovereign_lab.notebook import fragments, misaligned, tensor_roofs, tile_waste
from sovereign_lab.notebook.seed import TINYLLAMA


def test_every_nibble_under_the_bias_is_itself_and_1024() -> None:
    nibbles = np.arange(16)
    assert np.array_equal(fragments.under_bias(nibbles).astype(int), 1024 + nibbles)
    assert np.array_equal(
        (fragments.under_bias(nibbles) - np.float16(1032)).astype(int), nibbles - 8
    )


def test_no_product_with_a_scale_is_rounded_twice() -> None:
    products, differ = fragments.roundings_that_differ()
    assert (products, differ) == (16 * (65536 - 2 * 1024), 0)


PROBE = """
#include "mma.cuh"
#include "q4_0_halves.cuh"
extern "C" __global__ void probe(const block_q4_0* W, unsigned* out) {
  int lane = threadIdx.x, group = lane / 4, t = lane % 4;
  unsigned a[2][4];
  unpack_for_lane(W + group, t, a[0][0], a[0][2], a[1][0], a[1][2]);
  unpack_for_lane(W + group + 8, t, a[0][1], a[0][3], a[1][1], a[1][3]);
  for (int i = 0; i < 8; i++) out[lane * 8 + i] = a[i / 4][i % 4];
}
"""


def test_places_are_those_where_the_kernel_puts_the_weights(any_device: Device) -> None:
    rng = np.random.default_rng()
    blocks = rng.integers(0, 256, (16, 18), np.uint8)
    blocks[:, :2] = np.full(16, 1, np.float16).view(np.uint8).reshape(16, 2)
    out = any_device.array(np.zeros(256, np.uint32))
    any_device.launch(any_device.compile(PROBE), 1, 32, [any_device.array(blocks), out])
    held = any_device.to_host(out).view(np.float16).reshape(32, 2, 4, 2)
    for row in range(16):
        for weight in range(32):
            byte, nibble = fragments.byte_of(weight)
            expected = int(blocks[row, 2 + byte]) >> (4 if nibble == "high" else 0) & 15
            assert held[fragments.place_of(row, weight)] == expected - 8


def test_a_lane_holds_of_the_second_fragment_what_it_holds_of_the_first() -> None:
    for row in range(16):
        for weight in range(16):
            first, second = fragments.place_of(row, weight), fragments.place_of(row, weight + 16)
            assert first._replace(product=1) == second
            assert fragments.byte_of(weight)[0] == fragments.byte_of(weight + 16)[0]
    with pytest.raises(LabError, match="rows 0 to 15 of weights 0 to 31; got 16 and 0"):
        fragments.place_of(16, 0)


def test_a_lane_s_table_and_the_picture_agree() -> None:
    assert [row[2] for row in fragments.held_by(5).rows] == [
        str(w) for w in (2, 3, 10, 11, 18, 19, 26, 27)
    ]
    figure = fragments.lanes_picture(5)
    assert len(figure.layout.shapes) == 2 * 8
    assert sorted(figure.data[0].text.ravel()) == sorted(list(range(32)) * 8)


def test_counts_and_what_a_gpu_s_compiler_joins(simt: Device) -> None:
    mma = tile_waste.counts(tile_waste.traced("mma"))
    assert (mma.requests, mma.sectors) == (114_688, 507_904)
    assert (mma.shared_requests, mma.warp_barriers, mma.products) == (3_072, 0, 16_384)
    gemv, args = op("gemv_q4_0"), tile_waste.arguments()
    variant = gemv.variant("mma")
    edit = trace(kernel_source("16"), gemv.grid(variant, args), variant.threads, args, name="k.cu")
    joined = tile_waste.counts(edit)
    counted = tensor_roofs.recorded_tensor_run().counters["gemv_q4_0:mma"]
    assert counted[tile_waste.COUNTERS["load requests"]] == joined.requests == 81_920
    assert counted[tile_waste.COUNTERS["sectors of them"]] == joined.sectors == 475_136
    card = counts("16")
    assert card["load requests"] == (1792, 1280)
    assert card["load requests"][0] / (16 * 8) == 14


def _sources(repository: Path) -> dict[str, str]:
    """The careless kernels, as the chapter's cells make them."""
    cells = nbformat.read(repository / "notebooks/16_halves_on_the_fly.ipynb", as_version=4).cells
    made: dict[str, dict[str, str]] = {}
    for start in ("shifted = ", "narrow_step = "):
        cell = next(c.source for c in cells if c.source.startswith(start))
        kept = cell.partition("print(")[0].partition("reports = ")[0]
        exec(kept, made)
    return made["sources"]


def test_each_illegal_access_is_found_with_its_line(simt: Device, repository: Path) -> None:
    sources = _sources(repository)
    assert list(sources) == ["shifted", "narrow_step", "wide"]
    for name, line in zip(sources, (9, 9, 5), strict=True):
        (finding,) = misaligned.report(sources[name]).findings
        assert (finding.kind, finding.line) == ("misaligned", line)
    assert "load_matrix_sync at careless.cu:9: a matrix starts at" in misaligned.told(
        sources["shifted"]
    )
    right = sources["shifted"].replace("tile + 8, 16", "tile, 16")
    assert misaligned.told(right) == "nothing"
    assert misaligned.report(right).findings == ()


def test_recorded_times() -> None:
    run = tensor_roofs.recorded_tensor_run()
    us = tile_waste.times(run)
    to_wmma, to_float4 = (
        [us["mma"][s] / us[name][s] for s in us["mma"]] for name in ("wmma", "float4")
    )
    assert (f"{min(to_wmma):.2f}", f"{max(to_wmma):.2f}") == ("0.45", "0.57")
    assert [f"{r:.2f}" for r in sorted(to_float4)] == ["1.00", "1.06", "1.18", "1.52"]
    assert us["mma"]["2,048 x 5,632"] / us["float4"]["2,048 x 5,632"] == pytest.approx(1, abs=0.005)
    assert f"{us['mma']['2,048 x 2,048']:.1f}" == "5.9"
    counted = run.counters["gemv_q4_0:mma"]
    assert f"{tile_waste.busy(run, 'mma'):.2f}" == "1.45"
    assert counted["memory_l1_wavefronts_shared"] == 3_072
    assert counted["launch__registers_per_thread"] == 42
    assert counted["sm__maximum_warps_per_active_cycle_pct"] == 62.5


def test_the_model_and_the_hypothesis() -> None:
    run = tensor_roofs.recorded_tensor_run()
    nine_b = tensor_roofs.decode_of(run, "9b")
    assert f"{nine_b.speedup:.3f} {nine_b.low:.3f} {nine_b.high:.3f}" == "1.033 1.032 1.034"
    assert nine_b.verdict == PHASES["9b"].verdict == "keep"
    assert f"{np.median(nine_b.change_ms):.2f}" == "1.59"
    assert f"{250 / 151:.2f}" == "1.66"
    gpu = find_gpu(run.environment["device"])
    assert gpu is not None
    assert f"{floor(token_bytes(TINYLLAMA).at(0), gpu).ms:.2f}" == "0.19"
