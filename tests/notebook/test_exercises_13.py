"""Exercise 13.1: the starter is not solved, the solution is, and wrong verdicts hear what they overlooked."""

from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import numpy as np
import pytest

from sovereign_lab.measure.compare import median_interval
from sovereign_lab.notebook import verdicts
from sovereign_lab.notebook.exercises import check, solution_text

Interval = Callable[[np.ndarray], tuple[float, float]]


def bootstrap(ratios: np.ndarray) -> tuple[float, float]:
    return median_interval(ratios)[1:]


def by(interval: Interval, worth: float = 0.01) -> verdicts.Answer:
    """An answer that judges each round's ratio by some interval."""

    def answer(base: Sequence[float], change: Sequence[float]) -> str:
        low, high = interval(np.array(base) / np.array(change))
        return "keep" if low > 1 + worth else "revert" if high < 1 - worth else "no difference"

    return answer


def unpaired(base: Sequence[float], change: Sequence[float]) -> str:
    """All measurements of the one against all of the other: a drift then looks like spread."""
    ratios = np.divide.outer(np.array(base), np.array(change)).ravel()
    low, high = np.percentile(ratios, (25, 75))
    return "keep" if low > 1.01 else "revert" if high < 0.99 else "no difference"


def test_starter_is_not_solved_and_solution_is(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = nbformat.read(repository / "notebooks/13_scoreboard.ipynb", as_version=4).cells
    starter = next(c.source for c in cells if "exercise-13.1" in c.metadata.get("tags", []))
    exec(starter, {"check": check})
    assert capsys.readouterr().out == "Exercise 13.1: not solved yet.\n"
    exec(solution_text("13.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 13.1: solved. 8 sets")


@pytest.mark.parametrize("seed", range(30))
def test_no_right_answer_depends_on_luck(seed: int) -> None:
    assert verdicts.fault(by(bootstrap), seed) is None


def test_another_interval_is_right_too() -> None:
    def middle_half(ratios: np.ndarray) -> tuple[float, float]:
        low, high = np.percentile(ratios, (25, 75))
        return float(low), float(high)

    assert verdicts.fault(by(middle_half)) is None


def test_there_are_as_many_sets_as_the_verdict_says() -> None:
    data = verdicts.fresh_data(np.random.default_rng(0))
    assert len(data) == verdicts.COUNT
    assert {d.verdict for d in data} == set(verdicts.VERDICTS)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda b, c: by(bootstrap)(c, b), "more than 1 is a gain"),
        (by(bootstrap, worth=0.0), "Sure, but not worth a more complicated kernel"),
        (by(lambda r: (float(np.median(r)),) * 2), "look at the interval"),
        (by(lambda r: (float(r.min()), float(r.max()))), "One hiccup is no loss"),
        (
            lambda b, c: "keep" if max(c) < min(b) else "revert" if min(c) > max(b) else "no difference",
            "half a percent",
        ),
        (unpaired, "Each round's two measurements belong together"),
        (lambda b, c: "faster", "A verdict is one of keep, revert, no difference"),
        (lambda b, c: b / c, "yours raises TypeError"),
    ],
)  # fmt: skip
def test_wrong_verdict_hears_what_it_overlooked(
    wrong: verdicts.Answer, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check("13.1", wrong)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 13.1: not solved yet. ")
    assert said in out
