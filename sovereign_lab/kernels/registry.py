"""The table of contents: every op, what it means, and the variants that compute it.

A fused step is an op of its own. The ops of a prompt's tokens, many at once, are in `token_ops`, those of
several sequences in `batch_ops`, those over weights in tiles in `tile_ops`.
"""

from typing import Any

import numpy as np

from sovereign_lab.errors import LabError
from sovereign_lab.kernels import FOLDER, drawing
from sovereign_lab.kernels.batch_ops import BATCH_OPS
from sovereign_lab.kernels.op import Arguments, Op, Variant
from sovereign_lab.kernels.persistent_op import PERSISTENT_OP
from sovereign_lab.kernels.tile_ops import TILE_OPS
from sovereign_lab.kernels.token_ops import TOKEN_OPS
from sovereign_lab.models import reference
from sovereign_lab.models.quants import unpack_q4_0

__all__ = ["OPS", "Arguments", "Op", "Variant", "find_kernel", "op"]


def op(name: str) -> Op:
    """An op by name; raises LabError with the names there are."""
    if name not in OPS:
        raise LabError(f"There is no op {name!r}; the ops are {', '.join(OPS)}.")
    return OPS[name]


def find_kernel(name: str) -> tuple[Op, Variant]:
    """The op and the variant of "op:variant"; raises LabError with the names there are."""
    which, _, variant = name.partition(":")
    found = op(which)
    if not variant:
        names = ", ".join(f"{which}:{v}" for v in found.variants)
        raise LabError(f"A kernel is named OP:VARIANT; op {which} has {names}.")
    return found, found.variant(variant)


# ---- what each op must compute, from its arguments ----


def _gemv(blocks: np.ndarray, a: Arguments) -> np.ndarray:
    return unpack_q4_0(blocks.reshape(a["rows"], -1)) @ a["x"]


def _gemv_halves(blocks: np.ndarray, a: Arguments) -> np.ndarray:
    """As Tensor Cores compute it: both factors are halves, and the sum is not."""
    return reference.half(unpack_q4_0(blocks.reshape(a["rows"], -1))) @ reference.half(a["x"])


def _rope_kv(a: Arguments) -> dict[str, np.ndarray]:
    position = int(a["position"][0])
    k = a["k"].reshape(a["kv_heads"], a["head_dim"])
    q = a["q"].reshape(a["heads"], a["head_dim"])
    keys, values = a["keys"].copy(), a["values"].copy()
    keys[position] = reference.rope(k, position, a["inv_freq"])
    values[position] = a["v"].reshape(k.shape)
    return {"q": reference.rope(q, position, a["inv_freq"]), "keys": keys, "values": values}


def _attention(a: Arguments) -> dict[str, np.ndarray]:
    length = int(a["position"][0]) + 1
    return {"out": reference.attention(a["q"], a["keys"][:length], a["values"][:length])}


def _sample(a: Arguments) -> dict[str, np.ndarray]:
    temperature, top_p = a["choice"].astype(np.float64)
    seed, position = int(a["seed"][0]), int(a["position"][0])
    token = drawing.drawn(a["logits"], temperature, top_p, seed, position)
    return {"drawn": np.array([token], np.int32)}


def _advance(a: Arguments) -> dict[str, np.ndarray]:
    tokens, argmaxes, position = a["tokens"].copy(), a["argmaxes"].copy(), int(a["position"][0]) + 1
    if position >= a["given"][0]:
        tokens[position], argmaxes[position] = a["following"][0], a["best"][0]
    return {"tokens": tokens, "argmaxes": argmaxes, "position": np.array([position], np.int32)}


# ---- the ops, in the order of a forward pass ----

OPS: dict[str, Op] = {}


def _op(name: str, *variants: Variant, **facts: Any) -> None:
    OPS[name] = Op.of(name, *variants, **facts)


