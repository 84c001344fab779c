"""What a product with few columns wastes on Tensor Cores: multiplications made against needed, exactly.

A kernel multiplies whole tiles; what x does not fill is zeros, multiplied all the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sovereign_lab.engine import Engine
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.bench import Figure
from sovereign_lab.measure.memory_trace import Trace, trace
from sovereign_lab.measure.nsight import (
    LOAD_REQUESTS,
    LOAD_SECTORS,
    OCCUPANCY,
    REGISTERS,
    TENSOR_CORES,
    WAVEFRONTS,
)
from sovereign_lab.measure.tensor_cores import TensorRun
from sovereign_lab.models import reference
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.notebook.runs import Run
from sovereign_lab.notebook.table import Table
from sovereign_lab.notebook.tensor_roofs import decode_of

ROWS, COLS = 2048, 2048
TRACED_ROWS = 32
PRODUCT = 16 * 16 * 8  # multiplications of one instruction: 16 x 16 by 16 x 8
KERNELS = ("float4", "wmma", "mma")
WMMA_TILE, MMA_TILE = (16, 16, 16), (16, 8, 16)  # rows, columns, depth


@dataclass(frozen=True)
class Waste:
    """A product of [rows, cols] with `columns` columns, in tiles: what is multiplied, and what is needed."""

    rows: int
    cols: int
    columns: int
    tile: tuple[int, int, int]

    @property
    def products(self) -> int:
        """How many tiles are multiplied."""
        sizes = (self.rows, self.columns, self.cols)
        return int(np.prod([-(-size // t) for size, t in zip(sizes, self.tile, strict=True)]))

    @property
    def made(self) -> int:
        """Multiplications that these tiles make."""
        return self.products * int(np.prod(self.tile))

    @property
    def needed(self) -> int:
        """Multiplications of the product."""
        return self.rows * self.cols * self.columns

    @property
    def share(self) -> float:
        """Needed over made."""
        return self.needed / self.made


SHAPES = ((2048, 2048), (256, 2048), (5632, 2048), (2048, 5632), (40, 96))


def waste_table(shapes: tuple[tuple[int, int], ...] = SHAPES) -> Table:
    """By shape, at one token: tiles, multiplications made and needed, and how many times too many."""
    rows = []
    for r, c in shapes:
        wmma, mma = (Waste(r, c, 1, tile) for tile in (WMMA_TILE, MMA_TILE))
        rows.append(
            [
                f"{r:,} x {c:,}",
                f"{wmma.needed:,}",
                *(f"{w.made:,}, {w.made / w.needed:g} times" for w in (wmma, mma)),
                f"{wmma.products:,}",
            ]
        )
    head = ["W", "needed", "made in tiles 16 wide", "made in tiles 8 wide", "tiles 16 wide"]
    return Table(head, rows)


# ---- counted ----


def arguments(rows: int = TRACED_ROWS) -> dict[str, Any]:
    """Arguments of gemv_q4_0: random W of `rows` rows and 2,048 columns, and x."""
    rng = np.random.default_rng(0)
    blocks = COLS // BLOCK_WEIGHTS
    return {
        "W": rng.integers(0, 60, (rows, blocks * BLOCK_BYTES), np.uint8),
        "x": rng.standard_normal(COLS, np.float32),
        "y": np.zeros(rows, np.float32),
        "rows": rows,
        "blocks_per_row": blocks,
    }


def traced(name: str) -> Trace:
    """The trace of a kernel of gemv_q4_0 on 32 rows of 2,048 columns."""
    gemv = op("gemv_q4_0")
    variant, args = gemv.variant(name), arguments()
    return trace(variant.path, gemv.grid(variant, args), variant.threads, args)


@dataclass(frozen=True)
class Counts:
    """What a kernel does for 2,048 x 2,048: of 32 rows' blocks, times 64."""

    requests: int
    sectors: int
    shared_requests: int
    shared_wavefronts: int
    warp_barriers: int
    barriers: int
    shuffles: int
    products: int


def counts(t: Trace) -> Counts:
    """The counts of a trace of `traced`, for all 2,048 rows: all blocks do the same, row for row."""
    times = ROWS // TRACED_ROWS
    shared = [row for row in t.lines if row.space == "shared"]
    return Counts(
        times * t.requests("load"),
        times * t.sectors("load"),
        times * sum(row.requests for row in shared),
        times * sum(row.wavefronts for row in shared),
        *(times * sum(getattr(row, what) for row in t.flow)
          for what in ("warp_barriers", "barriers", "shuffles", "products")),
    )  # fmt: skip


def counts_table(traces: Mapping[str, Trace]) -> Table:
    """By kernel: `Counts` of 2,048 x 2,048."""
    named = {name: counts(t) for name, t in traces.items()}
    lines = {
        "load requests": "requests",
        "sectors of them": "sectors",
        "requests to shared memory": "shared_requests",
        "times a warp waits at __syncwarp": "warp_barriers",
        "times a warp waits at __syncthreads": "barriers",
        "shuffles": "shuffles",
        "products of 16 x 16 by 16 x 8": "products",
    }
    rows = [
        [what, *(f"{getattr(c, name):,}" for c in named.values())] for what, name in lines.items()
    ]
    return Table([f"{ROWS:,} x {COLS:,}, one token", *named], rows)


# ---- recorded ----


def times(run: TensorRun, kernels: tuple[str, ...] = KERNELS) -> dict[str, dict[str, float]]:
    """Kernel -> matrix -> microseconds of one token's product."""
    shapes = {p.matrix: f"{p.rows:,} x {p.cols:,}" for p in run.products}
    return {
        name: {shape: run.us(m, f"gemv_q4_0:{name}")[1] for m, shape in shapes.items()}
        for name in kernels
    }


