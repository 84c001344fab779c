"""Exercise 21.1: the starter is not solved, the solution is, and wrong merges hear what is wrong with them."""

import re
from pathlib import Path

import nbformat
import numpy as np
import pytest

from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook import split_parts
from sovereign_lab.notebook.exercises import check, solution, solution_text

SOLVED = solution_text("21.1").partition('mine = """\\\n')[2].partition('"""')[0]
STARTER = op("attention_merge").variant("block_per_head").source
WEIGHT = "weight = its.y * exp2f(its.x - now)"


def test_starter_is_not_solved(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = nbformat.read(repository / "notebooks/21_split_attention.ipynb", as_version=4).cells
    cell = next(c for c in cells if "exercise-21.1" in c.metadata.get("tags", []))
    exec(cell.source, {"check": check, "op": op})
    assert capsys.readouterr().out == "Exercise 21.1: not solved yet.\n"


def test_solution_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text("21.1"), {})
    out = capsys.readouterr().out
    assert out.startswith("Exercise 21.1: solved. 9 kinds of splits right at 3 shapes")
    before, after = map(int, re.findall(r"(\d+) before, (\d+) after", out)[0])
    assert before == 2 * after
    assert solution_text("21.1") in solution("21.1").data


@pytest.mark.parametrize(
    ("source", "said"),
    [
        # what the starter does with an empty split, whose mean is NaN
        (STARTER + "// mine\n", r"an empty split at the end, .* out\[0, 0\] is nan; a mean that was never written"),
        (SOLVED.replace("      if (its.y == 0) continue;\n", ""), "an empty split"),
        # the largest score forgotten
        (SOLVED.replace("now = fmaxf(largest, its.x), correction = exp2f(largest - now)", "now = 0, correction = 1"),
         "scores above 200, .* is nan"),
        # the weights forgotten: the mean of the means
        (SOLVED.replace(WEIGHT, "weight = exp2f(its.x - now)"), "five splits .* and should be"),
        (SOLVED.replace(WEIGHT, "weight = its.y"), "five splits .* and should be"),
        (SOLVED.replace("sum = sum * correction + weight", "sum = sum + weight"), "and should be"),
        # right, but in two passes
        (STARTER.replace("      float weight = its.y", "      if (its.y == 0) continue;\n      float weight = its.y"),
         r"the softmax of 5 splits is asked for \d+ times"),
        (SOLVED.replace("float largest", "flaot largest"), "does not compile"),
    ],
)  # fmt: skip
def test_wrong_merges_hear_what_is_wrong(
    source: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert source != SOLVED
    check("21.1", source)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 21.1: not solved yet. ")
    assert re.search(said, out), out


def test_a_case_is_what_attention_over_all_positions_gives() -> None:
    """The parts of a softmax, cut anywhere, and their merge by the exercise's formula: attention over all."""
    rng = np.random.default_rng(2)
    scores, values = rng.standard_normal(300) * 5, rng.standard_normal((300, 8))
    weights = np.exp(scores - scores.max())
    truth = weights @ values / weights.sum()
    for cuts in ([256], [1, 299], [100, 100, 200], [0, 150]):
        parts = split_parts.parts_of(scores, values, cuts)
        top = max(p[0] for p in parts)
        shares = np.array([p[1] * np.exp(p[0] - top) for p in parts])
        means = np.stack([p[2] for p in parts])
        assert np.allclose(shares @ means / shares.sum(), truth)
