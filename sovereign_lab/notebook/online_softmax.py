"""The online softmax in NumPy: a table of its steps, and the scores that are hardest on it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sovereign_lab.notebook.table import Table


def steps(scores: np.ndarray, values: np.ndarray) -> Table:
    """Position by position: maximum, correction, weight, and the running sums. scores [n], values [n], float32."""
    largest, total, output = np.float32(-np.inf), np.float32(0), np.float32(0)
    rows = []
    for score, value in zip(scores, values, strict=True):
        now = max(largest, score)
        correction, weight = np.exp(largest - now), np.exp(score - now)
        total, output = total * correction + weight, output * correction + weight * value
        largest = now
        numbers = (score, largest, correction, weight, total, output, output / total)
        rows.append([f"{x:.4g}" for x in numbers])
    return Table(
        ["score", "largest so far", "correction", "weight", "sum", "output", "output / sum"], rows
    )


def orders(n: int) -> dict[str, np.ndarray]:
    """Scores float32 [n] by what makes them hard; some would overflow without the maximum."""
    noise = np.random.default_rng(1).standard_normal(n).astype(np.float32) * 10
    giant = noise.copy()
    giant[n // 3] = 150
    return {
        "always a new maximum": np.sort(noise) + np.float32(100),
        "never a new maximum": np.sort(noise)[::-1] + np.float32(100),
        "all equal": np.full(n, 100, np.float32),
        "one giant": giant,
    }


# ---- exercise 11.1: attention over chunks that are used again ----

Pairs = Iterator[tuple[np.ndarray, np.ndarray]]
HEAD_DIM = 7
OVERWRITTEN = 1000.0  # what the values of a chunk become once it has been used
NEVER = -np.inf
# What makes a case hard, and the scores of its chunks.
CHUNKS: dict[str, list[list[float]]] = {
    "one chunk": [[0.5, -1, 2]],
    "two chunks, the larger scores first": [[3, 2, 2.5], [1, -1]],
    "two chunks, the larger scores last": [[1, -1], [3, 2, 2.5]],
    "scores above 100": [[101, 140], [150, 149, 120], [90]],
    "scores below -200": [[-210, -205], [-201]],
    "a masked position among others": [[1, NEVER, 2], [0.5, NEVER]],
    "a masked chunk at the end": [[1, 2], [NEVER, NEVER]],
    "a masked chunk at the start": [[NEVER, NEVER], [1, 2], [3]],
    "chunks of one position, always a new maximum": [[float(i)] for i in range(40)],
}


def fault(answer: Callable[[Pairs], Any]) -> str | None:
    """What is wrong with an `attend` of exercise 11.1: None for nothing, "" where it is still the starter."""
    rng = np.random.default_rng(3)
    for name, lists in CHUNKS.items():
        chunks = [np.array(scores, np.float32) for scores in lists]
        values = [rng.standard_normal((len(s), HEAD_DIM), np.float32) for s in chunks]
        scores = np.concatenate(chunks).astype(np.float64)
        weights = np.exp(scores - scores.max())
        expected = weights @ np.concatenate(values) / weights.sum()
        try:
            with np.errstate(all="ignore"):
                got = answer(_used_again(chunks, values))
        except Exception as error:
            return f"{name}: your function raises {type(error).__name__}: {error}"
        if got is None:
            return ""
        out = np.asarray(got, np.float64)
        if out.shape != expected.shape:
            return (
                f"{name}: the output has the shape {out.shape}, and should have {expected.shape}."
            )
        if not np.isfinite(out).all():
            return f"{name}: the output is {out[0]:g}; which exponent was not finite?"
        if np.allclose(out, OVERWRITTEN):
            return f"{name}: the output is made of a chunk that has been overwritten; keep none."
        if np.abs(out - expected).max() > 1e-4:
            return f"{name}: the output begins {out[0]:.5g}, and should begin {expected[0]:.5g}."
    return None


def _used_again(scores: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> Pairs:
    """The chunks one by one, all in the same two buffers, which hold rubbish in the end."""
    longest = max(map(len, scores))
    score_buffer = np.empty(longest, np.float32)
    value_buffer = np.empty((longest, HEAD_DIM), np.float32)
    for s, v in zip(scores, values, strict=True):
        score_buffer[: len(s)], value_buffer[: len(s)] = s, v
        yield score_buffer[: len(s)], value_buffer[: len(s)]
        score_buffer[:], value_buffer[:] = -7, OVERWRITTEN
