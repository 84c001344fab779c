"""What the chapters say of recorded runs is what the recorded runs say."""

import pytest

from sovereign_lab.devices import Device
from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.notebook.gemv_times import Shape, counter_table, gemv_times, per_token, shapes_of
from sovereign_lab.notebook.predict import judge
from sovereign_lab.notebook.runs import recorded_run, three_columns
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.notebook.table import Table

BOTH = ("warp_per_row", "coalesced")


def test_a_token_makes_154_launches_that_read_the_layers_once() -> None:
    shapes = shapes_of(TINYLLAMA)
    assert sum(s.per_token for s in shapes) == 7 * 22 == 154
    assert sum(s.per_token * s.nbytes for s in shapes) == 544_997_376


def test_gemvs_alone_explain_what_the_model_gained_on_the_h200() -> None:
    ladder = recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b").ladder()
    times = recorded_run("2026-11-30-sm_90-gemv_q4_0")
    assert times.device == "NVIDIA H200"
    saved = 1e3 / ladder["3"] - 1e3 / ladder["5"]
    assert per_token(times, BOTH[0]) - per_token(times, BOTH[1]) == pytest.approx(saved, rel=0.05)


def test_coalesced_is_slower_on_small_matrices_and_faster_on_large_ones() -> None:
    times = recorded_run("2026-11-30-sm_90-gemv_q4_0")
    for shape in [*shapes_of(TINYLLAMA), Shape(512, 2048, 0)]:
        before, after = (times.value(f"gemv_q4_0 {v}, {shape}, stream") for v in BOTH)
        assert (after < 0.46 * before) if shape.rows >= 2048 else (after > before), str(shape)
        before, after = (times.value(f"gemv_q4_0 {v}, {shape}, repeat") for v in BOTH)
        assert after < before, str(shape)


def test_counters_are_those_that_the_trace_gives() -> None:
    counters = recorded_run("2026-11-30-sm_90-gemv_q4_0-counters")
    rows = {row[1]: row for row in counter_table(counters, BOTH).rows if row[0] == "512 x 2,048"}
    assert list(rows["warp_per_row"][2:4]) == ["50,176", "1,361,920"]
    assert list(rows["coalesced"][2:4]) == ["98,304", "210,944"]


def test_gemvs_are_timed_on_this_device(any_device: Device) -> None:
    gemv = op("gemv_q4_0")
    variants: dict[str, Variant | str] = {**gemv.variants, "text": gemv.variant("coalesced").source}
    figures = gemv_times(any_device, variants, [Shape(8, 64, 1)], copies=1)
    assert len(figures) == 2 * len(variants)
    assert all(f.low <= f.value <= f.high and f.low > 0 for f in figures)


def test_three_columns_never_call_a_cpu_a_gpu(simt: Device) -> None:
    run = recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b")
    table = three_columns(("3", "5"), run, {"3": 2.0, "5": 1.0}, "a model", simt.properties)
    assert table.head[3] == "this machine: a CPU imitating a GPU"
    assert [row[0] for row in table.rows] == ["model", "phase 3", "", "phase 5", "", "5 over 3"]
    assert table.rows[-1][1:] == ["1.65 times as fast", "1.90 times as fast", "0.50 times as fast"]
    assert PHASES["5"].seed_tokens_per_second == 109.24


def test_missing_run_is_a_sentence() -> None:
    with pytest.raises(LabError, match=r"no-such-run\.json is not"):
        recorded_run("no-such-run")


def test_predictions_are_judged_by_ratio() -> None:
    found = {"a": 10.0, "b": 10.0, "c": 10.0, "d": 10.0, "e": 10.0}
    mine = {"a": None, "b": 10, "c": 10.5, "d": 40, "e": 2.5}
    verdicts = [row[3] for row in judge(mine, found).rows]
    assert verdicts[0].startswith("commit a number")
    assert verdicts[1:] == [
        "exact",
        "close: within 10 %",
        "too high, by a factor of 4.0",
        "too low, by a factor of 4.0",
    ]


def test_table_is_text_and_escaped_html() -> None:
    table = Table(["a", "b"], [["1", "<x>"]])
    assert repr(table) == "a  b\n1  <x>"
    assert "&lt;x&gt;" in table._repr_html_()
