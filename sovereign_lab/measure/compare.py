"""Is one phase faster than another? Interleaved measurements, an interval, and a verdict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from sovereign_lab.engine import Engine
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.errors import LabError
from sovereign_lab.measure.timing import GREEDY, decode_ms

Verdict = Literal["keep", "revert", "no difference"]
# A change of less than this share is not worth a more complicated kernel, however sure one is of it.
WORTH = 0.01


@dataclass(frozen=True)
class Comparison:
    """`change` against `base`: milliseconds a forward pass, measured in turn, one pair a round.

    `speedup` is the median over the rounds of base / change; `low` and `high` bound it with 95 % confidence
    (bootstrap over the rounds).
    """

    base: str
    change: str
    device: str
    base_ms: tuple[float, ...]
    change_ms: tuple[float, ...]
    speedup: float
    low: float
    high: float

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Comparison":
        """From what JSON kept of one."""
        given: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()
        }
        return cls(**given)

    @property
    def verdict(self) -> Verdict:
        """keep or revert where the whole interval lies past 1 % of gain or loss."""
        if self.low > 1 + WORTH:
            return "keep"
        if self.high < 1 - WORTH:
            return "revert"
        return "no difference"

    def __str__(self) -> str:
        return (
            f"{self.change} against {self.base} on {self.device}: {np.median(self.base_ms):.3g} ms -> "
            f"{np.median(self.change_ms):.3g} ms a forward pass, {self.speedup:.3f} times as fast "
            f"(95 %: {self.low:.3f} to {self.high:.3f}, {len(self.base_ms)} rounds): {self.verdict}"
        )


def compare(
    engine: Engine,
    base: str,
    change: str,
    position: int = 16,
    tokens: int = 16,
    rounds: int = 11,
    sampling: Sampling = GREEDY,
) -> Comparison:
    """Measure phases `base` and `change` in turn on the engine's model and device.

    Each round times `tokens` forward passes from `position` on with both, the order alternating, so that a
    drift of clocks or load falls on both alike; tokens are chosen by `sampling`. Raises LabError for fewer than 5
    rounds, an unknown phase, or positions that the context does not have.
    """
    if rounds < 5:
        raise LabError(f"A verdict needs at least 5 rounds; {rounds} were asked for.")
    return in_turn(
        partial(decode_ms, engine.with_phase(base), position, tokens, sampling),
        partial(decode_ms, engine.with_phase(change), position, tokens, sampling),
        names=(f"phase {base}", f"phase {change}"),
        device=engine.device.properties.name,
        rounds=rounds,
    )


def in_turn(
    base: Callable[[], float],
    change: Callable[[], float],
    names: tuple[str, str],
    device: str,
    rounds: int,
) -> Comparison:
    """Measure two in turn after a warm-up of each, the order alternating from round to round; each returns its ms."""
    measures = (base, change)
    for measure in measures:
        measure()  # recording, clocks, caches
    pairs = np.empty((rounds, 2))
    for i in range(rounds):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            pairs[i, which] = measures[which]()
    speedup, low, high = median_interval(pairs[:, 0] / pairs[:, 1])
    base_ms, change_ms = (tuple(map(float, column)) for column in pairs.T)
    return Comparison(*names, device, base_ms, change_ms, speedup, low, high)


def median_interval(samples: np.ndarray, resamples: int = 4000) -> tuple[float, float, float]:
    """The median of some samples, and its 95 % interval by the bootstrap (Efron, 1979), seeded."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(samples, (resamples, len(samples)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(np.median(samples)), float(low), float(high)
