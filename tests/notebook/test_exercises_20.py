"""Exercise 20.1: the committed starter, the solution, and what wrong kernels are told."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

from sovereign_lab.notebook import norm_gemv
from sovereign_lab.notebook.exercises import check, solution, solution_text


@pytest.fixture(scope="module")
def solved() -> str:
    made: dict[str, Any] = {}
    text = solution_text("20.1").rpartition('check("20.1"')[0]
    exec(text, made)
    source: str = made["mine"]
    return source


def test_starter_is_not_solved_yet(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = nbformat.read(repository / "notebooks/20_fewer_launches.ipynb", as_version=4).cells
    cell = next(c for c in cells if "exercise-20.1" in c.metadata.get("tags", []))
    exec(cell.source, {"check": check, "norm_gemv": norm_gemv})
    assert capsys.readouterr().out == "Exercise 20.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("20.1"), {})
    assert capsys.readouterr().out == (
        "Exercise 20.1: solved. Right on 5 odd shapes, no barrier, and x is asked for 128 times, as before.\n"
    )
    assert solution_text("20.1") in solution("20.1").data


SCALED = "sum * rsqrtf(squares / (blocks_per_row * 32) + eps)"
SQUARED_BEFORE = """\
      squares += low.x * low.x + low.y * low.y + low.z * low.z + low.w * low.w;
      squares += high.x * high.x + high.y * high.y + high.z * high.z + high.w * high.w;
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (SCALED, "sum", "W (x * norm); the root mean square is missing"),
        (" + eps)", ")", "eps is missing"),
        ("/ (blocks_per_row * 32)", "", "summed, and not divided by how many there are"),
        (SCALED, "sum / (sqrtf(squares / (blocks_per_row * 32)) + eps)", "eps is added behind the root"),
        ("    squares += __shfl_xor_sync(FULL_WARP, squares, mask);\n", "", "and should be"),
        (
            "  int lane = ",
            "  __syncthreads();\n  int lane = ",
            "the block waits at a barrier; no warp needs to",
        ),
        (
            "  float sum = 0, squares = 0;\n",
            "  float sum = 0, squares = 0, again = 0;\n"
            "  for (int i = lane; i < blocks_per_row * 32; i += 32) again += x[i] * x[i];\n"
            "  if (again < 0) return;\n",
            "requests for x, the starter 128: the squares can be summed where x is multiplied",
        ),
        ("if (lane < TILE_ROWS && row < rows)", "if (lane < TILE_ROWS)", "writes outside y"),
        ("y[row] = sum", "y[row] == sum", "is never written, or is NaN"),
    ],
)  # fmt: skip
def test_wrong_kernels_hear_what_is_wrong(
    before: str, after: str, said: str, solved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert before in solved
    check("20.1", solved.replace(before, after))
    out = capsys.readouterr().out
    assert out.startswith("Exercise 20.1: not solved yet. ")
    assert said in out


def test_squares_of_what_the_norm_has_weighted(
    solved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert SQUARED_BEFORE in solved
    later = solved.replace(SQUARED_BEFORE, "").replace(
        "      int w0 = (int)words[i];\n", SQUARED_BEFORE + "      int w0 = (int)words[i];\n"
    )
    check("20.1", later)
    assert "the mean is of x alone, without the norm's weights" in capsys.readouterr().out
