"""What chapter 05 says is what the traces, the recorded runs and the seed's log say."""

import csv
from pathlib import Path

import numpy as np
import pytest
from edited_cells import a_row, kernel_source

from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook import gemv_times, threads
from sovereign_lab.notebook.op_times import forward_ms, op_table, op_times
from sovereign_lab.notebook.plots import TEXT
from sovereign_lab.notebook.runs import recorded_run
from sovereign_lab.notebook.seed import TINYLLAMA

GEMV = op("gemv_q4_0")
BEFORE, AFTER = GEMV.variant("block_per_row"), GEMV.variant("warp_per_row")


@pytest.mark.parametrize(
    ("blocks_per_row", "idle_before", "idle_after"),
    [(64, 0.75, 0), (176, 0.31, 0), (18, 0.93, 0.44), (8, 0.97, 0.75)],
)
def test_idle_threads_of_a_row(blocks_per_row: int, idle_before: float, idle_after: float) -> None:
    traced = threads.traced_gemv(BEFORE, 1, blocks_per_row)
    busy = np.count_nonzero(threads.loads_by_thread(traced, BEFORE.threads))
    assert busy == min(256, blocks_per_row)
    assert 1 - busy / 256 == pytest.approx(idle_before, abs=0.005)
    busy = np.count_nonzero(
        threads.loads_by_thread(threads.traced_gemv(AFTER, 1, blocks_per_row), AFTER.threads)
    )
    assert 1 - busy / 32 == pytest.approx(idle_after, abs=0.005)


def test_every_load_is_the_same_before_and_after() -> None:
    before, after = (threads.traced_gemv(v, 8, 64) for v in (BEFORE, AFTER))
    lines = [
        {r.text: (r.requests, r.sectors, r.lanes) for r in t.lines if (r.kind, r.space) == ("load", "global")}
        for t in (before, after)
    ]  # fmt: skip
    assert lines[0] == lines[1]
    assert len(lines[0]) == 3


def test_a_row_costs_nine_barriers_or_five_shuffles() -> None:
    traces = {v.name: threads.traced_gemv(v, 8, 64) for v in (BEFORE, AFTER)}
    table = threads.row_table(8, traces, {BEFORE.name: 256, AFTER.name: 32})
    rows = {what: (before, after) for what, before, after in table.rows}
    assert rows["barriers of the block"] == ("9", "0")
    assert rows["shuffles of the warp"] == ("0", "5")
    assert rows["requests to shared memory"] == ("45", "0")
    assert rows["sectors of these"] == ("2,660", "2,660")


def test_the_gemvs_explain_what_the_model_gained_on_the_h200() -> None:
    run = recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b-contexts")
    before, after = op_times(run, "0"), op_times(run, "3")
    assert sum(t.launches for t in before.values()) == 313
    gemvs = before["gemv_q4_0"].us, after["gemv_q4_0"].us
    assert [round(us / 1e3, 2) for us in gemvs] == [4.79, 4.42]
    assert gemvs[0] / gemvs[1] == pytest.approx(1.08, abs=0.005)
    assert 1 - gemvs[1] / gemvs[0] == pytest.approx(0.08, abs=0.005)
    saved = 1e3 * (forward_ms(run, "0") - forward_ms(run, "3"))
    assert gemvs[0] - gemvs[1] == pytest.approx(saved, rel=0.02)
    for name in before.keys() - {"gemv_q4_0"}:  # "did not move": less than 0.3 us
        assert after[name].us == pytest.approx(before[name].us, abs=0.3), name
    assert op_table(run, ("0", "3")).rows[-1][1:] == ["", "5,709.6 us", "", "5,340.1 us", "-369 us"]


def test_l1_is_what_the_kernel_after_keeps_busy_on_the_h200() -> None:
    counters = recorded_run("2026-11-30-sm_90-gemv_q4_0-counters")
    for row in gemv_times.counter_table(counters, ("warp_per_row",)).rows:
        requests, sectors = (int(cell.replace(",", "")) for cell in row[2:4])
        assert 24.5 < sectors / requests < 27.5
        if not row[0].startswith("512"):
            assert 93 <= int(row[5].removesuffix(" %")) <= 97
    times = recorded_run("2026-11-30-sm_90-gemv_q4_0")
    same_sectors = [
        times.value(f"gemv_q4_0 warp_per_row, {s}, stream")
        for s in ("5,632 x 2,048", "2,048 x 5,632")
    ]
    assert [round(us, 1) for us in same_sectors] == [49.7, 50.9]


def test_the_gains_on_both_gpus(repository: Path) -> None:
    rows = list(csv.DictReader((repository / "data/seed_results.csv").open()))
    seed = {
        r["phase"]: float(r["tokens_per_second"])
        for r in rows
        if r["phase"] in ("0", "2", "3", "5")
    }
    assert seed == {"0": 53.67, "2": 60.58, "3": 66.29, "5": 109.24}
    assert seed["3"] / seed["2"] == pytest.approx(1.09, abs=0.005)
    assert 1e3 / seed["2"] - 1e3 / seed["3"] == pytest.approx(1.4, abs=0.05)
    assert seed["5"] / seed["3"] == pytest.approx(1.65, abs=0.005)
    h200 = recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b-ladder").ladder()
    assert h200["3"] / h200["0"] == pytest.approx(1.07, abs=0.005)
    assert h200["5"] / h200["3"] == pytest.approx(1.93, abs=0.005)


def test_a_token_launches_a_hundred_million_threads_of_which_70_percent_idle() -> None:
    shapes = gemv_times.shapes_of(TINYLLAMA)
    rows = sum(s.per_token * s.rows for s in shapes)
    busy = sum(s.per_token * s.rows * min(256, s.cols // 32) for s in shapes)
    assert rows * 256 == 100_925_440
    assert round(1 - busy / (rows * 256), 2) == 0.70


def test_thread_map_counts_the_threads_and_fits_both_themes() -> None:
    fields = {"64": np.array([3] * 64 + [0] * 192), "8": np.array([1] * 8 + [0] * 248)}
    figure = threads.thread_map(fields, "a title")
    assert [a.text for a in figure.layout.annotations] == [
        "64<br>64 of 256 threads load",
        "8<br>8 of 256 threads load",
    ]
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert figure.layout.font.color == TEXT
    assert figure.to_json() == threads.thread_map(fields, "a title").to_json()


def test_two_lanes_a_block_halve_the_requests_of_a_short_row() -> None:
    row = a_row("05", 256)  # of the storyteller's first matrix, 8 blocks each
    assert row["load requests"] == (49, 25)
    before, after = row["load sectors"]
    assert 1 / 9 < 1 - after / before < 1 / 8
    x = 32 * 8  # of 32 requests, before; one sector for each of 8 blocks
    assert x / before == pytest.approx(0.75, abs=0.005)
    assert row["shuffles"] == (5, 5)


def test_two_lanes_a_block_at_a_row_of_64() -> None:
    before, after = (threads.traced_gemv(AFTER, 1, n) for n in (8, 64))
    mine = [threads.traced_gemv(AFTER, 1, n, kernel_source("05")) for n in (8, 64)]
    busy = [np.count_nonzero(threads.loads_by_thread(t, AFTER.threads)) for t in (before, mine[0])]
    assert busy == [8, 16]
    assert (after.requests("load"), mine[1].requests("load")) == (98, 100)
    sectors = after.sectors("load"), mine[1].sectors("load")
    assert sectors == (2660, 2372)
    assert sectors[0] / sectors[1] == pytest.approx(1.12, abs=0.005)
