"""05.1: the starter is not solved, the solution is, and a wrong kernel hears what is wrong with it."""

import re
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.exercises import check, edit, solution, solution_text

AFTER = op("gemv_q4_0").variant("warp_per_row")
LANE, ROW, LEAVE = "int lane = threadIdx.x % 32;", "threadIdx.x) / 32;", "if (row >= rows) return;"
STEP, MEET, STORE = "b += 32", "sum = warp_sum_to_lane_0(sum);", "if (lane == 0)"


@pytest.fixture
def mine() -> dict[str, str]:
    """The edits of the solution."""
    names: dict[str, object] = {}
    exec(solution_text("05.1").rsplit("check(", 1)[0], names)
    edits = names["mine"]
    assert isinstance(edits, dict)
    return edits


def verdict(changes: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the check says of these edits."""
    check("05.1", edit(AFTER.source, changes))
    return capsys.readouterr().out


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = repository / "notebooks/05_a_warp_a_row.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    starter = next(c.source for c in cells if "exercise-05.1" in c.metadata.get("tags", []))
    exec(starter, {"check": check, "edit": edit, "after": AFTER})
    assert capsys.readouterr().out == "Exercise 05.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("05.1"), {})
    out = capsys.readouterr().out
    assert out.startswith("Exercise 05.1: solved. ")
    assert "3,136 before, 784 after; sectors: 21,728 before, 8,992 after" in out
    assert solution_text("05.1") in solution("05.1").data


@pytest.mark.parametrize(
    ("edited", "said"),
    [
        ({MEET: MEET}, r"5 rows of 2 blocks: y\[0\] is .* and should be"),
        ({STEP: STEP}, r"7 rows of 18 blocks: y\[0\] is .* and should be"),
        ({LEAVE: LEAVE}, r"deadlock .*\n.*exited\n.*__shfl_down_sync"),
        ({STORE: STORE}, "writes outside y"),
        ({ROW: ROW}, "row 4 of y is never written"),
        ({LANE: LANE}, "row 1 of y is never written"),
        ({STEP: "b += "}, "does not compile"),
    ],
)
def test_wrong_kernel_hears_what_is_wrong(
    edited: dict[str, str], said: str, mine: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = verdict({**mine, **edited}, capsys)
    assert out.startswith("Exercise 05.1: not solved yet.")
    assert re.search(said, out)


def test_right_kernel_with_idle_lanes_is_told_so(
    mine: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    # One lane of eight does the whole row.
    lazy = {STEP: "b++", "int b = lane;": "int b = lane ? blocks_per_row : 0;"}
    assert "a request has 4 lanes on average" in verdict({**mine, **lazy}, capsys)


def test_edit_of_a_text_that_is_not_there_is_refused() -> None:
    with pytest.raises(LabError, match="leave the left side as it is"):
        edit(AFTER.source, {"no such text": ""})
