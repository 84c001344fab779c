"""The starters are not solved, the solutions are, and a wrong answer hears what is wrong with it."""

import re
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.exercises import check, solution, solution_text

COALESCED = op("gemv_q4_0").variant("coalesced").source
EXERCISES = ("07.1", "07.2")
every_exercise = pytest.mark.parametrize("exercise", EXERCISES)


def starter(repository: Path, exercise: str) -> str:
    """The source of the cell that is tagged with the exercise."""
    path = next((repository / "notebooks").glob(f"{exercise[:2]}_*.ipynb"))
    cells = nbformat.read(path, as_version=4).cells
    return next(c.source for c in cells if f"exercise-{exercise}" in c.metadata.get("tags", []))


@every_exercise
def test_starter_is_not_solved(
    repository: Path, exercise: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"check": check, "coalesced": op("gemv_q4_0").variant("coalesced")}
    exec(starter(repository, exercise), names)
    assert capsys.readouterr().out == f"Exercise {exercise}: not solved yet.\n"


@every_exercise
def test_solution_is_solved(exercise: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text(exercise), {})
    assert capsys.readouterr().out.startswith(f"Exercise {exercise}: solved. ")
    assert solution_text(exercise) in solution(exercise).data


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda starts, size: 4, "the same, one float further on: 5 sectors, yours says 4"),
        (lambda starts, size: len({s // 32 for s in starts}), "16 bytes a lane, 8 bytes off"),
        (lambda starts, size: len(starts), "32 neighbours"),
    ],
)
def test_wrong_count_hears_which_pattern(
    wrong: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check("07.1", wrong)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 07.1: not solved yet.")
    assert said in out


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("nibble - 8", "nibble - 7", r"y\[0\] is .* and should be"),
        ("y[row] = sum", "y[row + 1] = sum", "writes outside y"),
        ("if (row >= rows) return;", "", "writes outside y"),
        (
            "if (lane == 0) y[row]",
            "if (lane == 0 && row != 2) y[row]",
            "row 2 of y is never written",
        ),
        ("float sum = 0;", "float sum = 0", "does not compile"),
        ("float sum = 0;", "float sum = 0.0f;", "a shuffle is still there"),
    ],
)
def test_wrong_kernel_hears_what_is_wrong(
    before: str, after: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert before in COALESCED
    check("07.2", COALESCED.replace(before, after))
    out = capsys.readouterr().out
    assert out.startswith("Exercise 07.2: not solved yet.")
    assert re.search(said, out)


def test_kernel_that_loads_more_sectors_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    strided = op("gemv_q4_0").variant("warp_per_row").source
    check("07.2", strided)
    assert "1,361,920 sectors where the starter's touch 210,944" in capsys.readouterr().out


def test_unknown_exercise_is_refused() -> None:
    with pytest.raises(LabError, match=r"there are .*07\.1, 07\.2"):
        check("99.1", None)
    with pytest.raises(LabError):
        solution("99.1")
