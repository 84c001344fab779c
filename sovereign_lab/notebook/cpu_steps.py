"""Chapter 01: the steps of the CPU prelude as tables, and exercise 01.1, a block's dot in integers."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sovereign_lab.measure import prelude as measured
from sovereign_lab.measure.bench import Figure
from sovereign_lab.measure.workload import config_of
from sovereign_lab.models.model import Config
from sovereign_lab.models.quants import quantise_q4_0
from sovereign_lab.notebook.table import Table
from sovereign_lab.prelude import STEPS
from sovereign_lab.prelude.gemv import quantise_q8_0
from sovereign_lab.prelude.steps import FLOAT, token_bytes

Bytes = npt.NDArray[np.uint8]
Levels = npt.NDArray[np.int8]

BLOCKS = 40

SMOLLM2 = config_of("smollm2-135m")  # the recorded model


def bytes_table(models: Mapping[str, Config]) -> Table:
    """MB a token of each step: layers and head together, and the head alone in a row of its own."""
    rows = [
        [
            f"{step.id}: {step.title}",
            f"{step.bytes_per_weight:g}",
            *(f"{token_bytes(config, step) / 1e6:,.1f} MB" for config in models.values()),
        ]
        for step in STEPS
    ]
    heads = [f"{FLOAT * c.vocab * c.dim / 1e6:,.1f} MB" for c in models.values()]
    return Table(
        ["step", "bytes a weight", *models], [*rows, ["of it the head", f"{FLOAT}", *heads]]
    )


def steps_table(figures: Mapping[str, Figure]) -> Table:
    """Each step's speed, its best repeat, that one's pass, its products at best, and its floor.

    From figures of `measure.prelude`. Other programs can only take time away, so the best repeat says most on a
    machine that does other things too.
    """
    rows = []
    for step in STEPS:
        rate = figures[measured.decode(step)]
        spent = figures[measured.products(step)].low
        least = figures[measured.floor(step)].value
        rows.append(
            [
                f"{step.id}: {step.title}",
                f"{rate.value:.1f} tok/s",
                f"{rate.high:.1f} tok/s",
                f"{1e3 / rate.high:.1f} ms",
                f"{spent:.1f} ms",
                f"{least:.1f} ms",
            ]
        )
    head = ["step", "median", "best", "a pass at best", "products at best", "floor"]
    return Table(head, rows)


def speeds(figures: Mapping[str, Figure]) -> dict[str, float]:
    """The best repeat of each step in tok/s, under names that a picture can bear."""
    return {f"{s.id}: {s.title}": figures[measured.decode(s)].high for s in STEPS}


# ---- exercise 01.1 ----


def block_dot(block: Bytes, q: Levels, d: np.float32) -> float:
    """What exercise 01.1 asks for: a Q4_0 block (uint8 [18]) times 32 int8 with the scale d."""
    return float(_scale(block)) * float(d) * int(_levels(block) @ q.astype(np.int64))


def _scale(block: Bytes) -> np.float32:
    return np.float32(block[:2].copy().view(np.float16)[0])


def _levels(block: Bytes) -> npt.NDArray[np.int64]:
    """The 32 whole numbers -8..7 of a block."""
    return np.concatenate([block[2:] & 15, block[2:] >> 4]).astype(np.int64) - 8


def fault(answer: Callable[..., Any]) -> str | None:
    """What is wrong with a `block_dot` of exercise 01.1: None for nothing, "" where it is still the starter."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((1, BLOCKS * 32), np.float32)
    x = rng.standard_normal(BLOCKS * 32, np.float32)
    # Blocks that are hard on an answer: far from the middle in every weight, and zero.
    weights[0, :32], x[:32] = 1, np.linspace(60, 100, 32)
    x[32:64] = 0
    blocks = quantise_q4_0(weights).reshape(-1, 18)
    q, d = quantise_q8_0(x)
    for number, (block, part, scale) in enumerate(zip(blocks, q.reshape(-1, 32), d, strict=True)):
        given = block.copy(), part.copy()
        try:
            got = answer(*given, scale)
        except Exception as error:
            return f"your function raises {type(error).__name__}: {error}"
        if got is None:
            return ""
        if not (np.array_equal(given[0], block) and np.array_equal(given[1], part)):
            return "your function changes the arrays that it is given."
        right = block_dot(block, part, scale)
        if np.shape(got) != ():
            return f"one number was expected, not an array of the shape {np.shape(got)}."
        if not abs(float(got) - right) <= 1e-5 * abs(right) + 1e-12:
            hint = _hint(float(got), block, part, scale)
            return f"block {number}: {right:.6g} is right, yours says {float(got):.6g}.{hint}"
    return None


def _hint(got: float, block: Bytes, q: Levels, d: np.float32) -> str:
    """The mistake that leads to this very number, where it is a known one."""
    levels, wide = _levels(block), q.astype(np.int64)
    scale = float(_scale(block)) * float(d)
    by_pairs = np.stack([levels[:16], levels[16:]], axis=1).reshape(-1)
    wrapped = (levels % 256).astype(np.int64)  # nibble - 8 in uint8: 255 for -1
    with np.errstate(over="ignore"):
        narrow = int(np.sum(levels.astype(np.int8) * q, dtype=np.int64))
        narrow_sum = int(np.sum(levels.astype(np.int8) * q, dtype=np.int8))
        dotted = int(levels.astype(np.int8) @ q)
    stored = float(int(block[0]) + 256 * int(block[1])) * float(d)
    known = {
        "8 was not taken from the nibbles": scale * int((levels + 8) @ wide),
        "low nibbles are weights 0 to 15, high ones 16 to 31; yours go by pairs": scale
        * int(by_pairs @ wide),
        "nibble - 8 wraps round in uint8; make it a signed type first": scale * int(wrapped @ wide),
        "products do not fit int8; widen before you multiply": scale * narrow,
        "the sum of products does not fit int8; widen before you multiply": scale * narrow_sum,
        "a dot of two int8 arrays stays int8; widen before you multiply": scale * dotted,
        "the scale d of the activations is missing": float(_scale(block)) * int(levels @ wide),
        "the block's own scale is missing": float(d) * int(levels @ wide),
        "the block's scale is an fp16 number, not a whole one": stored * int(levels @ wide),
    }
    for words, value in known.items():
        if abs(got - value) <= 1e-4 * abs(value):
            return f" That is the number one gets where {words}."
    return ""
