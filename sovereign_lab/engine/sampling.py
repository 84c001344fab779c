"""How a token is chosen from logits, with the meaning that llama.cpp gives each choice, and the sampler on the host.

The order is that of its default chain: repetition penalty, top-k, top-p, min-p, temperature, a draw.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt

from sovereign_lab.errors import LabError

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class Filters(TypedDict, total=False):
    """The choices of `Sampling` that an engine takes as keywords beside temperature and seed."""

    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_window: int


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen; by default the most likely one.

    `temperature` divides the logits before the draw; 0 takes the most likely token. `top_k` keeps that many
    tokens, the likeliest; 0 keeps all. `top_p` keeps the fewest likeliest tokens whose probabilities sum to at
    least top_p; 1 keeps all. `min_p` keeps tokens at least min_p times as likely as the likeliest; 0 keeps all.
    `repeat_penalty` divides the positive logits of the last `repeat_window` tokens, those of the prompt
    included, and multiplies the negative ones; 1 changes nothing. `seed` starts the host's generator; on the
    device its low 32 bits are hashed with each position. Raises LabError for a value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_window: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for fits, expected, value in (
            (
                0 <= self.temperature < math.inf,
                "A temperature is 0 (always the most likely token) or more",
                self.temperature,
            ),
            (self.top_k >= 0, "top_k is 0 (all tokens) or a number of tokens", self.top_k),
            (0 <= self.top_p <= 1, "top_p is a probability from 0 to 1 (all tokens)", self.top_p),
            (0 <= self.min_p <= 1, "min_p is a share from 0 (all tokens) to 1", self.min_p),
            (
                0 < self.repeat_penalty < math.inf,
                "A repetition penalty is above 0, and 1 changes nothing",
                self.repeat_penalty,
            ),
            (self.repeat_window >= 0, "repeat_window is 0 tokens or more", self.repeat_window),
            (self.seed >= 0, "A seed is a whole number of 0 or more", self.seed),
        ):
            if not fits:
                raise LabError(f"{expected}; got {value}.")

    @property
    def needs(self) -> Literal["argmax", "sample", "host"]:
        """The op that finds the token on the device, or "host": what no kernel of ours can do."""
        if self.repeat_penalty != 1 and self.repeat_window != 0:
            return "host"
        if self.temperature == 0:
            return "argmax"
        return "sample" if self.top_k == 0 and self.min_p == 0 else "host"


class Sampler:
    """Chooses tokens by `sampling` with one generator, seeded once."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def pick(self, logits: np.ndarray, history: Sequence[int]) -> int:
        """One token id from logits float32 [vocab] and the tokens before it.

        Raises LabError for logits without a finite maximum: a kernel gave wrong values.
        """
        scores = penalised(logits, history, self.sampling)
        if self.sampling.temperature == 0:
            return int(np.argmax(scores))
        ids, probabilities = candidates(scores, self.sampling)
        sums = np.cumsum(probabilities)
        return int(ids[np.searchsorted(sums, self._random.random() * sums[-1], side="right")])


def penalised(logits: np.ndarray, history: Sequence[int], sampling: Sampling) -> Floats:
    """The logits with recent tokens made less likely, in float64 [vocab]; see `Sampler.pick`."""
    scores = logits.astype(np.float64)
    if not np.isfinite(scores.max()):
        raise LabError(
            f"The highest logit is {scores.max()}, so no token can be chosen: a kernel gave wrong values."
        )
    window = min(sampling.repeat_window, len(history))
    recent = np.unique(np.asarray(history[len(history) - window :], np.int64))
    penalty = sampling.repeat_penalty
    # By the sign: dividing a negative logit would make its token more likely.
    scores[recent] = np.where(
        scores[recent] > 0, scores[recent] / penalty, scores[recent] * penalty
    )
    return scores


def candidates(scores: Floats, sampling: Sampling) -> tuple[Ids, Floats]:
    """The tokens that may be drawn and their probabilities, from `penalised` logits [vocab].

    Where top-k or top-p are on, the likeliest comes first, and of equals the one with the lowest id.
    """
    ids = np.arange(scores.size)
    if 0 < sampling.top_k < scores.size:
        least = np.partition(scores, -sampling.top_k)[-sampling.top_k]
        ids = _likeliest_first(np.flatnonzero(scores >= least), scores)[: sampling.top_k]
    if sampling.top_p < 1:
        ids = _likeliest_first(ids, scores)
        sums = np.cumsum(_softmax(scores[ids]))
        ids = ids[: np.searchsorted(sums, sampling.top_p) + 1]  # the one that reaches top_p too
    if sampling.min_p > 0:
        ids = ids[scores[ids] >= scores.max() + math.log(sampling.min_p)]
    return ids, _softmax(scores[ids], sampling.temperature)


def _likeliest_first(ids: Ids, scores: Floats) -> Ids:
    return ids[np.argsort(-scores[ids], kind="stable")]


def _softmax(scores: Floats, temperature: float = 1.0) -> Floats:
    with np.errstate(over="ignore"):  # a temperature near 0 sends all but the highest to -inf
        exponentials = np.exp((scores - scores.max()) / temperature)
    return exponentials / exponentials.sum()
