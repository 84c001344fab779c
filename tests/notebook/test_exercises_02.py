"""02.1: the starter is not solved, the solution is, and a wrong kernel hears what is wrong with it."""

import re
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.exercises import check, edit, solution, solution_text

NAIVE = op("gemv_q4_0").variant("block_per_row")
REDUCTION = NAIVE.source[NAIVE.source.index("  partial[threadIdx.x] = sum;") :]
INCLUDE = '#include "q4_0.cuh"\n'
ONE_BARRIER = """\
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0);
  if (threadIdx.x == 0) y[row] = sum;
}
"""
THREE_BARRIERS = """\
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half_of_them = 128; half_of_them >= 64; half_of_them /= 2) {
    if (threadIdx.x < half_of_them) partial[threadIdx.x] += partial[threadIdx.x + half_of_them];
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    sum = warp_sum_to_lane_0(partial[threadIdx.x] + partial[threadIdx.x + 32]);
    if (threadIdx.x == 0) y[row] = sum;
  }
}
"""
BARRIER = "  __syncthreads();\n"


def verdict(mine: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the check says of this end of the kernel."""
    source = edit(NAIVE.source, {INCLUDE: INCLUDE + '#include "warp.cuh"\n', REDUCTION: mine})
    check("02.1", source)
    return capsys.readouterr().out


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = repository / "notebooks/02_first_working_path.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    starter = next(c.source for c in cells if "exercise-02.1" in c.metadata.get("tags", []))
    exec(starter, {"check": check, "edit": edit, "naive": NAIVE})
    assert capsys.readouterr().out == "Exercise 02.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("02.1"), {})
    out = capsys.readouterr().out
    assert out.startswith("Exercise 02.1: solved. ")
    assert "9 before, 1 after" in out
    assert solution_text("02.1") in solution("02.1").data


def test_three_barriers_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert "9 before, 3 after" in verdict(THREE_BARRIERS, capsys)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (ONE_BARRIER.replace(BARRIER, ""), "row 0 of y is never written, or is NaN"),
        (THREE_BARRIERS.replace(BARRIER, "", 1), "row 0 of y is never written, or is NaN"),
        (
            THREE_BARRIERS.replace("  " + BARRIER, ""),
            r"3 rows of 300 blocks: y\[0\] is .* and should be",
        ),
        (ONE_BARRIER.replace("warp_sum(sum)", "sum"), r"y\[0\] is .* and should be"),
        (ONE_BARRIER.replace("y[row]", "y[row + 1]"), "writes outside y"),
        (ONE_BARRIER.replace("sum;\n}", "sum\n}"), "does not compile"),
        (
            REDUCTION.replace("    " + BARRIER[2:], "").replace(
                "partial[threadIdx.x + half_of_them];",
                "partial[threadIdx.x + half_of_them], __syncthreads();",
            ),
            "Some threads pass 1 barriers and others 9",
        ),
        (REDUCTION + "\n", "with 9 barriers a row; 3 are enough"),
    ],
)
def test_wrong_kernel_hears_what_is_wrong(
    wrong: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = verdict(wrong, capsys)
    assert out.startswith("Exercise 02.1: not solved yet.")
    assert re.search(said, out)
