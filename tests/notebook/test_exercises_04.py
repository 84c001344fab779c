"""Exercise 04.1: the starter unsolved, the solution solved, wrong kernels told what is wrong."""

import re
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.exercises import check, solution_text

BISECT, GATHER = op("sample").variant("bisect"), op("sample").variant("gather")
LINE = "Kept kept = keep_top_p(logits, vocab, highest, top_p, partial);"


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = nbformat.read(repository / "notebooks" / "04_sampling.ipynb", as_version=4).cells
    source = next(c.source for c in cells if "exercise-04.1" in c.metadata.get("tags", []))
    assert LINE in source and LINE in BISECT.source
    exec(source, {"check": check, "bisect": BISECT})
    assert capsys.readouterr().out == "Exercise 04.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("04.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 04.1: solved. ")


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (LINE + " ", "not all of the .* tokens are kept"),
        ("Kept kept = {highest * top_p, vocab - 1};", "not all of the|too little"),
        ("Kept kept = {highest - top_p, vocab - 1};", "not all of the"),
        ("Kept kept = {highest + log2f(top_p), vocab - 1};", "0.0.* times as likely"),
        (
            "Kept kept = {highest + logf(top_p) * temperature, vocab - 1};",
            r"a hot temperature \(min_p 0.1, temperature 3\).*too little",
        ),
        ("Kept kept = {highest + logf(top_p), *best};", "min_p 1: the likeliest, and what equals"),
        ("Kept kept = {highest + logf(fmaxf(top_p, 1e-3f)), vocab - 1};", "min_p 0: all tokens"),
        ("Kept kept = {highest + logf(top_p), vocab - 1}", "does not compile"),
        (
            "Kept kept = {highest + logf(top_p), vocab - 1};"
            " Mass all = 0; for (int i = 0; i < vocab; i++) all += mass_of(logits[i], highest);"
            " if (all == 0) return;",
            "without looking at any other token",
        ),
    ],
)
def test_wrong_min_p_hears_what_is_wrong(
    mine: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check("04.1", BISECT.source.replace(LINE, mine))
    out = capsys.readouterr().out
    assert out.startswith("Exercise 04.1: not solved yet.")
    assert re.search(said, out), out


def test_top_p_by_another_kernel_is_not_min_p(capsys: pytest.CaptureFixture[str]) -> None:
    check("04.1", GATHER.source)
    assert capsys.readouterr().out.startswith("Exercise 04.1: not solved yet. one token in ten")
