"""Exercise 18.1: the starter is not solved, the control is, and what is no control hears why."""

import re
from pathlib import Path

import nbformat
import pytest

from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.exercises import check, solution, solution_text

CONTROL = solution_text("18.1").partition('mine = """\\\n')[2].partition('"""')[0]
MMA = op("gemv_q4_0").variant("mma").source
SPLIT = "for (int k = warp; k < blocks_per_row; k += WARPS) {"
CONSECUTIVE = (
    "int share = (blocks_per_row + WARPS - 1) / WARPS;\n"
    "  for (int k = warp * share; k < min((warp + 1) * share, blocks_per_row); k++) {"
)


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = nbformat.read(repository / "notebooks/18_the_verdict.ipynb", as_version=4).cells
    cell = next(c for c in cells if "exercise-18.1" in c.metadata.get("tags", []))
    exec(cell.source, {"check": check, "op": op})
    assert capsys.readouterr().out == "Exercise 18.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("18.1"), {})
    out = capsys.readouterr().out
    assert out.startswith("Exercise 18.1: solved. ")
    assert "load requests: 448 of the mma kernel, 320 of yours" in out
    assert solution_text("18.1") in solution("18.1").data


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (MMA.replace("float sums[4] = {};", "float sums[4] = {0};"), "Tensor Cores still make 64 products"),
        (CONTROL.replace(SPLIT, CONSECUTIVE), r"warp 0 reads block 1 of row 0; in the mma kernel warp 1 does"),
        (op("gemv_q4_0").variant("float4").source, r"row 24 of y is never written"),
        (CONTROL.replace("if (row >= 16 || first_row + row >= rows) return;", "if (row >= 16) return;"),
         "writes outside y"),
        (CONTROL.replace("(near >> 12) - 8", "(near >> 12)"), r"y\[0\] is .* and should be"),
    ],
)  # fmt: skip
def test_what_is_no_control_hears_why(
    source: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert source not in (CONTROL, MMA)
    check("18.1", source)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 18.1: not solved yet. ")
    assert re.search(said, out), out
