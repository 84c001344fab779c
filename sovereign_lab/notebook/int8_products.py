"""Products of nibbles and int8 by `__dp4a`: how a nibble becomes a signed byte, and what rounding x costs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sovereign_lab.devices.device import Source
from sovereign_lab.engine import Engine
from sovereign_lab.measure.static import nvrtc, sass
from sovereign_lab.models import reference
from sovereign_lab.models.quants import BLOCK_WEIGHTS
from sovereign_lab.notebook.table import Table

ARCH = 90
LARGEST = BLOCK_WEIGHTS * 16 * 8 * 127
"""The largest sum that `dot_q4_0` can come to: 32 weights of -8, times 16, times 127."""


def nibble_table() -> Table:
    """All nibbles: the weight meant, the nibble in a tile, the byte that the mask leaves, and that byte as a number."""
    rows = []
    for nibble in range(16):
        in_tile = nibble ^ 8
        byte = np.uint8(in_tile << 4)
        rows.append(
            [
                f"{nibble:04b}",
                str(nibble - 8),
                f"{in_tile:04b}",
                f"{int(byte):08b}",
                str(int(byte.view(np.int8))),
            ]
        )
    head = ["nibble in the file", "weight", "nibble in a tile", "byte under the mask", "as int8"]
    return Table(head, rows)


# ---- instructions ----

FLOATS = """\
#include "tiles.cuh"

extern "C" __global__ void by_floats(const uint4* W, const float4* x4, float* y) {
  uint4 w = W[threadIdx.x];
  unsigned words[4] = {w.x, w.y, w.z, w.w};
  float dot = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float4 low = x4[i], high = x4[i + 4];
    int w0 = (int)words[i];
    dot += (float)(w0 << 28 >> 28) * low.x + (float)(w0 << 20 >> 28) * low.y +
           (float)(w0 << 12 >> 28) * low.z + (float)(w0 << 4 >> 28) * low.w;
    dot += (float)(w0 << 24 >> 28) * high.x + (float)(w0 << 16 >> 28) * high.y +
           (float)(w0 << 8 >> 28) * high.z + (float)(w0 >> 28) * high.w;
  }
  y[threadIdx.x] = dot;
}
"""
BYTES = """\
#include "tiles.cuh"

extern "C" __global__ void by_bytes(const uint4* W, const Q8Pair* x, float* y) {
  uint4 w = W[threadIdx.x];
  Q8Block activations;
  activations.load(x, 0);
  y[threadIdx.x] = dot_q4_0(w, activations);
}
"""
# What a SASS opcode does, as far as these two kernels have it.
GROUPS = {
    "multiply, add": ("FFMA", "FMUL", "FADD", "IDP"),
    "convert": ("I2FP", "I2F"),
    "shift, mask, addresses": ("SHF", "LOP3", "IMAD", "IADD3", "PRMT", "LEA", "SGXT", "MOV"),
}


def instructions(source: str) -> Counter[str]:
    """Machine instructions for sm_90 by opcode, without its suffixes. Raises LabError where NVRTC is not installed."""
    cubin = nvrtc.compile_cubin(Source(source, "block.cu", {}), ARCH)
    found = sass.disassemble(cubin, source).instructions
    return Counter(instruction.opcode.partition(".")[0] for instruction in found)


def grouped(opcodes: Counter[str]) -> dict[str, int]:
    """Instructions by GROUPS."""
    return {what: sum(opcodes[o] for o in members) for what, members in GROUPS.items()}


def instructions_table() -> Table:
    """A block of 32 weights times 32 activations, by floats and by bytes; why not, where no compiler is there."""
    why = nvrtc.why_no_nvrtc() or sass.why_no_sass()
    if why:
        return Table(["instructions"], [[why]])
    floats, in_bytes = (grouped(instructions(source)) for source in (FLOATS, BYTES))
    rows = [[what, str(floats[what]), str(in_bytes[what])] for what in GROUPS]
    rows.append(["together", str(sum(floats.values())), str(sum(in_bytes.values()))])
    return Table([f"32 weights, sm_{ARCH}", "float by float", "__dp4a"], rows)


# ---- rounding ----


def one_scale(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rounded to multiples of the largest / 127 of the whole vector, for comparison with reference.int8."""
    scale = np.abs(x).max() / np.float32(127)
    return (np.rint(x / scale) * scale).astype(np.float32)


def rounding_table(outliers: Sequence[float] = (1, 10, 100)) -> Table:
    """||W x' - W x|| / ||W x|| for x' in int8, a scale for 32 or one for all; x is normal, but for its first value."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((512, 2048), np.float32)
    rows = []
    for factor in outliers:
        x = rng.standard_normal(2048, np.float32)
        x[0] = 3 * factor
        exact = w @ x
        errors = [
            np.linalg.norm(w @ rounded(x) - exact) / np.linalg.norm(exact)
            for rounded in (reference.int8, one_scale)
        ]
        rows.append([f"{3 * factor:g}", *(f"{error:.2%}" for error in errors)])
    return Table(["one value is", "a scale for 32", "one scale for all 2,048"], rows)


@dataclass(frozen=True)
class Distance:
    """||a - b|| / ||b|| of a phase's logits over a text: to the reference with its roundings, and to FP32 products."""

    phase: str
    same: float
    fp32: float
    top: int  # positions at which the largest logit is the FP32 reference's
    positions: int


def distances(engine: Engine, phases: Sequence[str], text: str) -> list[Distance]:
    """Of the logits of every position of a text, phase by phase."""
    model, kv = engine.model, engine.kv.dtype
    tokens = model.tokenizer.encode(text)
    plain = reference.forward(model, tokens, kv)
    found = []
    for name in phases:
        at = engine.with_phase(name)
        same = reference.forward(model, tokens, kv, halves=at.halves, int8_inputs=at.int8_inputs)
        logits = at.logits(tokens)
        to_same, to_plain = (
            float(np.linalg.norm(logits - r) / np.linalg.norm(r)) for r in (same, plain)
        )
        top = int((logits.argmax(axis=1) == plain.argmax(axis=1)).sum())
        found.append(Distance(name, to_same, to_plain, top, len(tokens)))
    return found


def distance_table(found: Sequence[Distance]) -> Table:
    """By phase: both distances, and how often the likeliest token is the reference's."""
    rows = [
        [f"phase {d.phase}", f"{d.same:.1e}", f"{d.fp32:.1e}", f"{d.top} of {d.positions}"]
        for d in found
    ]
    return Table(["logits of", "to the same roundings", "to FP32", "likeliest token"], rows)


# ---- the first other token ----

NEAR = 0.5  # of a logit


def first_difference(engine: Engine, text: str, mine: Sequence[int], other: Sequence[int]) -> str:
    """Where two greedy continuations of a text part, how FP32 rates both tokens there, and how many are as likely."""
    at = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None)
    if at is None:
        return "the same tokens"
    tokens = engine.model.tokenizer
    ids = [*tokens.encode(text), *mine[:at]]
    logits = reference.forward(engine.model, ids, engine.kv.dtype)[-1]
    downwards = np.sort(logits)[::-1]
    close = int((downwards > downwards[0] - NEAR).sum())
    words = [tokens.decode([int(token)]).strip() for token in (mine[at], other[at])]
    return (
        f"token {at}: {words[0]!r} or {words[1]!r}, {abs(logits[mine[at]] - logits[other[at]]):.2f} apart in FP32; "
        f"{close} tokens are within {NEAR:g} of the likeliest, the next is {downwards[0] - downwards[close]:.1f} below"
    )
