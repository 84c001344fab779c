"""Inputs that tell a right kernel from a wrong one: odd sizes, varied data, and every output poisoned."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from sovereign_lab.kernels import drawing
from sovereign_lab.kernels.persistent_op import NOT_YET, PERSISTENT_OP, STAMPS, message_words
from sovereign_lab.kernels.registry import Op
from sovereign_lab.kernels.tile_ops import SPLIT
from sovereign_lab.models.quants import quantise_q4_0, split_q4_0
from sovereign_lab.models.tiles import tile_q4_0, tile_q8_0

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


def _embedding_tokens(rng: Random, kv: type) -> Iterator[Case]:
    for vocab, dim, position, count in ((7, 96, 0, 1), (50, 33, 3, 20)):
        yield {
            "table": _normal(rng, vocab, dim),
            "tokens": rng.integers(0, vocab, position + count + 2, np.int32),
            "position": _int1(position),
            "x": _poison(count, dim),
            "dim": dim,
            "count": count,
        }


def _rmsnorm_tokens(rng: Random, kv: type) -> Iterator[Case]:
    for dim, count in ((32, 1), (576, 3), (257, 33)):
        yield {
            "x": _normal(rng, count, dim) * 3,
            "weight": _normal(rng, dim),
            "y": _poison(count, dim).astype(np.float16),
            "dim": dim,
            "eps": np.float32(1e-5),
            "count": count,
        }


# Sizes that fill no tile of rows, tokens or depth, one that fills all, and one behind a full tile of each.
_GEMM_SHAPES = ((1, 1, 1, 0), (130, 3, 5, 1), (128, 2, 64, 0), (131, 5, 67, 1))


def _gemm_q4_0(rng: Random, kv: type) -> Iterator[Case]:
    for rows, n, count, accumulate in _GEMM_SHAPES:
        nibbles, scales = split_q4_0(_q4(rng, rows, n))
        yield {
            "nibbles": nibbles,
            "scales": scales,
            "x": _normal(rng, count, n * 32).astype(np.float16),
            "y": _normal(rng, count, rows) if accumulate else _poison(count, rows),
            "rows": rows,
            "blocks_per_row": n,
            "count": count,
            "accumulate": accumulate,
        }


def _rope_kv_tokens(rng: Random, kv: type) -> Iterator[Case]:
    for (heads, kv_heads, head_dim), position, count in zip(
        _HEADS, (0, 3, 0, 2, 5, 1), (1, 3, 2, 1, 4, 7), strict=True
    ):
        rope_dim = head_dim if head_dim != 96 else 64
        shape = (position + count + 2, kv_heads, head_dim)
        yield {
            "qkv": _normal(rng, count, (heads + 2 * kv_heads) * head_dim),
            "q": _poison(count, heads, head_dim).astype(np.float16),
            "keys": _cache(rng, *shape, kv, position),
            "values": _cache(rng, *shape, kv, position),
            "inv_freq": (1e4 ** (-np.arange(0, rope_dim, 2) / rope_dim)).astype(np.float32),
            "position": _int1(position),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "rope_dim": rope_dim,
            "count": count,
        }


def _attention_tokens(rng: Random, kv: type) -> Iterator[Case]:
    for (heads, kv_heads, head_dim), position, count in zip(
        _HEADS, (0, 0, 70, 3, 64, 5), (1, 65, 3, 2, 64, 17), strict=True
    ):
        heads, kv_heads = (8, 2) if heads == 32 else (heads, kv_heads)
        shape = (position + count + 3, kv_heads, head_dim)
        yield {
            "q": (_normal(rng, count, heads, head_dim) * 2).astype(np.float16),
            "keys": _cache(rng, *shape, kv, position + count),
            "values": _cache(rng, *shape, kv, position + count),
            "out": _poison(count, heads * head_dim).astype(np.float16),
            "position": _int1(position),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "count": count,
        }


def _swiglu_tokens(rng: Random, kv: type) -> Iterator[Case]:
    for n, count in ((1, 1), (255, 3), (96, 20)):
        yield {
            "gate_up": _normal(rng, count, 2 * n) * 8,
            "hidden": _poison(count, n).astype(np.float16),
            "n": n,
            "count": count,
        }


def _embedding_batch(rng: Random, kv: type) -> Iterator[Case]:
    for vocab, dim, context, positions in ((7, 96, 5, (4,)), (50, 33, 9, (3, 0, 9, 8))):
        count = len(positions)
        yield {
            "table": _normal(rng, vocab, dim),
            "tokens": rng.integers(0, vocab, (count, context + 1), np.int32),
            "position": np.array(positions, np.int32),
            "x": _poison(count, dim),
            "dim": dim,
            "context": context,
            "count": count,
        }


# Positions of the sequences, None for one that has ended: for each of _HEADS one shape.
_SEQUENCES = ((0,), (3, None, 1), (None, 70, 5), (0, 9), (33, None, 2, 4), (1, 7))


def _regions(
    rng: Random, context: int, kv_heads: int, head_dim: int, kv: type, filled: list[int]
) -> np.ndarray:
    """A cache a sequence, one behind the other."""
    return np.stack([_cache(rng, context, kv_heads, head_dim, kv, n) for n in filled])


def _positions(sequences: tuple[int | None, ...], context: int) -> dict[str, np.ndarray]:
    """One that has ended may stand behind its region: nothing may be read or written there."""
    return {
        "position": np.array([context if at is None else at for at in sequences], np.int32),
        "active": np.array([at is not None for at in sequences], np.int32),
    }


def _rope_kv_batch(rng: Random, kv: type) -> Iterator[Case]:
    for (heads, kv_heads, head_dim), sequences in zip(_HEADS, _SEQUENCES, strict=True):
        rope_dim = head_dim if head_dim != 96 else 64
        count, filled = len(sequences), [at or 0 for at in sequences]
        context = max(filled) + 2
        shape = (context, kv_heads, head_dim)
        yield {
            "qkv": _normal(rng, count, (heads + 2 * kv_heads) * head_dim),
            "q": _poison(count, heads, head_dim),
            "keys": _regions(rng, *shape, kv, filled),
            "values": _regions(rng, *shape, kv, filled),
            "inv_freq": (1e4 ** (-np.arange(0, rope_dim, 2) / rope_dim)).astype(np.float32),
            **_positions(sequences, context),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "rope_dim": rope_dim,
            "context": context,
            "count": count,
        }


def _attention_batch(rng: Random, kv: type) -> Iterator[Case]:
    for (heads, kv_heads, head_dim), sequences in zip(_HEADS, _SEQUENCES, strict=True):
        heads, kv_heads = (8, 2) if heads == 32 else (heads, kv_heads)
        count, filled = len(sequences), [0 if at is None else at + 1 for at in sequences]
        context = max(filled) + 2
        shape = (context, kv_heads, head_dim)
        yield {
            "q": _normal(rng, count, heads, head_dim) * 2,
            "keys": _regions(rng, *shape, kv, filled),
            "values": _regions(rng, *shape, kv, filled),
            "out": _poison(count, heads * head_dim).astype(np.float16),
            **_positions(sequences, context),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "context": context,
            "count": count,
        }


def _logits_batch(rng: Random, kv: type) -> Iterator[Case]:
    for vocab, dim, count in ((1, 32, 1), (131, 96, 3), (67, 36, 8), (130, 64, 21)):
        yield {
            "W": _normal(rng, vocab, dim),
            "x": _normal(rng, count, dim).astype(np.float16),
            "y": _poison(count, vocab),
            "vocab": vocab,
            "dim": dim,
            "count": count,
        }


def _argmax_batch(rng: Random, kv: type) -> Iterator[Case]:
    for vocab, count in ((1, 1), (31, 5), (1025, 2), (5000, 3)):
        logits = _normal(rng, count, vocab) - 5
        if vocab == 5000:  # the first of equal ones, wherever the threads found them
            logits[1, [2900, 700, 1333]] = 2
        yield {
            "logits": logits,
            "best": np.full(count, -1, np.int32),
            "vocab": vocab,
            "count": count,
        }


def _advance_batch(rng: Random, kv: type) -> Iterator[Case]:
    # One goes on, one has ended, one takes a token that ends texts, one its last token; then more than a warp.
    for position, active, last, following in (
        ([2, 3, 4, 5], [1, 0, 1, 1], [8, 8, 8, 6], [70, 71, 98, 73]),
        ([0] * 33, [1] * 32 + [0], [1] * 16 + [3] * 17, [97] * 33),
    ):
        count = len(position)
        yield {
            "following": np.array(following, np.int32),
            "best": rng.integers(0, 90, count, np.int32),
            "ends": np.array([99, 98], np.int32),
            "last": np.array(last, np.int32),
            "tokens": rng.integers(0, 90, (count, 9), np.int32),
            "argmaxes": np.full((count, 9), -1, np.int32),
            "position": np.array(position, np.int32),
            "active": np.array(active, np.int32),
            "ends_count": 2,
            "context": 8,
            "count": count,
        }


# How near a tie an activation may lie, in levels of int8: FP32, and a GPU's approximate division, are off by far less.
_TIE = 2e-3


def _clear_of_ties(x: np.ndarray, norm: np.ndarray | float = 1) -> np.ndarray:
    """x, moved where rounding x * norm to int8 could fall either way; of several blocks of 32 one is made zero."""
    x = x.copy()
    x[32:64] = 0
    norms = np.broadcast_to(np.float32(norm), x.shape).reshape(-1, 32)
    blocks = x.reshape(-1, 32) * norms
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127 + np.float32(1e-30)
    below = np.floor(blocks / scale)
    tie = np.abs(blocks / scale - below - 0.5) < _TIE
    return np.where(tie, (below + 0.25) * scale / norms, x.reshape(-1, 32)).reshape(-1)


def _q8_tiles(rng: Random, rows: int, blocks_per_row: int) -> np.ndarray:
    weights = _normal(rng, rows, blocks_per_row * 32) * np.float32(0.05)
    return tile_q8_0(quantize(weights, GGMLQuantizationType.Q8_0))


# Odd rows and blocks; fewer pairs of blocks than warps, and more than they take at a time.
_TILE_SHAPES = ((1, 1), (6, 2), (7, 18), (33, 33), (130, 3), (3, 101))


def _gemv_tiles(rng: Random, kv: type) -> Iterator[Case]:
    for rows, n in _TILE_SHAPES:
        yield {
            "W": tile_q4_0(_q4(rng, rows, n)),
            "x": _clear_of_ties(_normal(rng, n * 32) * 3),
            "y": _poison(rows),
            "rows": rows,
            "blocks_per_row": n,
        }


def _gemv_add(rng: Random, kv: type) -> Iterator[Case]:
    for rows, n in _TILE_SHAPES:
        yield {
            "W": tile_q4_0(_q4(rng, rows, n)),
            "y": _clear_of_ties(_normal(rng, n * 32) * 3),
            "x": _normal(rng, rows),
            "rows": rows,
            "blocks_per_row": n,
        }


def _ffn_tiles(rng: Random, kv: type) -> Iterator[Case]:
    for rows, n in _TILE_SHAPES:
        yield {
            "W": tile_q4_0(_q4(rng, 2 * rows, n)),
            "x": _clear_of_ties(_normal(rng, n * 32) * 3),
            "hidden": _poison(rows),
            "rows": rows,
            "blocks_per_row": n,
        }


def _logits_q8_0(rng: Random, kv: type) -> Iterator[Case]:
    for vocab, n in _TILE_SHAPES:
        yield {
            "W": _q8_tiles(rng, vocab, n),
            "x": _clear_of_ties(_normal(rng, n * 32) * 3),
            "y": _poison(vocab),
            "vocab": vocab,
            "blocks_per_row": n,
        }


def _normed(rng: Random, blocks_per_row: int) -> tuple[Case, Case]:
    """What a kernel with a norm takes before its other arguments and behind them; an eps that cannot be left out."""
    norm = _normal(rng, blocks_per_row * 32)
    x = _clear_of_ties(_normal(rng, blocks_per_row * 32) * 3, norm)
    return {"x": x, "norm": norm}, {"blocks_per_row": blocks_per_row, "eps": np.float32(0.1)}


def _norm_ffn(rng: Random, kv: type) -> Iterator[Case]:
    for rows, n in _TILE_SHAPES:
        before, behind = _normed(rng, n)
        weights = tile_q4_0(_q4(rng, 2 * rows, n))
        yield {"W": weights, **before, "hidden": _poison(rows), "rows": rows, **behind}


def _norm_logits(rng: Random, kv: type) -> Iterator[Case]:
    for vocab, n in _TILE_SHAPES:
        before, behind = _normed(rng, n)
        weights = _q8_tiles(rng, vocab, n)
        yield {"W": weights, **before, "y": _poison(vocab), "vocab": vocab, **behind}


def _norm_qkv(rng: Random, kv: type) -> Iterator[Case]:
    for (heads, kv_heads, head_dim), position, n in zip(
        _HEADS, (0, 1, 5, 6, 2, 3), (1, 3, 2, 18, 33, 5), strict=True
    ):
        heads, kv_heads = (8, 1) if heads == 32 else (heads, kv_heads)
        rope_dim = head_dim if head_dim != 96 else 64
        before, behind = _normed(rng, n)
        yield {
            "W": tile_q4_0(_q4(rng, (heads + 2 * kv_heads) * head_dim, n)),
            **before,
            "inv_freq": (1e4 ** (-np.arange(0, rope_dim, 2) / rope_dim)).astype(np.float32),
            "position": _int1(position),
            "q": _poison(heads, head_dim),
            "keys": _cache(rng, 7, kv_heads, head_dim, kv, position),
            "values": _cache(rng, 7, kv_heads, head_dim, kv, position),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "rope_dim": rope_dim,
            **behind,
        }


# heads, kv_heads, head_dim, length, context: groups that fill a bundle of eight, do not, and need a second one; lengths
# that end in a warp's positions, with them, with a split and one behind it; splits that no position is in.
_SPLITS = (
    (4, 4, 32, 1, 3), (6, 2, 64, 40, 600), (2, 1, 128, 256, 300), (8, 1, 64, 257, 257), (9, 1, 48, 64, 70),
    (3, 1, 96, 530, 769),
)  # fmt: skip


def _attention_split(rng: Random, kv: type) -> Iterator[Case]:
    for heads, kv_heads, head_dim, length, context in _SPLITS:
        splits = -(-context // SPLIT)
        yield {
            "q": _normal(rng, heads, head_dim) * 2,
            "keys": _cache(rng, context, kv_heads, head_dim, kv, length),
            "values": _cache(rng, context, kv_heads, head_dim, kv, length),
            "parts": _poison(splits, heads, head_dim),
            "softmax": _poison(splits, heads, 2),
            "position": _int1(length - 1),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "context": context,
        }


def _attention_merge(rng: Random, kv: type) -> Iterator[Case]:
    for heads, head_dim, split, position, splits in (
        (1, 32, 256, 255, 1), (9, 64, 256, 256, 3), (4, 128, 7, 41, 9), (3, 48, 32, 2000, 63),
    ):  # fmt: skip
        parts, softmax = _poison(splits, heads, head_dim), _poison(splits, heads, 2)
        there = position // split + 1
        parts[:there] = _normal(rng, there, heads, head_dim)
        softmax[:there, :, 0] = _normal(rng, there, heads) * 5
        softmax[:there, :, 1] = rng.uniform(1, split, (there, heads))
        yield {
            "parts": parts,
            "softmax": softmax,
            "out": _poison(heads, head_dim),
            "position": _int1(position),
            "heads": heads,
            "head_dim": head_dim,
            "split": split,
        }


@dataclass(frozen=True)
class _Tiny:
    """A model of one launch, and where it starts. `ring_bytes` is filled several times over."""

    layers: int
    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    vocab: int
    blocks: int
    position: int
    count: int
    given: int
    turn: int
    ring_bytes: int
    advance: int = 1


# The best becomes the next token, an odd number of pairs; tokens that are given, two layers, a vector of three blocks;
# more blocks than tiles; three splits of attention, two bundles of heads, and a token that the caller chooses.
_TINY = (
    _Tiny(1, 64, 96, 2, 1, 32, 32, 50, blocks=2, position=0, count=2, given=1, turn=0, ring_bytes=2416),
    _Tiny(2, 96, 64, 3, 3, 32, 32, 37, blocks=3, position=3, count=2, given=9, turn=4, ring_bytes=4352),
    _Tiny(1, 32, 32, 1, 1, 32, 32, 7, blocks=9, position=1, count=1, given=2, turn=2, ring_bytes=2176),
    _Tiny(1, 64, 32, 9, 1, 64, 48, 21, blocks=3, position=290, count=1, given=1, turn=5, ring_bytes=10496, advance=0),
)  # fmt: skip
_TINY_ROOM = 9  # positions behind those of the launch
# The best logit and the next lie apart by so much of the logits' root mean square: more than rounding moves them.
_MARGIN = 0.2


def _persistent(rng: Random, kv: type) -> Iterator[Case]:
    for tiny in _TINY:
        case = _tiny_model(rng, kv, tiny)
        while not _clear_of_rivals(case):
            case["tokens"] = _tiny_tokens(rng, tiny)
        yield case


def _tiny_tokens(rng: Random, t: _Tiny) -> np.ndarray:
    return rng.integers(0, t.vocab, t.position + t.count + _TINY_ROOM + 1, np.int32)


def _tiny_model(rng: Random, kv: type, t: _Tiny) -> Case:
    q_dim, kv_dim, context = (
        t.heads * t.head_dim,
        t.kv_heads * t.head_dim,
        t.position + t.count + _TINY_ROOM,
    )
    shapes = (
        (q_dim + 2 * kv_dim, t.dim),
        (t.dim, q_dim),
        (2 * t.ffn_dim, t.dim),
        (t.dim, t.ffn_dim),
    )
    layers = [
        np.concatenate([tile_q4_0(_q4(rng, rows, cols // 32)).reshape(-1) for rows, cols in shapes])
        for _ in range(t.layers)
    ]
    norms = _normal(rng, 2 * t.layers + 1, t.dim)
    words = message_words(t.dim, t.ffn_dim, t.heads, t.kv_heads, t.head_dim, context)
    caches = [
        np.stack([_cache(rng, context, t.kv_heads, t.head_dim, kv, t.position) for _ in layers])
        for _ in range(2)
    ]
    return {
        "matrices": np.stack(layers),
        "head": _q8_tiles(rng, t.vocab, t.dim // 32),
        "norms": norms,
        "embedding": np.stack([_clear_of_ties(_normal(rng, t.dim) * 3, norms[0]) for _ in range(t.vocab)]),
        "inv_freq": (1e4 ** (-np.arange(0, t.rope_dim, 2) / t.rope_dim)).astype(np.float32),
        "keys": caches[0],
        "values": caches[1],
        "messages": np.full((2, t.layers, words), NOT_YET, np.uint32),
        "bests": np.full((3, t.blocks, 2), NOT_YET, np.uint32),
        "logits": _poison(t.vocab),
        "best": _int1(-1),
        "tokens": _tiny_tokens(rng, t),
        "argmaxes": np.full(context + 1, -1, np.int32),
        "position": _int1(t.position),
        "given": _int1(t.given),
        "turn": _int1(t.turn),
        "stamps": np.zeros(STAMPS * (t.layers + 1), np.int64),
        **{name: getattr(t, name) for name in ("layers", "dim", "ffn_dim", "heads", "kv_heads", "head_dim")},
        "rope_dim": t.rope_dim,
        "vocab": t.vocab,
        "context": context,
        "eps": np.float32(0.1),
        "count": t.count,
        "advance": t.advance,
        "ring_bytes": t.ring_bytes,
    }  # fmt: skip


def _clear_of_rivals(case: Case) -> bool:
    """Whether no rounding can change which token is the best, at each position."""
    for count in range(1, case["count"] + 1):
        logits = PERSISTENT_OP.reference(case | {"count": count})["logits"]
        second, first = np.sort(logits)[-2:]
        if first - second < _MARGIN * np.sqrt(np.mean(logits**2)):
            return False
    return True


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
    "embedding_tokens": _embedding_tokens,
    "rmsnorm_tokens": _rmsnorm_tokens,
    "gemm_q4_0": _gemm_q4_0,
    "rope_kv_tokens": _rope_kv_tokens,
    "attention_tokens": _attention_tokens,
    "swiglu_tokens": _swiglu_tokens,
    "embedding_batch": _embedding_batch,
    "gemm_q4_0_batch": _gemm_q4_0,
    "rope_kv_batch": _rope_kv_batch,
    "attention_batch": _attention_batch,
    "logits_batch": _logits_batch,
    "argmax_batch": _argmax_batch,
    "advance_batch": _advance_batch,
    "gemv_tiles": _gemv_tiles,
    "ffn_tiles": _ffn_tiles,
    "logits_q8_0": _logits_q8_0,
    "norm_qkv": _norm_qkv,
    "gemv_add": _gemv_add,
    "norm_ffn": _norm_ffn,
    "norm_logits": _norm_logits,
    "attention_split": _attention_split,
    "attention_merge": _attention_merge,
    "persistent": _persistent,
}