COUNTERS = {
    "load requests": LOAD_REQUESTS,
    "sectors of them": LOAD_SECTORS,
    "shared-memory wavefronts": WAVEFRONTS,
    "registers a thread": REGISTERS,
    "warps that an SM can hold, of 64": OCCUPANCY,
    "Tensor Cores busy, of the time": TENSOR_CORES,
}


def counters_table(run: TensorRun, kernels: tuple[str, ...] = KERNELS) -> Table:
    """By kernel: what Nsight Compute counted on the GPU, of 2,048 x 2,048 at one token."""
    rows = []
    for what, metric in COUNTERS.items():
        values = [run.counters[f"gemv_q4_0:{name}"][metric] for name in kernels]
        percent = what.startswith(("warps", "Tensor"))
        rows.append([what, *(f"{v:.2f} %" if percent else f"{v:,.0f}" for v in values)])
    return Table([f"{ROWS:,} x {COLS:,}, counted by the GPU", *kernels], rows)


def busy(run: TensorRun, kernel: str) -> float:
    """The share of the time that the Tensor Cores worked in a kernel of gemv_q4_0, in percent."""
    return run.counters[f"gemv_q4_0:{kernel}"][TENSOR_CORES]


def shared_wavefronts(run: TensorRun, kernel: str) -> float:
    """Passes that shared memory took in a kernel of gemv_q4_0, counted by the GPU."""
    return run.counters[f"gemv_q4_0:{kernel}"][WAVEFRONTS]


def as_run(run: TensorRun, phase: str) -> Run:
    """The decode speeds of 8c and a phase, tok/s, as `runs.three_columns` reads them."""
    both = decode_of(run, phase)
    figures = [
        Figure.of(f"phase {name}, decode", "tok/s", [1e3 / ms for ms in samples])
        for name, samples in (("8c", both.base_ms), (phase, both.change_ms))
    ]
    facts = run.environment
    return Run(facts["device"], facts["date"], run.model, facts, {f.what: f for f in figures})


# ---- 15.1: how many tiles ----

QUESTIONS = (
    (2048, 2048, 1),
    (40, 96, 1),
    (2048, 2048, 16),
    (17, 48, 5),
    (256, 2048, 17),
    (1, 32, 1),
)


def fault(answer: Callable[[int, int, int], Any]) -> str | None:
    """What is wrong with an answer to 15.1, (rows, cols, tokens) -> (tiles, share needed); None if nothing.

    "" where the answer is still None.
    """
    for rows, cols, tokens in QUESTIONS:
        right = Waste(rows, cols, tokens, WMMA_TILE)
        got = answer(rows, cols, tokens)
        if got is None:
            return ""
        if not isinstance(got, tuple | list) or len(got) != 2:
            return f"An answer is (tiles, share); got {got!r}."
        asked = f"{rows:,} x {cols:,} with {tokens} token{'' if tokens == 1 else 's'}"
        tiles, share = got
        if tiles != right.products:
            return f"{asked}: {right.products:,} products of whole tiles, yours says {tiles!r}.{_why(right, tiles)}"
        if share is None or not np.isclose(share, right.share):
            turned = (
                " Needed over made, not the other way round."
                if share and np.isclose(share, 1 / right.share)
                else ""
            )
            return (
                f"{asked}: {right.needed:,} multiplications of {right.made:,} are needed, a share of "
                f"{right.share:.4g}; yours says {share!r}.{turned}"
            )
    return None


def _why(right: Waste, tiles: Any) -> str:
    """What a wrong number of tiles comes from, where it is one of the usual."""
    if tiles == right.rows * right.cols * right.columns / np.prod(right.tile):
        return " A fraction of a tile cannot be multiplied."
    if tiles == (right.rows // 16) * (right.cols // 16) * -(-right.columns // 16):
        return " The rows that do not fill a tile need one, too."
    if (
        right.columns > 1
        and tiles == Waste(right.rows, right.cols, 1, right.tile).products * right.columns
    ):
        return " Up to 16 tokens share a tile."
    return ""


# ---- how far from FP32 ----


@dataclass(frozen=True)
class Distance:
    """||a - b|| / ||b|| of a phase's logits, to the reference with the same roundings and to that with FP32 products.

    `halves`: the matrices whose products the phase computes from halves.
    """

    phase: str
    halves: tuple[str, ...]
    same: float
    fp32: float


def distances(engine: Engine, phase: str, text: str) -> list[Distance]:
    """Of the logits of a text, at phases 8c and `phase`.

    The keys and values of the references are rounded as the engine's.
    """
    model, kv = engine.model, engine.kv.dtype
    tokens = model.tokenizer.encode(text)
    plain = reference.forward(model, tokens, kv)
    found = []
    for name in ("8c", phase):
        at = engine.with_phase(name)
        same = reference.forward(model, tokens, kv, halves=at.halves) if at.halves else plain
        logits = at.logits(tokens)
        same_distance, plain_distance = (
            float(np.linalg.norm(logits - r) / np.linalg.norm(r)) for r in (same, plain)
        )
        found.append(Distance(name, at.halves, same_distance, plain_distance))
    return found


def distance_table(found: Sequence[Distance]) -> Table:
    """By phase: the two distances."""
    rows = [
        [f"phase {d.phase}", ", ".join(d.halves) or "none", f"{d.same:.1e}", f"{d.fp32:.1e}"]
        for d in found
    ]
    head = ["logits of", "matrices in halves", "to the same roundings", "to FP32 products"]
    return Table(head, rows)
