"""Gate, up and SwiGLU as three launches and as one: the chapter on the fused FFN counts and compares them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import Trace, trace
from sovereign_lab.models.model import Config
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.notebook.op_times import forward_ms
from sovereign_lab.notebook.runs import Run
from sovereign_lab.notebook.table import Table

FLOAT = 4


def activation_bytes(rows: int, cols: int) -> dict[str, int]:
    """Bytes that fusing saves in one layer, by what they are; gate and up have `rows` values, x has `cols`."""
    return {
        "x, read a second time": cols * FLOAT,
        "gate and up, written": 2 * rows * FLOAT,
        "gate and up, read back": 2 * rows * FLOAT,
    }


def weight_bytes(config: Config) -> int:
    """Bytes of gate and up over all layers, in Q4_0: read before fusing and after."""
    blocks = config.ffn_dim * config.dim // BLOCK_WEIGHTS
    return 2 * blocks * BLOCK_BYTES * config.layers


def traces(rows: int, blocks_per_row: int) -> dict[str, Trace]:
    """Exact traffic of the three launches and of the fused one, on random weights of this shape."""
    rng = np.random.default_rng(0)
    shape = (rows, blocks_per_row * BLOCK_BYTES)
    W_gate, W_up = (rng.integers(0, 60, shape, np.uint8) for _ in range(2))
    x = rng.standard_normal(blocks_per_row * BLOCK_WEIGHTS, np.float32)
    y = np.zeros(rows, np.float32)
    size = {"rows": rows, "blocks_per_row": blocks_per_row}
    return {
        "gate": _trace("gemv_q4_0", "coalesced", {"W": W_gate, "x": x, "y": y, **size}),
        "up": _trace("gemv_q4_0", "coalesced", {"W": W_up, "x": x, "y": y, **size}),
        "swiglu": _trace("swiglu", "elementwise", {"gate": y, "up": y, "hidden": y, "n": rows}),
        "fused": _trace(
            "ffn_swiglu", "fused", {"W_gate": W_gate, "W_up": W_up, "x": x, "hidden": y, **size}
        ),
    }


def _trace(op_name: str, variant: str, args: Mapping[str, Any]) -> Trace:
    chosen = op(op_name)
    kernel = chosen.variant(variant)
    return trace(kernel.path, chosen.grid(kernel, args), kernel.threads, args)


def request_table(launches: Mapping[str, Trace]) -> Table:
    """Load requests and sectors of each launch, the three together, and the fused one over that."""
    counts = {
        name: (t.requests("load"), t.sectors("load"), t.requests("store"))
        for name, t in launches.items()
    }
    fused = counts.pop("fused")
    separate = tuple(sum(column) for column in zip(*counts.values(), strict=True))
    rows = [[name, *(f"{n:,}" for n in row)] for name, row in counts.items()]
    rows.append(["the three together", *(f"{n:,}" for n in separate)])
    rows.append(["fused", *(f"{n:,}" for n in fused)])
    shares = (f"{after / before:.3f}" for before, after in zip(separate, fused, strict=True))
    rows.append(["fused / the three", *shares])
    return Table(["launch", "load requests", "load sectors", "store requests"], rows)


def saving_by_position(
    run: Run, before: str, after: str, positions: tuple[int, ...] = (16, 256, 512, 1024, 2048, 4000)
) -> Table:
    """What a phase saves of a forward pass at each position: microseconds, and their share of the pass before."""
    rows = []
    for position in positions:
        first, second = (forward_ms(run, phase, position) for phase in (before, after))
        rows.append(
            [
                f"{position:,}",
                f"{first:.3f} ms",
                f"{second:.3f} ms",
                f"{1e3 * (first - second):.0f} us",
                f"{100 * (first - second) / first:.1f} %",
            ]
        )
    return Table(["position", f"phase {before}", f"phase {after}", "saved", "of the pass"], rows)
