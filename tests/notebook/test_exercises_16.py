"""Exercise 16.1: the starter is not solved, the solution is, and wrong places hear what is wrong with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sovereign_lab.notebook.exercises import check, solution, solution_text
from sovereign_lab.notebook.fragments import place_of


def verdict(answer: Callable[[int, int], Any], capsys: pytest.CaptureFixture[str]) -> str:
    check("16.1", answer)
    return capsys.readouterr().out


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = nbformat.read(repository / "notebooks/16_halves_on_the_fly.ipynb", as_version=4).cells
    cell = next(c for c in cells if "exercise-16.1" in c.metadata.get("tags", []))
    exec(cell.source, {"check": check})
    assert capsys.readouterr().out == "Exercise 16.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("16.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 16.1: solved. All 512 weights")
    assert solution_text("16.1") in solution("16.1").data


WRONG: dict[str, tuple[Callable[[int, int], Any], str]] = {
    "four neighbours a lane": (
        lambda r, w: place_of(r, w)._replace(lane=r % 8 * 4 + w % 16 // 4),
        "Weight 2 of row 0, the low nibble of byte 2: the lane is 1, yours says 0. Four lanes share a row",
    ),
    "nibbles side by side, as they lie": (
        lambda r, w: place_of(r, w // 2 + w % 2 * 16),
        "Weight 1 of row 0, the low nibble of byte 1: the product is 0, yours says 1. The low nibbles of a block",
    ),
    "right and lower quarter exchanged": (
        lambda r, w: place_of(r, w)._replace(register=r // 8 * 2 + w % 16 // 8),
        "Weight 8 of row 0, the low nibble of byte 8: the register is 2, yours says 1. a0 is the upper eight rows",
    ),
    "the first one high": (
        lambda r, w: place_of(r, w)._replace(half=1 - w % 2),
        "the half is 0, yours says 1. Of two neighbours the first lies in the low half.",
    ),
    "a lane alone": (lambda r, w: place_of(r, w).lane, "An answer is (lane, product, register, half); got 0."),
}  # fmt: skip


@pytest.mark.parametrize("which", WRONG)
def test_wrong_answer_hears_what_is_wrong(which: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer, says = WRONG[which]
    out = verdict(answer, capsys)
    assert out.startswith("Exercise 16.1: not solved yet. ")
    assert says in out
