"""What chapter 02 says is what the counts, the recorded runs and the seed's log say."""

import csv
from pathlib import Path

import pytest
from edited_cells import counts

from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.roofline import GPU, find_gpu, floor, token_bytes
from sovereign_lab.models import load_model
from sovereign_lab.notebook import threads
from sovereign_lab.notebook.attention_counts import count_head
from sovereign_lab.notebook.launches import count_launches, launch_table, reading_table
from sovereign_lab.notebook.op_times import forward_ms, op_times
from sovereign_lab.notebook.plots import TEXT
from sovereign_lab.notebook.runs import recorded_run
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA

RUN = recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b-contexts")
NAIVE = op("gemv_q4_0").variant("block_per_row")


def test_launches_are_14_a_layer_and_five(simt: Device) -> None:
    engine = Engine(load_model("storyteller"), simt, phase="0")
    layers = engine.model.config.layers
    assert len(engine.decode_calls) == 14 * layers + 5
    table = launch_table(engine.phase, engine.decode_calls, engine.model.config)
    assert {row[0]: row[4] for row in table.rows}["rmsnorm"] == "2 a layer + 1"
    assert table.rows[-1][-1] == str(len(engine.decode_calls))
    recorded = op_times(RUN, "0")
    assert sum(t.launches for t in recorded.values()) == 14 * TINYLLAMA.layers + 5 == 313
    assert list(count_launches(engine.decode_calls)) == list(recorded)


def test_floors_and_what_was_reached() -> None:
    token = token_bytes(TINYLLAMA)
    assert (token.layers, token.head, token.kv_per_position) == (544_997_376, 262_144_000, 22_528)
    assert round(token.at(0) / 1e6) == 807
    seed_floor, floor_here = (floor(token.at(16), gpu) for gpu in map(_gpu, (GPU_NAME, "H200")))
    assert (round(seed_floor.ms, 1), round(floor_here.ms, 2)) == (1.8, 0.19)
    assert 16.91 / seed_floor.ms == pytest.approx(9.4, abs=0.05)  # "nine to thirty times"
    assert forward_ms(RUN, "0") / floor_here.ms == pytest.approx(30.2, abs=0.05)
    assert floor_here.gpu.bandwidth / seed_floor.gpu.bandwidth == pytest.approx(9.5, abs=0.05)
    assert 16.91 / forward_ms(RUN, "0") == pytest.approx(3.0, abs=0.05)
    assert 16.91 / forward_ms(RUN, "0", 256) == pytest.approx(2.3, abs=0.05)
    assert forward_ms(RUN, "0", 256) == pytest.approx(7.35, abs=0.005)
    assert forward_ms(RUN, "0", 4000) / forward_ms(RUN, "0") == pytest.approx(5.8, abs=0.05)
    assert token.at(4000) / token.at(16) == pytest.approx(1.11, abs=0.005)


def _gpu(name: str) -> GPU:
    gpu = find_gpu(name)
    assert gpu is not None
    return gpu


def test_shares_of_the_ops_on_the_h200() -> None:
    times = op_times(RUN, "0")
    whole = sum(t.us for t in times.values())
    shares = {name: round(100 * t.us / whole) for name, t in times.items()}
    assert [shares[n] for n in ("gemv_q4_0", "logits", "rmsnorm", "attention")] == [87, 5, 3, 2]
    assert (round(whole / 1e3, 2), round(forward_ms(RUN, "0"), 2)) == (5.48, 5.71)
    assert 1 - whole / 1e3 / forward_ms(RUN, "0") == pytest.approx(0.04, abs=0.005)
    rows = {row[0]: row[3] for row in reading_table(times, token_bytes(TINYLLAMA)).rows}
    assert rows == {"gemv_q4_0": "114 GB/s", "logits": "890 GB/s"}
    assert 114 / _gpu("H200").bandwidth == pytest.approx(0.03, abs=0.005)


def test_seed_figures(repository: Path) -> None:
    rows = list(csv.DictReader((repository / "data/seed_results.csv").open()))
    first = next(r for r in rows if r["phase"] == "0")
    assert (first["tokens_per_second"], first["ms_per_forward"]) == ("53.67", "16.91")
    assert "5.590 s" in first["note"] and first["tokens"] == "300"
    ms_a_token = 5590 / int(first["tokens"])
    assert ms_a_token == pytest.approx(18.6, abs=0.05)
    assert ms_a_token - 16.91 == pytest.approx(1.7, abs=0.05)


def test_every_thread_passes_nine_barriers_and_the_sums_halve() -> None:
    assert set(threads.barriers_by_thread(NAIVE.source, NAIVE)) == {9}
    stores = threads.adders_by_step(threads.traced_gemv(NAIVE, 1, 64), NAIVE.threads)
    assert list(stores.sum(axis=1)) == [256, 128, 64, 32, 16, 8, 4, 2, 1]
    figure = threads.step_map(stores, "a title")
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert figure.layout.font.color == TEXT
    assert figure.data[0].y[1] == "step 1: 128 store"
    assert figure.to_json() == threads.step_map(stores, "a title").to_json()


def test_three_passes_have_three_barriers_and_a_chain_as_long_as_the_context() -> None:
    for length in (16, 64):
        head = count_head(op("attention").variant("three_pass"), length)
        assert (head.barriers, head.value_steps, head.key_steps) == (3, length, length // 4)


def test_a_norm_by_one_warp_meets_nobody() -> None:
    figures = counts("02")
    warps = 8
    assert figures.pop("barriers") == (warps, 0)
    assert figures.pop("shared-memory wavefronts") == (16, 0)
    assert figures.pop("shuffles") == (2 * 5 * warps, 5)
    assert figures.pop("divergent branches") == (16, 0)
    assert {"load requests", "load sectors"} < figures.keys()
    assert all(parent == mine for parent, mine in figures.values())


@pytest.mark.parametrize(("phase", "most"), [("0", 1.03), ("8b", 1.08)])
def test_most_that_the_norms_can_give(phase: str, most: float) -> None:
    whole, norms = 1e3 * forward_ms(RUN, phase), op_times(RUN, phase)["rmsnorm"].us
    assert whole / (whole - norms) == pytest.approx(most, abs=0.005)
    assert round(norms) == 164
    if phase == "8b":
        assert round(whole) == 2162
