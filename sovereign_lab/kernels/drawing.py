"""What the op `sample` must draw, in NumPy and float64: the truth that its kernels are tested against."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def random_bits(seed: int, position: int | np.ndarray) -> np.ndarray:
    """The 32 random bits of a position in the sequence of a seed, uint32; as kernels/include/random.cuh has them."""
    counter = np.atleast_1d(np.asarray(position)).astype(np.uint32)
    start = _mixed(np.array([seed & 0xFFFFFFFF], np.uint32) + np.uint32(0x9E3779B9))
    return _mixed(start + counter)


def _mixed(x: np.ndarray) -> np.ndarray:
    """The hash lowbias32 (hash-prospector), over an array of uint32, which wraps as CUDA's unsigned does."""
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x21F0AAAD)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0xD35A2D97)
    return x ^ x >> np.uint32(15)


def uniform(seed: int, position: int) -> float:
    """`random_bits` over 2^32: in [0, 1)."""
    return float(random_bits(seed, position)[0]) / 2.0**32


def kept(logits: np.ndarray, top_p: float) -> tuple[np.ndarray, Floats]:
    """The ids that top_p keeps, likeliest first and of equals the lowest, and the running sums of all up to there.

    `logits` float32 [vocab]. top_p = 1 keeps all, 0 the likeliest. NaN is taken for -inf.
    """
    scores = np.where(np.isnan(logits), -np.inf, logits.astype(np.float64))
    order = np.argsort(-scores, kind="stable")
    exponentials = np.exp(scores[order] - scores[order[0]])
    sums = np.cumsum(exponentials / exponentials.sum())
    count = len(order) if top_p >= 1 else int(np.searchsorted(sums, top_p)) + 1
    return order[:count], sums


def shares(logits: np.ndarray, temperature: float, top_p: float) -> tuple[np.ndarray, Floats]:
    """The ids that can be drawn, ascending, and the probability of each.

    The temperature divides the logits of what top_p kept, as in llama.cpp's chain.
    """
    ids = np.sort(kept(logits, top_p)[0])
    scores = np.where(np.isnan(logits[ids]), -np.inf, logits[ids].astype(np.float64))
    exponentials = np.exp((scores - scores.max()) / temperature)
    return ids, exponentials / exponentials.sum()


def drawn(logits: np.ndarray, temperature: float, top_p: float, seed: int, position: int) -> int:
    """The token that the kept ones' probabilities, laid end to end in the order of ids, have at `uniform`."""
    ids, probabilities = shares(logits, temperature, top_p)
    ends = np.cumsum(probabilities)
    return int(ids[np.searchsorted(ends, uniform(seed, position) * ends[-1], side="right")])


def margin(logits: np.ndarray, temperature: float, top_p: float, seed: int, position: int) -> float:
    """How far a decision lies from falling otherwise, as a probability: a sum from top_p, the draw from an end.

    A kernel that computes in FP32 may decide otherwise only where this is about its rounding, 1e-7.
    """
    ends = np.cumsum(shares(logits, temperature, top_p)[1])
    draw = np.abs(ends - uniform(seed, position))[:-1].min(initial=1.0)
    if not 0 < top_p < 1:
        return float(draw)
    return float(min(draw, np.abs(kept(logits, top_p)[1] - top_p).min()))
