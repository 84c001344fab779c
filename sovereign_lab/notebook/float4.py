"""The chapter on wider loads: what the three kernels of phase 8c do to memory, and what each was worth.

Counts are of a row, from the trace of a few rows, so they are exact. Times are those of a recorded run in which every
op's launches of one forward pass were replayed alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.measure.memory_trace import SECTOR_BYTES, Trace, trace
from sovereign_lab.measure.roofline import find_gpu, token_bytes
from sovereign_lab.models.model import matrix_shapes
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.notebook.gemv_times import Shape
from sovereign_lab.notebook.op_times import forward_ms, op_times
from sovereign_lab.notebook.runs import Run
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.notebook.table import Table

BEFORE, AFTER = "8b", "8c"
OPS = tuple(PHASES[AFTER].change)
ROWS, COLS = 64, 2048
POSITIONS = (16, 256, 512, 1024, 2048, 4000)


@dataclass(frozen=True)
class RowCounts:
    """What a warp does for one row of 2,048 columns, exactly.

    `sectors` counts a sector once for every request that touches it, `distinct` once for the whole row, x included.
    `lane_loads`: loads of single lanes. `shuffles`: those that lane 0 passes before it stores the row.
    """

    requests: float
    sectors: float
    distinct: float
    lane_loads: float
    shuffles: int
    trace: Trace = field(repr=False)


def variant_of(op_name: str, phase: str) -> Variant:
    """The kernel that computes an op in a phase."""
    return op(op_name).variant(PHASES[phase].plan[op_name])


def arguments(op_name: str) -> dict[str, Any]:
    """Arguments for one of the three ops: 64 rows of 2,048 columns. Raises LabError for another op."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(COLS, np.float32)
    y = np.zeros(ROWS, np.float32)
    blocks_per_row = COLS // BLOCK_WEIGHTS

    def weights() -> np.ndarray:
        return rng.integers(0, 60, (ROWS, blocks_per_row * BLOCK_BYTES), np.uint8)

    sizes = {"rows": ROWS, "blocks_per_row": blocks_per_row}
    if op_name == "gemv_q4_0":
        return {"W": weights(), "x": x, "y": y, **sizes}
    if op_name == "ffn_swiglu":
        return {"W_gate": weights(), "W_up": weights(), "x": x, "hidden": y, **sizes}
    if op_name == "logits":
        W = rng.standard_normal((ROWS, COLS), np.float32)
        return {"W": W, "x": x, "y": y, "vocab": ROWS, "dim": COLS}
    raise LabError(f"Phase {AFTER} changes {', '.join(OPS)}; got {op_name!r}.")


def row_counts(op_name: str, phase: str) -> RowCounts:
    """The counts of an op's kernel of a phase. Raises LabError where the phase does not change the op."""
    variant, args = variant_of(op_name, phase), arguments(op_name)
    traced = trace(variant.path, op(op_name).grid(variant, args), variant.threads, args)
    events = traced.events
    loads, stores = events[events["store"] == 0], events[events["store"] == 1]
    sectors = np.unique(loads["address"] // SECTOR_BYTES)
    x_sectors = COLS * 4 // SECTOR_BYTES  # shared by all rows
    return RowCounts(
        requests=traced.requests("load") / ROWS,
        sectors=traced.sectors("load") / ROWS,
        distinct=(len(sectors) - x_sectors) / ROWS + x_sectors,
        lane_loads=len(loads) / ROWS,
        # The kernels have no barrier, so an access's epoch is the number of shuffles before it.
        shuffles=int(stores["epoch"].max()),
        trace=traced,
    )


def counts_table(counts: Mapping[str, Sequence[RowCounts]]) -> Table:
    """`counts`: op -> before and after."""
    head = [
        "a row of 2,048",
        "load requests",
        "sectors of all requests",
        "distinct sectors",
        "shuffles",
    ]
    rows = []
    for op_name, both in counts.items():
        for phase, c in zip((BEFORE, AFTER), both, strict=True):
            name = f"{op_name}, {variant_of(op_name, phase).name}"
            numbers = (c.requests, c.sectors, c.distinct, c.shuffles)
            rows.append([name, *(f"{n:,.0f}" for n in numbers)])
    return Table(head, rows)


# ---- recorded times ----


def weight_bytes(op_name: str) -> int:
    """Bytes of weights that an op reads for a token of TinyLlama, at phases that fuse gate and up."""
    if op_name == "logits":
        return token_bytes(TINYLLAMA).head
    fused = ("w_gate", "w_up")
    shapes = [
        shape
        for name, shape in matrix_shapes(TINYLLAMA).items()
        if (name in fused) == (op_name == "ffn_swiglu")
    ]
    return TINYLLAMA.layers * sum(Shape(*shape, 1).nbytes for shape in shapes)


def memory_rate(run: Run, op_name: str, phase: str) -> float:
    """GB/s at which an op read its weights."""
    return weight_bytes(op_name) / op_times(run, phase)[op_name].us / 1e3


def times_table(run: Run) -> Table:
    """By op: what a token spends in it before and after, and the rate at which it reads weights."""
    gpu = find_gpu(run.device)
    if gpu is None:
        raise LabError(
            f"No bandwidth is known for {run.device}; roofline.GPUS lists those that are."
        )
    rows = []
    for op_name in OPS:
        before, after = (op_times(run, p)[op_name] for p in (BEFORE, AFTER))
        rates = [memory_rate(run, op_name, p) for p in (BEFORE, AFTER)]
        rows.append(
            [
                f"{op_name} x {before.launches}",
                f"{weight_bytes(op_name) / 1e6:.1f} MB",
                f"{before.us:.1f} us",
                f"{after.us:.1f} us",
                f"{before.us / after.us:.2f} times as fast",
                *(f"{rate:,.0f} GB/s, {rate / gpu.bandwidth:.0%}" for rate in rates),
            ]
        )
    what = f"of {gpu.bandwidth:,.0f} GB/s"
    head = ["op", "weights", BEFORE, AFTER, "", f"{BEFORE}, {what}", f"{AFTER}, {what}"]
    return Table(head, rows)


def context_table(run: Run) -> Table:
    """By position: a forward pass before and after."""
    rows = []
    for position in POSITIONS:
        before, after = (forward_ms(run, phase, position) for phase in (BEFORE, AFTER))
        rows.append(
            [
                f"{position:,}",
                f"{before:.2f} ms",
                f"{after:.2f} ms",
                f"{before - after:.2f} ms",
                f"{before / after:.2f} times as fast",
            ]
        )
    return Table(["position", BEFORE, AFTER, "saved", ""], rows)
