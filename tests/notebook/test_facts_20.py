"""What chapter 20 says in its prose, held to the engines, the traces and the recorded run."""

import pytest
from edited_cells import counts

from sovereign_lab.devices import Device, open_device
from sovereign_lab.engine import Engine
from sovereign_lab.measure.decode import DecodeRun, Times
from sovereign_lab.models.model import load_model
from sovereign_lab.notebook import fewer_launches
from sovereign_lab.notebook.array_traffic import array_traffic
from sovereign_lab.notebook.gap import NODE_US
from sovereign_lab.notebook.seed import TINYLLAMA


@pytest.fixture(scope="module")
def engines() -> dict[str, Engine]:
    first = Engine(load_model("storyteller"), open_device("simt"), phase="10", context=64)
    return {"10": first} | {p: first.with_phase(p) for p in ("5", "9b", "11")}


def test_launches_by_phase(engines: dict[str, Engine]) -> None:
    config = engines["10"].model.config
    found = {p: fewer_launches.launches(e.decode_calls, config) for p, e in engines.items()}
    assert {p: (n.layer, n.rest) for p, n in found.items()} == {
        "5": (14, 5), "9b": (12, 5), "10": (10, 5), "11": (5, 4)
    }  # fmt: skip
    for phase, engine in engines.items():
        assert found[phase].of(config.layers) == len(engine.decode_calls)
    tinyllama = {p: n.of(TINYLLAMA.layers) for p, n in found.items()}
    assert tinyllama == {"5": 313, "9b": 269, "10": 225, "11": 114}
    assert tinyllama["9b"] - tinyllama["10"] == 44
    assert f"{tinyllama['10'] * NODE_US:.0f}" == "122"


def test_each_launch_stands_for_some_of_the_layer_before(engines: dict[str, Engine]) -> None:
    before, after = (fewer_launches.layer_ops(engines[p]) for p in ("10", "11"))
    assert before == [
        "rmsnorm", "gemv_tiles", "rope_kv", "attention", "gemv_tiles", "add",
        "rmsnorm", "ffn_tiles", "gemv_tiles", "add",
    ]  # fmt: skip
    assert sum(fewer_launches.SPANS[name] for name in after) == len(before)
    figure = fewer_launches.layer_picture(engines["10"], engines["11"])
    assert len(figure.layout.shapes) == len(before) + len(after)
    assert sum(call.op == "rmsnorm" for call in engines["10"].decode_calls) == 13  # 2 a layer and 1
    assert 2 * TINYLLAMA.layers + 1 == 45


def test_the_norm_s_factor_behind_the_product() -> None:
    difference, levels, of = fewer_launches.norm_behind()
    assert difference < 1e-12
    assert (levels, of) == (0, 2048)


def test_what_fusing_costs(simt: Device) -> None:
    traces = fewer_launches.traces()
    steps = fewer_launches.steps(traces)
    parts, fused = steps["x to q, k, v"]
    assert (parts.launches, fused.launches) == (3, 1)
    assert parts.w_sectors == fused.w_sectors
    assert (parts.other_sectors, fused.other_sectors) == (42_548, 82_560)
    assert (parts.distinct_bytes, fused.distinct_bytes) == (62_624, 25_760)
    assert (parts.distinct_bytes - fused.distinct_bytes) // 1000 == 36
    assert f"{(parts.distinct_bytes - fused.distinct_bytes) / 1e3:.0f}" == "37"
    weights = array_traffic(traces["x to q, k, v"]["fused"])["W"]
    assert f"{weights.distinct_bytes / 1e6:.0f}" == "3"
    assert traces["x to q, k, v"]["fused"].blocks == 160
    parts, fused = steps["O and the residual"]
    assert parts.other_sectors == fused.other_sectors
    assert fused.distinct_bytes < parts.distinct_bytes


def test_norms_that_every_block_reads_again() -> None:
    blocks, nbytes = fewer_launches.norms_read_again()
    assert blocks == 22 * (160 + 352) + 1000 == 12_264
    assert f"{nbytes / 1e6:.0f}" == "100"
    assert 6 < 614.6e6 / nbytes < 6.2  # a sixth of what a token's weights are


def test_the_card() -> None:
    card = counts("20")
    assert card["load requests"] == (1_056, 1_408)
    assert card["load sectors"] == (9_856, 11_264)
    assert card["barriers"] == (352, 704)
    assert card["shuffles"] == (8_448, 6_336)


def test_sentences_of_launches() -> None:
    run = DecodeRun(
        {"device": "NVIDIA H200", "date": "a day"}, "", "m", 32, 1, 1, {},
        tuple(Times(n, 128, (us,) * 5) for n, us in (("10", 522.0), ("11", 300.0), ("11 without a graph", 756.0))),
    )  # fmt: skip
    assert fewer_launches.a_launch_saved(run, ("10", 225), ("11", 114)) == (
        "phase 10 to 11, context 128: 222.0 us and 111 launches fewer, 2.00 us each"
    )
    assert fewer_launches.a_launch_from_python(run, "11", 114) == (
        "phase 11, context 128: 300.0 us as one graph, 756.0 us launched from Python, 4.00 us more for each of 114 "
        "launches"
    )
    assert fewer_launches.a_launch_saved(None, ("10", 225), ("11", 114)).endswith(
        "not recorded yet"
    )
    assert fewer_launches.a_launch_from_python(run, "12", 1).endswith("not recorded yet")
