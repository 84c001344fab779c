"""Exercise 15.1: the starter is not solved, the solution is, and wrong counts hear what is wrong with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sovereign_lab.notebook.exercises import check, solution, solution_text

Answer = Callable[[int, int, int], Any]


def up(n: int) -> int:
    return -(-n // 16)


def share(rows: int, cols: int, tokens: int) -> float:
    return rows * cols * tokens / (up(rows) * up(cols) * up(tokens) * 4096)


def verdict(answer: Answer, capsys: pytest.CaptureFixture[str]) -> str:
    check("15.1", answer)
    return capsys.readouterr().out


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = nbformat.read(repository / "notebooks/15_wmma.ipynb", as_version=4).cells
    cell = next(c for c in cells if "exercise-15.1" in c.metadata.get("tags", []))
    exec(cell.source, {"check": check})
    assert capsys.readouterr().out == "Exercise 15.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("15.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 15.1: solved. ")
    assert solution_text("15.1") in solution("15.1").data


WRONG: dict[str, tuple[Answer, str]] = {
    "rows rounded down": (
        lambda r, c, t: (r // 16 * (c // 16) * up(t), share(r, c, t)),
        "40 x 96 with 1 token: 18 products of whole tiles, yours says 12. The rows that do not fill a tile",
    ),
    "fractions of tiles": (
        lambda r, c, t: (r * c * t / 4096, share(r, c, t)),
        "2,048 x 2,048 with 1 token: 16,384 products of whole tiles, yours says 1024.0. A fraction of a tile",
    ),
    "a tile a token": (
        lambda r, c, t: (up(r) * up(c) * t, share(r, c, t)),
        "with 16 tokens: 16,384 products of whole tiles, yours says 262144. Up to 16 tokens share a tile.",
    ),
    "tokens forgotten in the share": (
        lambda r, c, t: (up(r) * up(c) * up(t), share(r, c, 1)),
        "with 16 tokens: 67,108,864 multiplications of 67,108,864 are needed, a share of 1; yours says 0.0625",
    ),
    "turned round": (
        lambda r, c, t: (up(r) * up(c) * up(t), 1 / share(r, c, t)),
        "a share of 0.0625; yours says 16.0. Needed over made, not the other way round.",
    ),
    "one number": (lambda r, c, t: up(r) * up(c) * up(t), "An answer is (tiles, share); got 16384."),
}  # fmt: skip


@pytest.mark.parametrize("which", WRONG)
def test_wrong_answer_hears_what_is_wrong(which: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer, says = WRONG[which]
    out = verdict(answer, capsys)
    assert out.startswith("Exercise 15.1: not solved yet. ")
    assert says in out
