"""The whole model as one op: some tokens from the device's position on, greedily."""

import numpy as np

from sovereign_lab.kernels import FOLDER
from sovereign_lab.kernels.op import Arguments, Op, Variant
from sovereign_lab.kernels.tile_ops import BUNDLE, Q8_PAIR_BYTES, SPLIT, SPLIT_WARPS
from sovereign_lab.models import reference
from sovereign_lab.models.tiles import (
    Q4_0_PAIR,
    Q8_0_PAIR,
    TILE_ROWS,
    pairs,
    untile_q4_0,
    untile_q8_0,
)

# Static shared memory of the kernels, rounded up; stamps a layer, and room for those around the layers.
STATIC_BYTES = 13_600
STAMPS = 32
LONG_SPLIT = SPLIT // 2  # positions of a split of attention, where there are several
NOT_YET = 0xFFFFFFFF  # in a word of messages or bests that nobody has said yet
# Queries, keys, values and what attention gives are halves on their way, so that an activation now and then is rounded
# to the next level of int8: over 30 seeds of the cases the logits lay up to 9.0e-3 of their norm apart.
_TOLERANCE = 2e-2


def shared_beside_ring(dim: int, ffn_dim: int, heads: int, head_dim: int, blocks: int) -> int:
    """Dynamic shared memory of a block beside its ring of tiles, in bytes.

    The vector in int8, what the warps of attention leave each other, and the block's own rows of the residual stream.
    """
    vector = max(pairs(n) for n in (dim, ffn_dim, heads * head_dim)) * Q8_PAIR_BYTES
    meeting = SPLIT_WARPS * BUNDLE * (2 * head_dim + 8)
    rows = -(-(dim // TILE_ROWS) // blocks) * TILE_ROWS
    return vector + meeting + 4 * rows


def largest_tile(dim: int, ffn_dim: int, q_dim: int) -> int:
    """Bytes of the largest tile that goes through the ring: of a matrix in Q4_0, or of the head in Q8_0."""
    return max(pairs(max(dim, ffn_dim, q_dim)) * 4 * Q4_0_PAIR, pairs(dim) * 4 * Q8_0_PAIR)


def message_words(
    dim: int, ffn_dim: int, heads: int, kv_heads: int, head_dim: int, context: int
) -> int:
    """What the blocks say to each other in a layer of one token, in words of 32 bits; a multiple of 4.

    Queries, keys, values and what attention gives are halves, two a word; all else is FP32.
    """
    q_words, kv_words = heads * head_dim // 2, kv_heads * head_dim // 2
    splits = -(-context // LONG_SPLIT)
    words = q_words + 2 * kv_words + (splits + 1) * q_words + splits * heads * 2 + 2 * dim + ffn_dim
    return -(-words // 4) * 4


def _beside_ring(a: Arguments) -> int:
    blocks = a["bests"].shape[1]
    return shared_beside_ring(a["dim"], a["ffn_dim"], a["heads"], a["head_dim"], blocks)


def _with_ring(a: Arguments) -> int:
    return int(a["ring_bytes"]) + _beside_ring(a)


def has_ring(variant: Variant) -> bool:
    """Whether a variant, or what was edited from it, keeps weights on their way in shared memory."""
    return variant.shared_bytes is _with_ring


# ---- what it must compute, from its arguments ----


def _tokens(a: Arguments, int8: bool) -> dict[str, np.ndarray]:
    """`count` tokens, by the reference's functions; with `int8` activations rounded as the kernels round them."""
    out = {
        name: a[name].copy()
        for name in ("keys", "values", "tokens", "argmaxes", "position", "turn", "logits", "best")
    }
    for _ in range(a["count"]):
        position = int(out["position"][0])
        out["logits"] = _token(a, out, position, int8)
        best = int(np.argmax(out["logits"]))
        out["best"] = np.array([best], np.int32)
        if a["advance"]:
            out["position"] = out["position"] + 1
            if position + 1 >= int(a["given"][0]):
                out["tokens"][position + 1] = out["argmaxes"][position + 1] = best
    out["turn"] = out["turn"] + a["count"]
    return out


def _token(a: Arguments, out: dict[str, np.ndarray], position: int, int8: bool) -> np.ndarray:
    """Logits of the token at `position`; its keys and values go into out's."""
    heads, kv_heads, head_dim, dim, ffn = (
        int(a[n]) for n in ("heads", "kv_heads", "head_dim", "dim", "ffn_dim")
    )
    rounded = reference.int8 if int8 else (lambda h: h)
    q_dim, kv_dim = heads * head_dim, kv_heads * head_dim
    shapes = [(q_dim + 2 * kv_dim, dim), (dim, q_dim), (2 * ffn, dim), (dim, ffn)]
    x = a["embedding"][out["tokens"][position]]
    for layer in range(a["layers"]):
        wqkv, wo, gate_up, down = _layer(a["matrices"][layer], shapes)
        qkv = wqkv @ rounded(reference.rmsnorm(x, a["norms"][2 * layer], a["eps"]))
        q, k, v = np.split(qkv, [q_dim, q_dim + kv_dim])
        k, v = k.reshape(kv_heads, head_dim), v.reshape(kv_heads, head_dim)
        out["keys"][layer, position] = reference.rope(k, position, a["inv_freq"])
        out["values"][layer, position] = v
        mixed = reference.attention(
            reference.rope(q.reshape(heads, head_dim), position, a["inv_freq"]),
            out["keys"][layer, : position + 1],
            out["values"][layer, : position + 1],
        )
        x = x + wo @ rounded(mixed.reshape(-1))
        both = gate_up @ rounded(reference.rmsnorm(x, a["norms"][2 * layer + 1], a["eps"]))
        x = x + down @ rounded(reference.swiglu(both[0::2], both[1::2]))
    h = rounded(reference.rmsnorm(x, a["norms"][-1], a["eps"]))
    return untile_q8_0(a["head"], a["vocab"], dim) @ h


def _layer(words: np.ndarray, shapes: list[tuple[int, int]]) -> list[np.ndarray]:
    matrices, at = [], 0
    for rows, cols in shapes:
        size = -(-rows // TILE_ROWS) * pairs(cols) * Q4_0_PAIR
        tiles = words[at : at + size].reshape(-1, pairs(cols) * Q4_0_PAIR)
        matrices.append(untile_q4_0(tiles, rows, cols))
        at += size
    return matrices


def _variant(file: str, teaches: str, **facts: object) -> Variant:
    return Variant(
        FOLDER / "persistent" / file,
        rows_per_block=None,
        teaches=teaches,
        tiles=lambda a: int(a["bests"].shape[1]),  # a block an SM
        layout="tiles",
        cooperative=True,
        rounded=lambda a: _tokens(a, int8=True),
        tolerance=_TOLERANCE,
        **{"threads": 256, "arch": 75, "shared_bytes": _beside_ring, **facts},  # type: ignore[arg-type]
    )


PERSISTENT_OP = Op.of(
    "persistent",
    _variant(
        "0_grid_barriers.cu",
        teaches="one launch for many tokens; every step ends in a barrier of the whole grid",
    ),
    _variant(
        "1_messages.cu",
        teaches="a word that is poison no more has been said: no barrier, and no flag beside it",
    ),
    _variant(
        "2_bulk.cu",
        teaches="weights do not depend on the token: they come while the blocks wait for each other",
        threads=288,
        arch=90,
        shared_bytes=_with_ring,
    ),
    meaning="`count` tokens from this position on: the whole model, many times, in one launch",
    outputs=("keys", "values", "logits", "best", "tokens", "argmaxes", "position", "turn"),
    units=lambda a: 1,
    reference=lambda a: _tokens(a, int8=False),
    replaces=(
        "embedding", "norm_qkv", "attention_split", "attention_merge", "gemv_add", "norm_ffn", "norm_logits",
        "argmax",
    ),
    scratch=("messages", "bests", "stamps"),
)  # fmt: skip
