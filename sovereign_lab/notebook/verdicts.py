"""Exercise 13.1: a verdict from pairs of measurements, checked on data that nobody has seen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

VERDICTS = ("keep", "revert", "no difference")
COUNT = 8
Answer = Callable[[Sequence[float], Sequence[float]], str | None]


Rounds = tuple[np.ndarray, np.ndarray]
"""Milliseconds of base and of change, a round each."""


@dataclass(frozen=True)
class Data:
    """Rounds of base and change, ms each, with the right verdict, and what a wrong one has overlooked."""

    what: str
    rounds: Rounds
    verdict: str
    hint: str


def fault(answer: Answer, seed: int = 13) -> str | None:
    """What is wrong with an answer, "" where it is still the starter, None where every verdict is right."""
    for data in fresh_data(np.random.default_rng(seed)):
        try:
            got = answer(*(ms.tolist() for ms in data.rounds))
        except Exception as error:  # whatever a learner's code raises is theirs to read
            return f"{data.what}: yours raises {type(error).__name__}: {error}."
        if got is None:
            return ""
        if got not in VERDICTS:
            return f"A verdict is one of {', '.join(VERDICTS)}; yours was {got!r}."
        if got != data.verdict:
            return f"{data.what}: {data.verdict!r} is right, and yours said {got!r}. {data.hint}"
    return None


def fresh_data(rng: np.random.Generator) -> list[Data]:
    """Measurements of which the verdict is beyond doubt: 15 rounds each, but for the last with 9."""

    def rounds(gain: float, spread: float, count: int = 15) -> Rounds:
        base = 2.0 * (1 + spread * rng.uniform(-1, 1, count))
        return base, base / (gain * (1 + spread * rng.uniform(-1, 1, count)))

    def pairs(gains: Sequence[float]) -> Rounds:
        base = 2.0 * (1 + 0.002 * rng.uniform(-1, 1, len(gains)))
        return base, base / rng.permutation(np.asarray(gains))

    drift = np.linspace(1, 1.5, 15)
    base, change = rounds(1.05, 0.002)
    drifting = drift * base, drift * change
    hiccup = rounds(1.08, 0.002)
    hiccup[1][4] *= 6
    lucky = rounds(1.0, 0.001)
    lucky[0][7] *= 4
    return [
        Data("a gain of 20 %, hardly any spread", rounds(1.2, 0.002), "keep",
             "The ratio is base over change: more than 1 is a gain."),
        Data("a loss of 20 %, hardly any spread", rounds(1 / 1.2, 0.002), "revert",
             "The ratio is base over change: less than 1 is a loss."),
        Data("a gain of half a percent, hardly any spread", rounds(1.005, 0.0005), "no difference",
             "Sure, but not worth a more complicated kernel: the whole interval must lie past 1 %."),
        Data("a median gain of 4 %, but a third of the rounds lose 6 %",
             pairs([0.94] * 5 + [0.985] * 2 + [1.04] * 4 + [1.1] * 4), "no difference",
             "Draw such rounds again, and the median often falls on the other side: look at the interval."),
        Data("a gain of 5 % while the clock drifts by half", drifting, "keep",
             "Each round's two measurements belong together: take their ratio, then the median."),
        Data("a gain of 8 %, and one hiccup in the change", hiccup, "keep",
             "One hiccup is no loss: a median does not follow it, a mean does."),
        Data("no gain, and one hiccup in the base", lucky, "no difference",
             "One hiccup is no gain: a median does not follow it, a mean does."),
        Data("a loss of 3 % in 9 rounds", rounds(1 / 1.03, 0.002, 9), "revert",
             "3 % is more than 1 %, and the spread is far below it."),
    ]  # fmt: skip