_op(
    "embedding",
    Variant(
        FOLDER / "embedding/0_copy_row.cu",
        threads=256,
        rows_per_block=256,
        teaches="token and position live on the device: one recording serves every token",
    ),
    meaning="x = the embedding of the token at this position",
    outputs=("x",),
    units=lambda a: a["dim"],
    reference=lambda a: {"x": a["table"][a["tokens"][a["position"][0]]]},
)
_op(
    "rmsnorm",
    Variant(
        FOLDER / "rmsnorm/0_block.cu",
        threads=256,
        rows_per_block=None,
        teaches="a block reduction is a warp reduction, shared memory, a warp reduction",
    ),
    meaning="y = x / rms(x) * weight",
    outputs=("y",),
    units=lambda a: 1,
    reference=lambda a: {"y": reference.rmsnorm(a["x"], a["weight"], a["eps"])},
)
_op(
    "gemv_q4_0",
    Variant(
        FOLDER / "gemv_q4_0/0_block_per_row.cu",
        threads=256,
        rows_per_block=1,
        teaches="partial sums meet in shared memory, a barrier a step; most threads have nothing to do",
    ),
    Variant(
        FOLDER / "gemv_q4_0/1_warp_per_row.cu",
        threads=128,
        rows_per_block=4,
        teaches="32 partial sums meet in registers; lanes read blocks far apart",
    ),
    Variant(
        FOLDER / "gemv_q4_0/2_coalesced.cu",
        threads=128,
        rows_per_block=4,
        teaches="32 lanes read 32 neighbours: one request, four sectors",
    ),
    Variant(
        FOLDER / "gemv_q4_0/3_float4.cu",
        threads=128,
        rows_per_block=4,
        teaches="a quarter of the load instructions for x, the same bytes",
    ),
    Variant(
        FOLDER / "gemv_q4_0/4_wmma.cu",
        threads=256,
        rows_per_block=16,
        teaches="Tensor Cores multiply 16 columns, and 15 of them are zeros",
        arch=70,
        rounded=lambda a: {"y": _gemv_halves(a["W"], a)},
    ),
    Variant(
        FOLDER / "gemv_q4_0/5_mma.cu",
        threads=256,
        rows_per_block=16,
        teaches="nibbles become a fragment in the registers that they were loaded into",
        arch=75,
        rounded=lambda a: {"y": _gemv_halves(a["W"], a)},
    ),
    meaning="y = W x with W in Q4_0",
    outputs=("y",),
    units=lambda a: a["rows"],
    reference=lambda a: {"y": _gemv(a["W"], a)},
)
_op(
    "rope_kv",
    Variant(
        FOLDER / "rope_kv/1_fixed.cu",
        threads=128,
        rows_per_block=128,
        teaches="the position's offset is added exactly once",
    ),
    meaning="rotate q and k by the position, write k and v into the cache",
    outputs=("q", "keys", "values"),
    units=lambda a: (a["heads"] + a["kv_heads"]) * a["head_dim"] // 2,
    reference=_rope_kv,
)
_op(
    "attention",
    Variant(
        FOLDER / "attention/0_three_pass.cu",
        threads=128,
        rows_per_block=1,
        teaches="scores, softmax and weighted sum with a barrier between each",
    ),
    Variant(
        FOLDER / "attention/1_64_threads.cu",
        threads=64,
        rows_per_block=1,
        teaches="more threads at work, and two barriers more for every position",
    ),
    Variant(
        FOLDER / "attention/2_split_values.cu",
        threads=256,
        rows_per_block=1,
        teaches="the sum over positions is split over the warps too: no chain as long as the context",
    ),
    Variant(
        FOLDER / "attention/3_online_softmax.cu",
        threads=256,
        rows_per_block=1,
        teaches="one pass: the running softmax is corrected as it goes along",
    ),
    meaning="out = softmax(q keys / sqrt(head_dim)) values, one query position",
    outputs=("out",),
    units=lambda a: a["heads"],
    reference=_attention,
    scratch=("scores",),
)
_op(
    "swiglu",
    Variant(
        FOLDER / "swiglu/0_elementwise.cu",
        threads=256,
        rows_per_block=256,
        teaches="three arrays through memory for one multiplication an element",
    ),
    meaning="hidden = silu(gate) * up",
    outputs=("hidden",),
    units=lambda a: a["n"],
    reference=lambda a: {"hidden": reference.swiglu(a["gate"], a["up"])},
)
_op(
    "ffn_swiglu",
    Variant(
        FOLDER / "ffn_swiglu/0_fused.cu",
        threads=128,
        rows_per_block=4,
        teaches="x is read once for two matrices, and the products stay in registers",
    ),
    Variant(
        FOLDER / "ffn_swiglu/1_float4.cu",
        threads=128,
        rows_per_block=4,
        teaches="the fused kernel with wider loads of x",
    ),
    Variant(
        FOLDER / "ffn_swiglu/2_mma.cu",
        threads=256,
        rows_per_block=16,
        teaches="the fused kernel on Tensor Cores",
        arch=75,
        rounded=lambda a: {
            "hidden": reference.swiglu(_gemv_halves(a["W_gate"], a), _gemv_halves(a["W_up"], a))
        },
    ),
    meaning="hidden = silu(W_gate x) * (W_up x), fused",
    outputs=("hidden",),
    units=lambda a: a["rows"],
    reference=lambda a: {"hidden": reference.swiglu(_gemv(a["W_gate"], a), _gemv(a["W_up"], a))},
    replaces=("swiglu",),
)
_op(
    "add",
    Variant(
        FOLDER / "add/0_elementwise.cu",
        threads=256,
        rows_per_block=256,
        teaches="a launch for one addition an element",
    ),
    meaning="x += y",
    outputs=("x",),
    units=lambda a: a["n"],
    reference=lambda a: {"x": a["x"] + a["y"]},
)
_op(
    "logits",
    Variant(
        FOLDER / "logits/0_thread_per_row.cu",
        threads=128,
        rows_per_block=128,
        teaches="neighbouring threads read a row apart: 32 sectors a request",
    ),
    Variant(
        FOLDER / "logits/1_coalesced.cu",
        threads=128,
        rows_per_block=4,
        teaches="a warp a row: four sectors a request",
    ),
    Variant(
        FOLDER / "logits/2_float4.cu",
        threads=128,
        rows_per_block=4,
        teaches="a quarter of the load instructions, the same sectors",
    ),
    meaning="y = W x in FP32, over the vocabulary",
    outputs=("y",),
    units=lambda a: a["vocab"],
    reference=lambda a: {"y": a["W"].reshape(a["vocab"], a["dim"]) @ a["x"]},
)
_op(
    "argmax",
    Variant(
        FOLDER / "argmax/0_block.cu",
        threads=1024,
        rows_per_block=None,
        teaches="a reduction of (value, index) pairs through shuffles",
    ),
    meaning="best = the index of the largest logit, the first of equal ones",
    outputs=("best",),
    units=lambda a: 1,
    reference=lambda a: {"best": np.array([np.argmax(a["logits"])], np.int32)},
)
_op(
    "sample",
    Variant(
        FOLDER / "sample/0_bisect.cu",
        threads=1024,
        rows_per_block=None,
        teaches="no sort: a threshold is tried, and each trial adds up the whole vocabulary",
    ),
    Variant(
        FOLDER / "sample/1_gather.cu",
        threads=1024,
        rows_per_block=None,
        teaches="the few that matter are gathered in one pass, and compared with each other",
    ),
    meaning="drawn = a token from softmax(logits / temperature) over what top_p keeps",
    outputs=("drawn",),
    units=lambda a: 1,
    reference=_sample,
)
_op(
    "advance",
    Variant(
        FOLDER / "advance/0_single_thread.cu",
        threads=1,
        rows_per_block=None,
        teaches="the token is fed back on the device: the host is not in the loop",
    ),
    meaning="go to the next position; past the given tokens, the chosen token becomes the next",
    outputs=("tokens", "argmaxes", "position"),
    units=lambda a: 1,
    reference=_advance,
)
OPS |= {found.name: found for found in (*TOKEN_OPS, *BATCH_OPS, *TILE_OPS, PERSISTENT_OP)}
