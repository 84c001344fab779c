"""Exercise 10.1: what a wrong count of the cache's bytes hears."""

from pathlib import Path

import nbformat
import pytest

from sovereign_lab.models.model import Config
from sovereign_lab.notebook.exercises import check, solution_text


def test_starter_is_not_solved_and_solution_is(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = nbformat.read(repository / "notebooks/10_long_contexts.ipynb", as_version=4).cells
    starter = next(c.source for c in cells if "exercise-10.1" in c.metadata.get("tags", []))
    exec(starter, {"check": check, "Config": Config})
    assert capsys.readouterr().out == "Exercise 10.1: not solved yet.\n"
    exec(solution_text("10.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 10.1: solved. ")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda c, n, b: c.layers * 2 * c.heads * c.head_dim * b * n, "How many heads"),
        (lambda c, n, b: c.layers * c.kv_heads * c.head_dim * b * n, "both keys and values"),
        (lambda c, n, b: 2 * c.kv_heads * c.head_dim * b * n, "How many layers"),
        (lambda c, n, b: c.layers * 2 * c.kv_heads * c.head_dim * 2 * n, "the same in fp32"),
        (lambda c, n, b: c.layers * 2 * 256 * b * n, "as many KV heads as heads"),
        (
            lambda c, n, b: c.layers * 2 * c.kv_heads * (c.dim // c.heads) * b * n,
            "one layer, one KV head of 128",
        ),
        (lambda c, n, b: c.layers * 2 * c.kv_heads * c.head_dim * b * (n + 1), "4,000 positions"),
        (lambda c, n, b: c.missing, "raises AttributeError"),
    ],
)
def test_wrong_answer_hears_what_is_wrong(
    wrong: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check("10.1", wrong)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 10.1: not solved yet.")
    assert said in out
