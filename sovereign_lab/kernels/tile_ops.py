"""The ops of a forward pass over weights in tiles, and those that are fused from them.

Activations go into a product as int8, a scale for every 32 of them. Attention is split over the positions.
"""

from collections.abc import Callable

import numpy as np

from sovereign_lab.kernels import FOLDER
from sovereign_lab.kernels.op import Arguments, Op, Variant
from sovereign_lab.models import reference
from sovereign_lab.models.tiles import pairs, untile_q4_0, untile_q8_0

Q8_PAIR_BYTES = 80  # sizeof(Q8Pair) in kernels/include/tiles.cuh
# kernels/include/split_attention.cuh: positions of a block, its warps, and the query heads that go together.
SPLIT, SPLIT_WARPS, BUNDLE = 256, 8, 8

Outputs = dict[str, np.ndarray]
Rounding = Callable[[np.ndarray], np.ndarray]


def _exact(x: np.ndarray) -> np.ndarray:
    return x


def _vector_bytes(a: Arguments) -> int:
    """Dynamic shared memory of a block that keeps the vector in int8."""
    return pairs(32 * a["blocks_per_row"]) * Q8_PAIR_BYTES


def split_blocks(heads: int, kv_heads: int, context: int) -> int:
    """The blocks of attention_split: one for each bundle of query heads in each split of the context."""
    return kv_heads * -(-(heads // kv_heads) // BUNDLE) * -(-context // SPLIT)


# ---- what each op must compute, from its arguments; `rounded` is what becomes of a product's input ----


def _normed(a: Arguments) -> np.ndarray:
    return reference.rmsnorm(a["x"], a["norm"], a["eps"])


def _product(a: Arguments, rows: int, x: np.ndarray) -> np.ndarray:
    return untile_q4_0(a["W"], rows, x.size) @ x


def _gemv(a: Arguments, rounded: Rounding) -> Outputs:
    return {"y": _product(a, a["rows"], rounded(a["x"]))}


def _gemv_add(a: Arguments, rounded: Rounding) -> Outputs:
    return {"x": a["x"] + _product(a, a["rows"], rounded(a["y"]))}


def _ffn(a: Arguments, x: np.ndarray) -> Outputs:
    both = _product(a, 2 * a["rows"], x)
    return {"hidden": reference.swiglu(both[0::2], both[1::2])}


def _logits(a: Arguments, x: np.ndarray) -> Outputs:
    return {"y": untile_q8_0(a["W"], a["vocab"], x.size) @ x}


def _norm_qkv(a: Arguments, rounded: Rounding) -> Outputs:
    heads, kv_heads, head_dim = a["heads"], a["kv_heads"], a["head_dim"]
    position = int(a["position"][0])
    qkv = _product(a, (heads + 2 * kv_heads) * head_dim, rounded(_normed(a)))
    q, k, v = np.split(qkv.reshape(-1, head_dim), [heads, heads + kv_heads])
    keys, values = a["keys"].copy(), a["values"].copy()
    keys[position], values[position] = reference.rope(k, position, a["inv_freq"]), v
    return {"q": reference.rope(q, position, a["inv_freq"]), "keys": keys, "values": values}


def _attention_split(a: Arguments) -> Outputs:
    """Splits behind the position are left as they are."""
    parts, softmax = a["parts"].copy(), a["softmax"].copy()
    length, group = int(a["position"][0]) + 1, a["heads"] // a["kv_heads"]
    scale = np.float32(np.log2(np.e) / np.sqrt(a["head_dim"]))
    for split, first in enumerate(range(0, length, SPLIT)):
        here = slice(first, min(first + SPLIT, length))
        k, v = (
            np.repeat(a[name][here].astype(np.float32), group, axis=1)
            for name in ("keys", "values")
        )
        scores = np.einsum("hd,phd->hp", a["q"], k) * scale
        largest = scores.max(axis=1)
        weights = np.exp2(scores - largest[:, None])
        total = weights.sum(axis=1)
        parts[split] = np.einsum("hp,phd->hd", weights, v) / total[:, None]
        softmax[split] = np.stack([largest, total], axis=1)
    return {"parts": parts, "softmax": softmax}


def _attention_merge(a: Arguments) -> Outputs:
    splits = int(a["position"][0]) // a["split"] + 1
    largest, total = np.moveaxis(a["softmax"][:splits], -1, 0)
    weights = total * np.exp2(largest - largest.max(axis=0))
    weighted = np.einsum("sh,shd->hd", weights, a["parts"][:splits])
    return {"out": weighted / weights.sum(axis=0)[:, None]}


def _columns(
    file: str, rows: int, teaches: str, rounded: Callable[[Arguments], Outputs]
) -> Variant:
    """A variant whose warps share the columns, `rows` of the op's units a block."""
    return Variant(
        FOLDER / file,
        threads=256,
        rows_per_block=rows,
        teaches=teaches,
        shared_bytes=_vector_bytes,
        arch=61,
        layout="tiles",
        rounded=rounded,
    )


# ---- the ops: products, fused steps, attention ----

TILE_OPS = (
    Op.of(
        "gemv_tiles",
        Variant(
            FOLDER / "gemv_tiles/0_wide.cu",
            threads=128,
            rows_per_block=16,
            teaches="one load brings 32 weights, where the file's layout allows two bytes at a time",
            layout="tiles",
        ),
        _columns(
            "gemv_tiles/1_dp4a.cu",
            rows=32,
            teaches="activations in int8: four products an instruction, and no conversion",
            rounded=lambda a: _gemv(a, reference.int8),
        ),
        _columns(
            "gemv_tiles/2_columns.cu",
            rows=16,
            teaches="warps share the columns: each quantises what it needs, and waits for no other",
            rounded=lambda a: _gemv(a, reference.int8),
        ),
        meaning="y = W x with W in Q4_0, in tiles of four rows",
        outputs=("y",),
        units=lambda a: a["rows"],
        reference=lambda a: _gemv(a, _exact),
        replaces=("gemv_q4_0",),
    ),
    Op.of(
        "ffn_tiles",
        _columns(
            "ffn_tiles/0_columns.cu",
            rows=16,
            teaches="rows of gate and up take turns: both sums meet in one lane",
            rounded=lambda a: _ffn(a, reference.int8(a["x"])),
        ),
        meaning="hidden = silu(W_gate x) * (W_up x), both in one matrix of tiles",
        outputs=("hidden",),
        units=lambda a: a["rows"],
        reference=lambda a: _ffn(a, a["x"]),
        replaces=("ffn_swiglu",),
    ),
    Op.of(
        "logits_q8_0",
        _columns(
            "logits_q8_0/0_columns.cu",
            rows=32,
            teaches="the head in a byte a weight: about a quarter of what FP32 moves",
            rounded=lambda a: _logits(a, reference.int8(a["x"])),
        ),
        meaning="y = W x with W in Q8_0, in tiles, over the vocabulary",
        outputs=("y",),
        units=lambda a: a["vocab"],
        reference=lambda a: _logits(a, a["x"]),
        replaces=("logits",),
    ),
    Op.of(
        "norm_qkv",
        _columns(
            "norm_qkv/0_fused.cu",
            rows=16,
            teaches="every block norms all of x anew, which is less than to wait for another launch",
            rounded=lambda a: _norm_qkv(a, reference.int8),
        ),
        meaning="q, k, v = W (x / rms(x) * norm); q and k rotated; k and v into the cache",
        outputs=("q", "keys", "values"),
        units=lambda a: (a["heads"] + 2 * a["kv_heads"]) * a["head_dim"],
        reference=lambda a: _norm_qkv(a, _exact),
        replaces=("rmsnorm", "gemv_tiles", "rope_kv"),
    ),
    Op.of(
        "gemv_add",
        _columns(
            "gemv_add/0_fused.cu",
            rows=16,
            teaches="the product goes straight to the residual stream: no array between, no launch",
            rounded=lambda a: _gemv_add(a, reference.int8),
        ),
        meaning="x += W y with W in Q4_0, in tiles",
        outputs=("x",),
        units=lambda a: a["rows"],
        reference=lambda a: _gemv_add(a, _exact),
        replaces=("gemv_tiles", "add"),
    ),
    Op.of(
        "norm_ffn",
        _columns(
            "norm_ffn/0_fused.cu",
            rows=16,
            teaches="the root mean square scales a row's sum, so that it is needed only behind the product",
            rounded=lambda a: _ffn(a, reference.int8(_normed(a))),
        ),
        meaning="hidden = silu(W_gate h) * (W_up h) with h = x / rms(x) * norm",
        outputs=("hidden",),
        units=lambda a: a["rows"],
        reference=lambda a: _ffn(a, _normed(a)),
        replaces=("ffn_tiles",),
    ),
    Op.of(
        "norm_logits",
        _columns(
            "norm_logits/0_fused.cu",
            rows=32,
            teaches="the last norm is worth no launch of its own either",
            rounded=lambda a: _logits(a, reference.int8(_normed(a))),
        ),
        meaning="y = W (x / rms(x) * norm) with W in Q8_0, in tiles, over the vocabulary",
        outputs=("y",),
        units=lambda a: a["vocab"],
        reference=lambda a: _logits(a, _normed(a)),
        replaces=("logits_q8_0",),
    ),
    Op.of(
        "attention_split",
        Variant(
            FOLDER / "attention_split/0_mma.cu",
            threads=32 * SPLIT_WARPS,
            rows_per_block=None,
            teaches="keys and values are loaded once for eight query heads, and a long context has many blocks",
            shared_bytes=lambda a: SPLIT_WARPS * BUNDLE * a["head_dim"] * 2,
            arch=75,
            tiles=lambda a: split_blocks(a["heads"], a["kv_heads"], a["context"]),
            tolerance=2e-3,
        ),
        meaning="parts = softmax(q keys / sqrt(head_dim)) values over each 256 positions, and what weighs them",
        outputs=("parts", "softmax"),
        units=lambda a: a["heads"] * -(-a["context"] // SPLIT),
        reference=_attention_split,
        replaces=("attention",),
    ),
    Op.of(
        "attention_merge",
        Variant(
            FOLDER / "attention_merge/0_block_per_head.cu",
            threads=64,
            rows_per_block=1,
            teaches="parts of a softmax meet by their largest score and their sum, in any order",
        ),
        meaning="out = the mean of the splits' parts, as one softmax over all positions weighs them",
        outputs=("out",),
        units=lambda a: a["heads"],
        reference=_attention_merge,
    ),
)
