"""Exercise 11.1: what a wrong one-pass attention hears."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

from sovereign_lab.notebook.exercises import check, solution_text
from sovereign_lab.notebook.online_softmax import Pairs


def test_starter_is_not_solved_and_solution_is(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = nbformat.read(repository / "notebooks/11_online_softmax.ipynb", as_version=4).cells
    starter = next(c.source for c in cells if "exercise-11.1" in c.metadata.get("tags", []))
    exec(starter, {"check": check, "np": np})
    assert capsys.readouterr().out == "Exercise 11.1: not solved yet.\n"
    exec(solution_text("11.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 11.1: solved. ")


def without_maximum(chunks: Pairs) -> Any:
    total: Any = 0.0
    output: Any = 0.0
    for scores, values in chunks:
        total = total + np.exp(scores).sum()
        output = output + np.exp(scores) @ values
    return output / total


def keeps_chunks(chunks: Pairs) -> Any:
    kept = list(chunks)
    scores = np.concatenate([s for s, _ in kept])
    weights = np.exp(scores - scores.max())
    return weights @ np.concatenate([v for _, v in kept]) / weights.sum()


def online(
    correct_total: bool = True, correct_output: bool = True, turned: bool = False
) -> Callable[[Pairs], Any]:
    def attend(chunks: Pairs) -> Any:
        largest, total, output = np.float32(-np.inf), 0.0, 0.0
        for scores, values in chunks:
            now = max(largest, scores.max())
            correction = np.exp(now - largest) if turned else np.exp(largest - now)
            weights = np.exp(scores - now)
            total = total * (correction if correct_total else 1) + weights.sum()
            output = output * (correction if correct_output else 1) + weights @ values
            largest = now
        return output / total

    return attend


def averages(chunks: Pairs) -> Any:
    outputs = []
    for scores, values in chunks:
        weights = np.exp(scores - scores.max())
        outputs.append(weights @ values / weights.sum())
    return np.mean(outputs, axis=0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (without_maximum, "scores above 100: the output is nan"),
        (keeps_chunks, "one chunk: the output is made of a chunk that has been overwritten"),
        (averages, "two chunks, the larger scores first: the output begins"),
        (online(correct_total=False), "two chunks, the larger scores last: the output begins"),
        (online(correct_output=False), "two chunks, the larger scores last: the output begins"),
        (online(turned=True), "one chunk: the output is nan"),
        (online(), "a masked chunk at the start: the output is nan"),
        (lambda chunks: next(chunks)[1], "one chunk: the output has the shape (3, 7)"),
        (lambda chunks: chunks[0], "one chunk: your function raises TypeError"),
    ],
)
def test_wrong_answer_hears_what_is_wrong(
    wrong: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check("11.1", wrong)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 11.1: not solved yet.")
    assert said in out
