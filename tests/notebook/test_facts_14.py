"""What chapter 14 says in its prose and its table of challenges, held to the trace and to the recorded runs."""

import re
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import trace
from sovereign_lab.measure.profile import Profile
from sovereign_lab.measure.workload import DEFINES
from sovereign_lab.notebook.challenges import CHALLENGES, GRADES, Challenge
from sovereign_lab.notebook.open_bench_times import (
    RECORDED,
    chapter_edits,
    controls,
    recorded,
    recorded_sources,
    source_mark,
)
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.runs import recorded_run

PROFILE = "data/runs/2026-11-30-nvidia-h200-synthetic-tinyllama-1.1b-phase-8c-profile.json"


@pytest.mark.parametrize("challenge", CHALLENGES.values(), ids=CHALLENGES)
def test_a_parent_makes_what_the_table_says(challenge: Challenge) -> None:
    found, args = op(challenge.op), challenge.arguments()
    variant = found.variant(challenge.like)
    traced = trace(
        variant.path, found.grid(variant, args), variant.threads, args, DEFINES,
        shared_bytes=variant.shared_bytes(args),
    )  # fmt: skip
    assert challenge.measure.of(traced) == challenge.parent
    for measure, most in challenge.limits:
        assert measure.of(traced) <= most, measure.name


@pytest.mark.parametrize("challenge", CHALLENGES.values(), ids=CHALLENGES)
def test_grades_get_harder(challenge: Challenge) -> None:
    assert challenge.parent > challenge.bronze > challenge.silver > challenge.gold
    assert [challenge.grade(challenge.most(g)) for g in GRADES] == list(GRADES)
    assert challenge.grade(challenge.bronze + 1) is None


def card_rows(repository: Path, name: str) -> dict[str, list[str]]:
    """The counts on a card of the committed notebook, whose outputs nbval compares with what is counted anew."""
    cells = nbformat.read(repository / "notebooks/14_the_open_bench.ipynb", as_version=4).cells
    cell = next(c for c in cells if c.source.startswith("%%kernel") and f"--as {name}" in c.source)
    lines = cell.outputs[0].data["text/plain"].splitlines()
    rows = (re.split(r"\s{2,}", line.strip()) for line in lines)
    return {row[0]: row[1:] for row in rows if len(row) == 3}


def test_counts_of_the_two_edits(repository: Path) -> None:
    pairs, staged = (card_rows(repository, name) for name in ("pairs", "staged"))
    assert pairs["load requests"] == ["15,488", "9,856"]
    assert pairs["load sectors"] == staged["load sectors"] == ["63,360", "46,464"]
    assert pairs["shuffles"] == ["7,040", "7,040"]
    assert pairs["store requests"] == ["704", "704"]
    assert f"{9856 / 15488:.2f}" == "0.64"
    assert staged["load requests"] == ["15,488", "14,432"]
    assert f"{1 - 14432 / 15488:.0%}" == "7%"
    assert staged["shared-memory wavefronts"] == ["0", "7,040"]
    assert staged["barriers"] == ["0", "1,408"]


def test_recorded_times_are_of_the_kernels_that_are_shown() -> None:
    marks = {
        f"{made.op} {made.name}": source_mark(made) for made in [*chapter_edits(), *controls()]
    }
    assert recorded_sources() == marks


def test_recorded_speed_ups() -> None:
    run = recorded_run(RECORDED)
    assert run.origin == "NVIDIA H200, recorded 2026-12-01"
    found = {
        kernel: (f"{r.alone.value:.3f}", f"{r.engine.value:.3f}", r.verdict)
        for kernel in recorded_sources()
        for r in [recorded(run, kernel)]
        if not kernel.endswith("control")
    }
    assert found == {
        "ffn_swiglu pairs": ("1.404", "1.057", "keep"),
        "ffn_swiglu staged": ("0.818", "0.968", "revert"),
        "rmsnorm gold_1": ("2.261", "1.100", "keep"),
        "argmax gold_2": ("0.859", "1.003", "no difference"),
        "rope_kv gold_3": ("0.967", "1.003", "no difference"),
        "attention gold_4": ("2.278", "1.020", "keep"),
        "gemv_q4_0 gold_5": ("1.236", "1.102", "keep"),
    }
    assert f"{recorded(run, 'rope_kv gold_3').after_us:.1f}" == "1.6"


def test_a_parent_against_itself_comes_out_ahead_by_0_4_percent() -> None:
    run = recorded_run(RECORDED)
    parents = [recorded(run, k) for k in recorded_sources() if k.endswith("control")]
    assert [f"{r.engine.value:.3f}" for r in parents] == ["1.004"] * 6
    assert all(r.engine.low > 1 and r.verdict == "no difference" for r in parents)


def test_shares_of_the_profile_and_what_amdahl_makes_of_them() -> None:
    ops = {row.op: row for row in Profile.load(in_checkout(PROFILE)).ops}
    assert f"{ops['logits'].share:.1%} {ops['logits'].floor_share:.0%}" == "3.9% 95%"
    assert f"{ops['gemv_q4_0'].share:.1%} {ops['gemv_q4_0'].floor_share:.1%}" == "49.1% 7.5%"
    share = ops["ffn_swiglu"].share
    assert f"{share:.1%} {ops['ffn_swiglu'].floor_share:.1%}" == "20.5% 19.6%"
    assert f"{1 / (1 - share):.3f}" == "1.257"
    assert f"{1 / (1 - share + share / 1.404):.3f}" == "1.063"
    assert (ops["rmsnorm"].launches, f"{ops['rmsnorm'].share:.1%}") == (45, "9.7%")
    assert f"{ops['attention'].share:.0%} {ops['argmax'].share:.1%}" == "4% 0.5%"
    norm = ops["rmsnorm"].share
    assert f"{1 / (1 - norm + norm / 2.261):.3f} {1 / (1 - norm):.3f}" == "1.057 1.107"


def test_requests_of_a_row_of_ffn_swiglu() -> None:
    x, scales, nibbles = 16, 2 * 16, 2 * 16 * 4
    assert x + scales + nibbles == 176
    assert f"{(x + scales + nibbles / 2) / 176:.2f}" == "0.64"
