"""Exercise 17.1: the starter is not solved, the solution is, and wrong places hear what is wrong with them."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.notebook.exercises import check, solution, solution_text


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = nbformat.read(repository / "notebooks/17_prompts_in_blocks.ipynb", as_version=4).cells
    cell = next(c for c in cells if "exercise-17.1" in c.metadata.get("tags", []))
    exec(cell.source, {"check": check})
    assert capsys.readouterr().out == "Exercise 17.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("17.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 17.1: solved. 128 rows of 4 chunks")
    assert solution_text("17.1") in solution("17.1").data


def test_another_way_is_solved_too(capsys: pytest.CaptureFixture[str]) -> None:
    check("17.1", lambda row, c: row * 4 + (c + row // 2) % 4)
    assert "solved. " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (lambda row, c: row * 4 + c, "Rows 0 to 7, chunk 0: ldmatrix takes 4 passes in place of 1."),
        # the kernel's own swizzle, for rows twice as long: out of the row
        (lambda row, c: row * 4 + (c ^ row % 8), "Row 8, chunk 0 and row 7, chunk 3"),
        # kept inside of the row, but two neighbours turn where they need not
        (lambda row, c: row * 4 + (c ^ row % 4), "Rows 0 to 7, chunk 0: ldmatrix takes 2 passes"),
        (lambda row, c: row * 5 + c, "there is no room for padding"),
        # read without a conflict, stored with one
        (lambda row, c: row // 8 * 32 + c * 8 + row % 8, "Rows 0 and 1, stored side by side: 4 passes"),
        (lambda row, c: row * 4 + c / 2, "place 0.0 is not one of the tile's 512"),
        (lambda row, c: [][row], "your function raises IndexError"),
    ],
)  # fmt: skip
def test_wrong_places_hear_what_is_wrong(
    place: Callable[[int, int], int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check("17.1", place)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 17.1: not solved yet. ")
    assert said in out
