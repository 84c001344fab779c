"""The table of contents: every op, what it means, and the variants that compute it.

An op fixes the `extern "C"` signature, its meaning and a NumPy reference. A variant is a file and its launch
geometry, and the sentence that it teaches. A fused step is an op of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.errors import LabError
from sovereign_lab.kernels import FOLDER
from sovereign_lab.models import reference
from sovereign_lab.models.quants import unpack_q4_0

Arguments = Mapping[str, Any]  # parameter name -> NumPy array or scalar
WARP = 32


@dataclass(frozen=True)
class Variant:
    """One way to compute an op.

    `rows_per_block` counts the op's units of work (`Op.units`: rows, elements, heads) that a block takes; None
    means one block for everything. `arch`: the least compute capability it needs. `layout`: how it reads Q4_0
    weights, "file" for byte for byte as in the GGUF file.
    """

    name: str
    file: Path
    threads: int
    rows_per_block: int | None
    teaches: str
    shared_bytes: Callable[[Arguments], int] = lambda args: 0
    arch: int = 60
    layout: str = "file"

    @property
    def source(self) -> str:
        """The text of its file."""
        return self.file.read_text()


@dataclass(frozen=True)
class Op:
    """What a kernel must compute.

    `units(args)`: the number of independent pieces of work, for the grid. `outputs`: the parameters that are
    written. `reference(args)`: what they must hold afterwards, by name, from the arguments before the launch.
    """

    name: str
    meaning: str
    outputs: tuple[str, ...]
    units: Callable[[Arguments], int]
    reference: Callable[[Arguments], dict[str, np.ndarray]]
    variants: dict[str, Variant] = field(default_factory=dict)

    def variant(self, name: str) -> Variant:
        """A variant by name; raises LabError with the names there are."""
        if name not in self.variants:
            raise LabError(f"Op {self.name} has no variant {name!r}; it has {', '.join(self.variants)}.")
        return self.variants[name]

    def grid(self, variant: Variant, args: Arguments) -> int:
        """The number of blocks that cover the work."""
        return 1 if variant.rows_per_block is None else -(-self.units(args) // variant.rows_per_block)


OPS: dict[str, Op] = {}


def op(name: str) -> Op:
    """An op by name; raises LabError with the names there are."""
    if name not in OPS:
        raise LabError(f"There is no op {name!r}; the ops are {', '.join(OPS)}.")
    return OPS[name]


def _op(
    name: str,
    meaning: str,
    outputs: tuple[str, ...],
    units: Callable[[Arguments], int],
    reference: Callable[[Arguments], dict[str, np.ndarray]],
) -> None:
    OPS[name] = Op(name, meaning, outputs, units, reference)


def _variant(op_name: str, file: str, threads: int, rows_per_block: int | None, teaches: str) -> None:
    name = file.split("_", 1)[1].removesuffix(".cu")
    path = FOLDER / op_name / file
    OPS[op_name].variants[name] = Variant(name, path, threads, rows_per_block, teaches)


# ---- what each op must compute, from its arguments ----


def _gemv(blocks: np.ndarray, a: Arguments) -> np.ndarray:
    return unpack_q4_0(blocks.reshape(a["rows"], -1)) @ a["x"]


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


def _advance(a: Arguments) -> dict[str, np.ndarray]:
    tokens, following = a["tokens"].copy(), int(a["position"][0]) + 1
    if following >= a["given"][0]:
        tokens[following] = a["best"][0]
    return {"tokens": tokens, "position": np.array([following], np.int32)}


# ---- the ops, in the order of a forward pass ----

_op("embedding", "x = the embedding of the token at this position", ("x",), lambda a: a["dim"],
    lambda a: {"x": a["table"][a["tokens"][a["position"][0]]]})
_variant("embedding", "0_copy_row.cu", 256, 256, "token and position live on the device: one recording serves every token")

_op("rmsnorm", "y = x / rms(x) * weight", ("y",), lambda a: 1,
    lambda a: {"y": reference.rmsnorm(a["x"], a["weight"], a["eps"])})
_variant("rmsnorm", "0_block.cu", 256, None, "a block reduction is a warp reduction, shared memory, a warp reduction")

_op("gemv_q4_0", "y = W x with W in Q4_0", ("y",), lambda a: a["rows"], lambda a: {"y": _gemv(a["W"], a)})
_variant("gemv_q4_0", "1_warp_per_row.cu", 128, 4, "32 partial sums meet in registers; lanes read blocks far apart")
_variant("gemv_q4_0", "2_coalesced.cu", 128, 4, "32 lanes read 32 neighbours: one request, four sectors")

_op("rope_kv", "rotate q and k by the position, write k and v into the cache", ("q", "keys", "values"),
    lambda a: (a["heads"] + a["kv_heads"]) * a["head_dim"] // 2, _rope_kv)
_variant("rope_kv", "1_fixed.cu", 128, 128, "the position's offset is added exactly once")

_op("attention", "out = softmax(q keys / sqrt(head_dim)) values, one query position", ("out",), lambda a: a["heads"], _attention)
_variant("attention", "0_three_pass.cu", 128, 1, "scores, softmax and weighted sum with a barrier between each")
_variant("attention", "2_online_softmax.cu", 256, 1, "one pass: the running softmax is corrected as it goes along")

_op("swiglu", "hidden = silu(gate) * up", ("hidden",), lambda a: a["n"],
    lambda a: {"hidden": reference.swiglu(a["gate"], a["up"])})
_variant("swiglu", "0_elementwise.cu", 256, 256, "three arrays through memory for one multiplication an element")

_op("ffn_swiglu", "hidden = silu(W_gate x) * (W_up x), fused", ("hidden",), lambda a: a["rows"],
    lambda a: {"hidden": reference.swiglu(_gemv(a["W_gate"], a), _gemv(a["W_up"], a))})
_variant("ffn_swiglu", "0_fused.cu", 128, 4, "x is read once for two matrices, and the products stay in registers")

_op("add", "x += y", ("x",), lambda a: a["n"], lambda a: {"x": a["x"] + a["y"]})
_variant("add", "0_elementwise.cu", 256, 256, "a launch for one addition an element")

_op("logits", "y = W x in FP32, over the vocabulary", ("y",), lambda a: a["vocab"],
    lambda a: {"y": a["W"].reshape(a["vocab"], a["dim"]) @ a["x"]})
_variant("logits", "0_thread_per_row.cu", 128, 128, "neighbouring threads read a row apart: 32 sectors a request")
_variant("logits", "1_coalesced.cu", 128, 4, "a warp a row: four sectors a request")

_op("argmax", "best = the index of the largest logit, the first of equal ones", ("best",), lambda a: 1,
    lambda a: {"best": np.array([np.argmax(a["logits"])], np.int32)})
_variant("argmax", "0_block.cu", 1024, None, "a reduction of (value, index) pairs through shuffles")

_op("advance", "go to the next position; past the given tokens, the best token becomes the next", ("tokens", "position"),
    lambda a: 1, _advance)
_variant("advance", "0_single_thread.cu", 1, None, "the token is fed back on the device: the host is not in the loop")
