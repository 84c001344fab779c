"""What chapter 10 says of counts and of recorded runs is what they say."""

import csv
from itertools import pairwise
from pathlib import Path

import pytest
from edited_cells import counts, kernel_source

from sovereign_lab.devices.device import Source
from sovereign_lab.engine import PHASES
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.roofline import find_gpu, floor, token_bytes
from sovereign_lab.measure.sanitizer import sanitize
from sovereign_lab.measure.trial.cases import odd_cases
from sovereign_lab.measure.workload import DEFINES
from sovereign_lab.notebook import plots
from sovereign_lab.notebook.attention_counts import count_head
from sovereign_lab.notebook.context_times import (
    added_per_thousand,
    by_position,
    context_lines,
    context_table,
)
from sovereign_lab.notebook.runs import recorded_run
from sovereign_lab.notebook.seed import TINYLLAMA

ATTENTION = op("attention")
CONTEXTS = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-contexts"


@pytest.mark.parametrize("length", [1, 30, 301])
def test_barriers_and_steps_follow_their_formulas(length: int) -> None:
    three, sixty_four, split = (
        count_head(ATTENTION.variant(name), length)
        for name in ("three_pass", "64_threads", "split_values")
    )
    assert (three.barriers, sixty_four.barriers, split.barriers) == (3, 2 * length + 2, 4)
    assert (three.key_steps, sixty_four.key_steps, split.key_steps) == (
        -(-length // 4),
        length,
        -(-length // 8),
    )
    assert (three.value_steps, sixty_four.value_steps) == (length, length)
    assert split.value_steps == -(-length // 8)
    assert (three.value_threads, sixty_four.value_threads) == (64, 64)
    assert split.value_threads == min(256, 32 * length)
    for array in ("keys", "values"):
        assert three.sectors[array] == sixty_four.sectors[array] == split.sectors[array]


def test_64_threads_are_in_no_phase_and_slower_at_every_position() -> None:
    assert "64_threads" not in {phase.plan.get("attention") for phase in PHASES.values()}
    run = recorded_run("2026-11-30-sm_90-synthetic-tinyllama-1.1b-attention")
    ratios = {}
    for position in (16, 256, 512, 1024, 2048, 4000):
        slow, three, split = (
            run.value(f"  attention:{name}, at position {position}")
            for name in ("64_threads", "three_pass", "split_values")
        )
        assert slow > three > split
        ratios[position] = round(slow / three, 2)
    assert {p: ratios[p] for p in (16, 512, 4000)} == {16: 1.86, 512: 2.70, 4000: 2.36}


def test_recorded_times_are_those_of_the_text() -> None:
    run = recorded_run(CONTEXTS)
    slopes = {phase: round(added_per_thousand(run, phase)) for phase in ("7", "8a", "8b")}
    assert slopes == {"7": 6834, "8a": 3377, "8b": 2297}
    assert round(added_per_thousand(run, "7") / added_per_thousand(run, "8a"), 2) == 2.02
    before, after = by_position(run, "7"), by_position(run, "8a")
    ratios = {p: round(before[p] / after[p], 2) for p in before}
    assert (ratios[16], ratios[256], ratios[4000]) == (1.05, 1.31, 1.89)
    assert (round(before[256], 2), round(after[256], 2)) == (3.95, 3.02)
    assert context_table(run, ("7", "8a", "8b")).head[-2:] == ["8a over 7", "8b over 7"]


def test_bytes_of_the_cache_explain_less_than_a_thousandth() -> None:
    gpu = find_gpu("H200")
    assert gpu
    times = by_position(recorded_run(CONTEXTS), "7")
    least = floor(4000 * token_bytes(TINYLLAMA).kv_per_position, gpu).ms
    factor = (times[4000] - times[16]) / least
    assert round(factor) == 1290
    assert round(factor / (TINYLLAMA.heads / TINYLLAMA.kv_heads)) == 161


def test_lines_are_straight() -> None:
    """Each stretch adds about what the whole does, to 5 %."""
    run = recorded_run(CONTEXTS)
    for phase in ("7", "8a", "8b"):
        times = list(by_position(run, phase).items())
        for (p, a), (q, b) in pairwise(times):
            slope = 1e6 * (b - a) / (q - p)
            assert slope == pytest.approx(added_per_thousand(run, phase), rel=0.05)


def test_seed_figures_are_those_of_the_table(repository: Path) -> None:
    rows = list(csv.DictReader((repository / "data/seed_results.csv").open()))
    speeds = [
        (row["phase"], row["tokens"], row["tokens_per_second"])
        for row in rows
        if row["phase"] in ("7", "8a")
    ]
    assert speeds == [
        ("7", "166", "143.46"),
        ("7", "300", "135.97"),
        ("7", "275", "122.28"),
        ("8a", "300", "135.61"),
    ]
    assert [round(1e3 / float(s[2]), 2) for s in speeds] == [6.97, 7.35, 8.18, 7.37]
    assert round(135.61 / 122.28, 2) == 1.11


def test_every_phase_is_a_line_with_its_name() -> None:
    run = recorded_run(CONTEXTS)
    figure = context_lines(run, ("7", "8a", "8b"), "t")
    assert [line.name for line in figure.data] == ["phase 7", "phase 8a", "phase 8b"]
    assert list(figure.data[0].y) == list(by_position(run, "7").values())
    assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)"
    assert figure.layout.font.color == plots.TEXT
    assert figure.to_json() == context_lines(run, ("7", "8a", "8b"), "t").to_json()


def test_one_barrier_less_changes_nothing_else() -> None:
    figures = counts("10")
    warps = 4 * 8
    assert figures.pop("barriers") == (4 * warps, 3 * warps)
    assert {"load requests", "load sectors", "shuffles"} < figures.keys()
    assert all(parent == mine for parent, mine in figures.values())


def test_two_barriers_less_are_a_race() -> None:
    first = "partial_max[warp] = largest;\n  __syncthreads();"
    source = kernel_source("10")
    assert first in source
    raced = Source(source.replace(first, first.splitlines()[0]), "raced.cu", DEFINES)
    case = odd_cases("attention")[0]
    report = sanitize(raced, case["heads"], 256, case, uninitialised=["scores"])
    assert report.findings[0].kind == "race"
    assert "partial_max[warp] = largest" in report.findings[0].text
