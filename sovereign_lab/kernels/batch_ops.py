"""The ops of several sequences at once, each at a position of its own with a region of the KV cache of its own.

Products with a matrix that all share are here too: those of `token_ops` have blocks for a prompt's many tokens.
`active` is 0 for a sequence that has ended: it stays where it is, and writes nothing into its region.
"""

import numpy as np

from sovereign_lab.kernels import FOLDER
from sovereign_lab.kernels.op import Arguments, Op, Variant
from sovereign_lab.kernels.token_ops import gemm, tiles
from sovereign_lab.models import reference

# What a warp of logits_batch takes.
ROWS, SEQUENCES = 4, 8
WARPS = 8


# ---- what each op must compute, from its arguments ----


def _embedding(a: Arguments) -> dict[str, np.ndarray]:
    return {"x": a["table"][a["tokens"][np.arange(a["count"]), a["position"]]]}


def _rope_kv(a: Arguments) -> dict[str, np.ndarray]:
    heads, kv_heads = a["heads"], a["kv_heads"]
    at, running = a["position"], np.flatnonzero(a["active"])
    qkv = a["qkv"].reshape(a["count"], heads + 2 * kv_heads, a["head_dim"])
    q, k, v = np.split(qkv, [heads, heads + kv_heads], axis=1)
    rotated, keys, values = a["q"].copy(), a["keys"].copy(), a["values"].copy()
    rotated[running] = reference.rope(q, at, a["inv_freq"])[running]
    keys[running, at[running]] = reference.rope(k, at, a["inv_freq"])[running]
    values[running, at[running]] = v[running]
    return {"q": rotated, "keys": keys, "values": values}


def _attention(a: Arguments) -> dict[str, np.ndarray]:
    out = a["out"].copy()
    for i in np.flatnonzero(a["active"]):
        length = int(a["position"][i]) + 1
        attended = reference.attention(a["q"][i], a["keys"][i, :length], a["values"][i, :length])
        out[i] = attended.reshape(out[i].shape)
    return {"out": out}


def _logits(a: Arguments) -> dict[str, np.ndarray]:
    return {"y": a["x"].astype(np.float32) @ a["W"].T}


def _advance(a: Arguments) -> dict[str, np.ndarray]:
    tokens, argmaxes = a["tokens"].copy(), a["argmaxes"].copy()
    running = np.flatnonzero(a["active"])
    position = a["position"] + (a["active"] != 0).astype(np.int32)
    tokens[running, position[running]] = a["following"][running]
    argmaxes[running, position[running]] = a["best"][running]
    ended = (position >= a["last"]) | np.isin(a["following"], a["ends"])
    active = np.where(ended, 0, a["active"]).astype(np.int32)
    return {"tokens": tokens, "argmaxes": argmaxes, "position": position, "active": active}


# ---- the ops, in the order of a forward pass ----

BATCH_OPS = (
    Op.of(
        "embedding_batch",
        Variant(
            FOLDER / "embedding_batch/0_copy_rows.cu",
            threads=256,
            rows_per_block=256,
            teaches="each sequence looks up its own position",
        ),
        meaning="x = the embedding of each sequence's token at its position",
        outputs=("x",),
        units=lambda a: a["count"] * a["dim"],
        reference=_embedding,
    ),
    Op.of(
        "gemm_q4_0_batch",
        Variant(
            FOLDER / "gemm_q4_0_batch/0_split_depth.cu",
            threads=256,
            rows_per_block=None,
            teaches="with few tokens, a tile of many rows leaves most multiprocessors idle: split the depth",
            arch=75,
            layout="split",
            tiles=tiles(rows=16, tokens=64),
        ),
        meaning="y = x W^T for few tokens, or y += x W^T; W in Q4_0, nibbles and scales apart",
        outputs=("y",),
        units=lambda a: a["rows"],
        reference=gemm,
    ),
    Op.of(
        "rope_kv_batch",
        Variant(
            FOLDER / "rope_kv_batch/0_pair_per_thread.cu",
            threads=256,
            rows_per_block=256,
            teaches="each sequence has a position and a region of the cache",
        ),
        meaning="rotate each sequence's q and k by its position, write k and v into its region of the cache",
        outputs=("q", "keys", "values"),
        units=lambda a: a["count"] * (a["heads"] + a["kv_heads"]) * a["head_dim"] // 2,
        reference=_rope_kv,
    ),
    Op.of(
        "attention_batch",
        Variant(
            FOLDER / "attention_batch/0_online_softmax.cu",
            threads=256,
            rows_per_block=1,
            teaches="no key is shared between sequences: attention gains nothing from a batch",
        ),
        meaning="out = softmax(q keys / sqrt(head_dim)) values, each sequence over its own positions",
        outputs=("out",),
        units=lambda a: a["count"] * a["heads"],
        reference=_attention,
    ),
    Op.of(
        "logits_batch",
        Variant(
            FOLDER / "logits_batch/0_shared_rows.cu",
            threads=32 * WARPS,
            rows_per_block=None,
            teaches="the head is read once for eight sequences, and from L1 for the next eight",
            tiles=lambda a: -(-(-(-a["vocab"] // ROWS) * -(-a["count"] // SEQUENCES)) // WARPS),
        ),
        meaning="y = x W^T in FP32, over the vocabulary, for each sequence",
        outputs=("y",),
        units=lambda a: a["vocab"],
        reference=_logits,
    ),
    Op.of(
        "argmax_batch",
        Variant(
            FOLDER / "argmax_batch/0_block.cu",
            threads=1024,
            rows_per_block=1,
            teaches="a block a sequence; the value is agreed on first, then the index",
        ),
        meaning="best = the index of each sequence's largest logit, the first of equal ones",
        outputs=("best",),
        units=lambda a: a["count"],
        reference=lambda a: {"best": np.argmax(a["logits"], axis=1).astype(np.int32)},
    ),
    Op.of(
        "advance_batch",
        Variant(
            FOLDER / "advance_batch/0_thread_per_sequence.cu",
            threads=32,
            rows_per_block=32,
            teaches="a sequence ends on the device: the host need not look after every token",
        ),
        meaning="each sequence takes its chosen token and goes to its next position, unless it has ended",
        outputs=("tokens", "argmaxes", "position", "active"),
        units=lambda a: a["count"],
        reference=_advance,
    ),
)
