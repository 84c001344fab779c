"""Inputs that tell a right kernel from a wrong one: odd sizes, varied data, and every output poisoned."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sovereign_lab.kernels import drawing
from sovereign_lab.kernels.registry import Op
from sovereign_lab.models.quants import quantise_q4_0

Case = dict[str, Any]  # parameter name -> NumPy array or scalar, in the order of the signature
Random = np.random.Generator


def cases(op: Op, rng: Random, kv: type = np.float16) -> Iterator[Case]:
    """Arguments for `op`, at several shapes, with fresh data; outputs that are not inputs hold NaN or -1.

    `kv` is the type of the KV cache, where the op has one.
    """
    return _CASES[op.name](rng, kv)


def _normal(rng: Random, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _poison(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def _q4(rng: Random, rows: int, blocks_per_row: int) -> np.ndarray:
    return quantise_q4_0(_normal(rng, rows, blocks_per_row * 32) * np.float32(0.05))


def _int1(value: int) -> np.ndarray:
    return np.array([value], np.int32)


def _embedding(rng: Random, kv: type) -> Iterator[Case]:
    for vocab, dim, position in ((7, 96, 0), (50, 576, 3), (11, 33, 5)):
        tokens = rng.integers(0, vocab, 8, np.int32)
        yield {
            "table": _normal(rng, vocab, dim),
            "tokens": tokens,
            "position": _int1(position),
            "x": _poison(dim),
            "dim": dim,
        }


def _rmsnorm(rng: Random, kv: type) -> Iterator[Case]:
    for dim, eps in ((32, 1e-5), (576, 1e-5), (2048, 1e-6), (33, 1e-5), (257, 1e-2)):
        yield {
            "x": _normal(rng, dim) * 3,
            "weight": _normal(rng, dim),
            "y": _poison(dim),
            "dim": dim,
            "eps": np.float32(eps),
        }


# Rows that do not fill a block of four warps; rows of one block, of 18 (SmolLM2), of more than 32, of more than 256.
_GEMV_SHAPES = ((1, 1), (5, 2), (7, 18), (33, 33), (130, 3), (6, 70), (3, 300))


def _gemv(rng: Random, kv: type) -> Iterator[Case]:
    for rows, n in _GEMV_SHAPES:
        yield {
            "W": _q4(rng, rows, n),
            "x": _normal(rng, n * 32),
            "y": _poison(rows),
            "rows": rows,
            "blocks_per_row": n,
        }


def _ffn_swiglu(rng: Random, kv: type) -> Iterator[Case]:
    for rows, n in _GEMV_SHAPES:
        yield {
            "W_gate": _q4(rng, rows, n),
            "W_up": _q4(rng, rows, n),
            "x": _normal(rng, n * 32) * 3,
            "hidden": _poison(rows),
            "rows": rows,
            "blocks_per_row": n,
        }


# heads, kv_heads, head_dim: plain multi-head, several grouped ratios, every head size.
_HEADS = ((4, 4, 32), (9, 3, 64), (32, 4, 64), (4, 2, 128), (3, 1, 96), (2, 1, 48))


def _cache(
    rng: Random, context: int, kv_heads: int, head_dim: int, kv: type, filled: int
) -> np.ndarray:
    """Filled up to a position; behind it NaN, which must never be read."""
    cache: np.ndarray = np.full((context, kv_heads, head_dim), np.nan, kv)
    cache[:filled] = _normal(rng, filled, kv_heads, head_dim)
    return cache


def _rope_kv(rng: Random, kv: type) -> Iterator[Case]:
    for (heads, kv_heads, head_dim), position in zip(_HEADS, (0, 1, 5, 6, 2, 3), strict=True):
        rope_dim = head_dim if head_dim != 96 else 64
        inv_freq = (1e4 ** (-np.arange(0, rope_dim, 2) / rope_dim)).astype(np.float32)
        shape = (7, kv_heads, head_dim)
        yield {
            "q": _normal(rng, heads, head_dim),
            "k": _normal(rng, kv_heads, head_dim),
            "v": _normal(rng, kv_heads, head_dim),
            "keys": _cache(rng, *shape, kv, position),
            "values": _cache(rng, *shape, kv, position),
            "inv_freq": inv_freq,
            "position": _int1(position),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "rope_dim": rope_dim,
        }


def _attention(rng: Random, kv: type) -> Iterator[Case]:
    for (heads, kv_heads, head_dim), length in zip(_HEADS, (1, 2, 7, 40, 33, 70), strict=True):
        context = length + 3
        shape = (context, kv_heads, head_dim)
        yield {
            "q": _normal(rng, heads, head_dim) * 2,
            "keys": _cache(rng, *shape, kv, length),
            "values": _cache(rng, *shape, kv, length),
            "scores": _poison(heads, context),
            "out": _poison(heads, head_dim),
            "position": _int1(length - 1),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "context": context,
        }


def _swiglu(rng: Random, kv: type) -> Iterator[Case]:
    for n in (1, 255, 257, 1536):
        yield {"gate": _normal(rng, n) * 20, "up": _normal(rng, n), "hidden": _poison(n), "n": n}


def _add(rng: Random, kv: type) -> Iterator[Case]:
    for n in (1, 255, 257, 576):
        yield {"x": _normal(rng, n), "y": _normal(rng, n), "n": n}


def _logits(rng: Random, kv: type) -> Iterator[Case]:
    for vocab, dim in ((1, 32), (130, 576), (67, 33), (5, 100)):
        yield {
            "W": _normal(rng, vocab, dim),
            "x": _normal(rng, dim),
            "y": _poison(vocab),
            "vocab": vocab,
            "dim": dim,
        }


def _argmax(rng: Random, kv: type) -> Iterator[Case]:
    for vocab in (1, 31, 1025, 49152):
        yield {"logits": _normal(rng, vocab) - 5, "best": _int1(-1), "vocab": vocab}
    ties = np.full(3000, -1, np.float32)  # the first of equal ones, wherever the threads found them
    ties[[2900, 700, 1333]] = 2
    yield {"logits": ties, "best": _int1(-1), "vocab": 3000}


def _sample(rng: Random, kv: type) -> Iterator[Case]:
    ties = np.full(3000, -1, np.float32)
    ties[[2900, 700, 1333]] = 2
    forbidden = _normal(rng, 1025)
    forbidden[rng.integers(0, 1025, 700)] = -np.inf
    forbidden[7] = np.nan
    for logits, temperature, top_p in (
        (_normal(rng, 1), 0.8, 0.95),
        (_normal(rng, 31), 1.5, 0.5),
        (_normal(rng, 1025) * 3, 1, 1),
        (_normal(rng, 1025) * 3, 0.8, 0),
        (_normal(rng, 5000) * 4 + 20, 0.8, 0.95),
        (_normal(rng, 5000) * 4 - 90, 0.8, 0.6),
        (_normal(rng, 5000) * 0.1, 1, 0.7),  # flat: thousands are kept
        (_normal(rng, 150_000) * 3, 0.3, 0.9),
        (np.zeros(3000, np.float32), 1, 0.5),  # equals: the lowest ids are kept
        (ties, 2, 0.01),
        (forbidden, 1.2, 0.99),
    ):
        yield _safe_draw(rng, logits, temperature, top_p)


def _safe_draw(rng: Random, logits: np.ndarray, temperature: float, top_p: float) -> Case:
    """A case that rounding cannot decide: top_p halfway between two sums, and a draw inside a token's share."""
    choice = np.array([temperature, top_p], np.float32)
    if 0 < top_p < 1:
        ids, sums = drawing.kept(logits, top_p)
        below = sums[len(ids) - 2] if len(ids) > 1 else 0.0
        choice[1] = (below + sums[len(ids) - 1]) / 2
    while True:
        seed, position = (int(i) for i in rng.integers(0, 2**31, 2))
        if drawing.margin(logits, float(choice[0]), float(choice[1]), seed, position) > 5e-7:
            break
    return {
        "logits": logits,
        "best": _int1(int(np.nanargmax(logits))),
        "choice": choice,
        "seed": _int1(seed),
        "position": _int1(position),
        "drawn": _int1(-1),
        "vocab": logits.size,
    }


def _advance(rng: Random, kv: type) -> Iterator[Case]:
    for position, given in ((0, 1), (0, 5), (3, 5), (4, 5), (6, 5)):
        tokens = rng.integers(0, 99, 9, np.int32)
        yield {
            "following": _int1(77),
            "best": _int1(78),
            "tokens": tokens,
            "argmaxes": np.full(9, -1, np.int32),
            "position": _int1(position),
            "given": _int1(given),
        }


_CASES: dict[str, Callable[[Random, type], Iterator[Case]]] = {
    "embedding": _embedding,
    "rmsnorm": _rmsnorm,
    "gemv_q4_0": _gemv,
    "rope_kv": _rope_kv,
    "attention": _attention,
    "swiglu": _swiglu,
    "ffn_swiglu": _ffn_swiglu,
    "add": _add,
    "logits": _logits,
    "argmax": _argmax,
    "sample": _sample,
    "advance": _advance,
}
