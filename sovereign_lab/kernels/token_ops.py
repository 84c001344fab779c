"""The ops of many tokens at once: a prompt goes through the model in blocks of `count` tokens.

Tensor Cores take halves and sum in FP32; so do these ops, whichever way they are computed. Activations that a product
reads are halves, [count, ...]; the residual stream and what a product writes are FP32.
"""

from collections.abc import Callable

import numpy as np

from sovereign_lab.kernels import FOLDER
from sovereign_lab.kernels.op import Arguments, Op, Variant
from sovereign_lab.models import reference
from sovereign_lab.models.quants import join_q4_0, unpack_q4_0


def tiles(rows: int, tokens: int, tiles_per_block: int = 1) -> Callable[[Arguments], int]:
    """The blocks that cover y [count, rows], tile by tile."""

    def blocks(a: Arguments) -> int:
        return -(-(-(-a["rows"] // rows) * -(-a["count"] // tokens)) // tiles_per_block)

    return blocks


# ---- what each op must compute, from its arguments ----


def _embedding(a: Arguments) -> dict[str, np.ndarray]:
    start = int(a["position"][0])
    return {"x": a["table"][a["tokens"][start : start + a["count"]]]}


def gemm(a: Arguments) -> dict[str, np.ndarray]:
    """The product of x with a matrix whose weights are rounded to half, added to y where it accumulates."""
    blocks = join_q4_0(a["nibbles"], a["scales"][:, : a["blocks_per_row"]])
    y = a["x"].astype(np.float32) @ reference.half(unpack_q4_0(blocks)).T
    return {"y": a["y"] + y if a["accumulate"] else y}


def _rope_kv(a: Arguments) -> dict[str, np.ndarray]:
    count, heads, kv_heads = a["count"], a["heads"], a["kv_heads"]
    at = int(a["position"][0]) + np.arange(count)
    qkv = a["qkv"].reshape(count, heads + 2 * kv_heads, a["head_dim"])
    q, k, v = np.split(qkv, [heads, heads + kv_heads], axis=1)
    keys, values = a["keys"].copy(), a["values"].copy()
    keys[at], values[at] = reference.rope(k, at, a["inv_freq"]), v
    return {"q": reference.rope(q, at, a["inv_freq"]), "keys": keys, "values": values}


def _attention(a: Arguments) -> dict[str, np.ndarray]:
    end = int(a["position"][0]) + a["count"]
    out = reference.causal_attention(a["q"].astype(np.float32), a["keys"][:end], a["values"][:end])
    return {"out": out.reshape(a["out"].shape)}


def _swiglu(a: Arguments) -> dict[str, np.ndarray]:
    gate, up = np.split(a["gate_up"], 2, axis=1)
    return {"hidden": reference.swiglu(gate, up)}


# ---- the ops, in the order of a forward pass ----

TOKEN_OPS = (
    Op.of(
        "embedding_tokens",
        Variant(
            FOLDER / "embedding_tokens/0_copy_rows.cu",
            threads=256,
            rows_per_block=256,
            teaches="a thread an element, of all tokens at once",
        ),
        meaning="x = the embeddings of the tokens from this position on",
        outputs=("x",),
        units=lambda a: a["count"] * a["dim"],
        reference=_embedding,
    ),
    Op.of(
        "rmsnorm_tokens",
        Variant(
            FOLDER / "rmsnorm_tokens/0_block.cu",
            threads=256,
            rows_per_block=1,
            teaches="tokens are independent: a block each",
        ),
        meaning="y = x / rms(x) * weight, token by token, in half",
        outputs=("y",),
        units=lambda a: a["count"],
        reference=lambda a: {"y": reference.rmsnorm(a["x"], a["weight"], a["eps"])},
    ),
    Op.of(
        "gemm_q4_0",
        Variant(
            FOLDER / "gemm_q4_0/0_cuda_cores.cu",
            threads=128,
            rows_per_block=16,
            teaches="what is unpacked of W serves eight tokens",
            layout="split",
        ),
        Variant(
            FOLDER / "gemm_q4_0/1_wmma.cu",
            threads=128,
            rows_per_block=None,
            teaches="16 tokens or none: a warp matrix is filled, or it multiplies zeros",
            arch=70,
            layout="split",
            tiles=tiles(rows=16, tokens=16, tiles_per_block=4),
        ),
        Variant(
            FOLDER / "gemm_q4_0/2_mma.cu",
            threads=128,
            rows_per_block=None,
            teaches="what is unpacked once is multiplied with 64 tokens, while the next comes in",
            arch=75,
            layout="split",
            tiles=tiles(rows=128, tokens=64),
        ),
        meaning="y = x W^T for many tokens, or y += x W^T; W in Q4_0, nibbles and scales apart",
        outputs=("y",),
        units=lambda a: a["rows"],
        reference=gemm,
    ),
    Op.of(
        "rope_kv_tokens",
        Variant(
            FOLDER / "rope_kv_tokens/0_pair_per_thread.cu",
            threads=256,
            rows_per_block=256,
            teaches="each token at its own position",
        ),
        meaning="rotate the tokens' q and k by their positions, write k and v into the cache",
        outputs=("q", "keys", "values"),
        units=lambda a: a["count"] * (a["heads"] + a["kv_heads"]) * a["head_dim"] // 2,
        reference=_rope_kv,
    ),
    Op.of(
        "attention_tokens",
        Variant(
            FOLDER / "attention_tokens/0_mma.cu",
            threads=128,
            rows_per_block=None,
            teaches="scores stay in registers, as one product leaves them and the next takes them",
            arch=75,
            tiles=lambda a: -(-a["count"] // 64) * a["heads"],
        ),
        meaning="out = softmax(q keys / sqrt(head_dim)) values, each token up to its own position",
        outputs=("out",),
        units=lambda a: a["count"] * a["heads"],
        reference=_attention,
    ),
    Op.of(
        "swiglu_tokens",
        Variant(
            FOLDER / "swiglu_tokens/0_elementwise.cu",
            threads=256,
            rows_per_block=256,
            teaches="a thread an element, of all tokens at once",
        ),
        meaning="hidden = silu(gate) * up, token by token, in half",
        outputs=("hidden",),
        units=lambda a: a["count"] * a["n"],
        reference=_swiglu,
    ),
)
