"""Exercises 08.1 and 09.1: starters unsolved, solutions solved, wrong kernels told what is wrong."""

import re
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.exercises import check, solution_text

COALESCED = op("gemv_q4_0").variant("coalesced")
STRIDED = op("logits").variant("thread_per_row")
every_exercise = pytest.mark.parametrize("exercise", ["08.1", "09.1"])


@every_exercise
def test_starter_is_not_solved(
    repository: Path, exercise: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next((repository / "notebooks").glob(f"{exercise[:2]}_*.ipynb"))
    cells = nbformat.read(path, as_version=4).cells
    source = next(c.source for c in cells if f"exercise-{exercise}" in c.metadata.get("tags", []))
    exec(source, {"check": check, "coalesced": COALESCED, "strided": STRIDED})
    assert capsys.readouterr().out == f"Exercise {exercise}: not solved yet.\n"


@every_exercise
def test_solution_is_solved(exercise: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text(exercise), {})
    assert capsys.readouterr().out.startswith(f"Exercise {exercise}: solved. ")


def refuses(
    exercise: str,
    source: str,
    before: str,
    after: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert before in source
    check(exercise, source.replace(before, after))
    out = capsys.readouterr().out
    assert out.startswith(f"Exercise {exercise}: not solved yet.")
    assert re.search(said, out), out


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("float sum = 0;", "float sum = y[row];", "32 times, once from every lane"),
        ("y[row] = sum", "y[row] = sum + 0", "the residual is lost"),
        ("y[row] = sum", "y[row] += 0 * sum", "nothing was added to it"),
        ("if (lane == 0) y[row] = sum", "y[row] += sum", r"y\[0\] was .* and it became"),
        ("y[row] = sum", "y[row] += sum + y[row + 1]", r"y\[0\] was .* and it became"),
        ("if (row >= rows) return;", "if (row > rows) return;", "the residual is lost|outside y"),
        ("y[row] = sum;", "y[row] += sum", "does not compile"),
    ],
)
def test_wrong_add_hears_what_is_wrong(
    before: str, after: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refuses("08.1", COALESCED.source, before, after, said, capsys)


def test_adding_in_every_lane_after_the_reduction_is_right_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(
        "08.1",
        COALESCED.source.replace(
            "if (lane == 0) y[row] = sum", "sum += y[row]; if (lane == 0) y[row] = sum"
        ),
    )
    assert capsys.readouterr().out.startswith("Exercise 08.1: solved. ")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("row * dim + i", "i * dim + row", "never written, or its sum reads outside W"),
        ("row * dim + i", "row * vocab + i", "W now lies as"),
        ("row * dim + i", "row * dim + i + 0", "W now lies as"),
        ("if (row >= vocab) return;", "", "outside y"),
        ("row * dim + i] * x[i]", "i * vocab + row] * x[i] + W[0]", r"y\[0\] is .* and should be"),
        ("W[(size_t)row * dim + i]", "W[(size_t)i * vocab + row", "does not compile"),
    ],
)
def test_wrong_layout_hears_what_is_wrong(
    before: str, after: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refuses("09.1", STRIDED.source, before, after, said, capsys)


def test_right_sums_over_scattered_rows_are_told_their_sectors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = STRIDED.source.replace("row * dim + i", "i * vocab + row").replace(
        "blockIdx.x * blockDim.x + threadIdx.x",
        "blockIdx.x * blockDim.x + threadIdx.x % 32 * 4 + threadIdx.x / 32",
    )
    check("09.1", source)
    assert "a request for W touches 16 sectors" in capsys.readouterr().out
