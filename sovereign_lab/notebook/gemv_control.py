"""Exercise 18.1: the control. A gemv_q4_0 that deals its work as the Tensor Core kernel does, and multiplies itself."""

import numpy as np

from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import Trace, trace
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS

MMA = op("gemv_q4_0").variant("mma")
ROWS_A_BLOCK, WARPS = 16, 8
ROWS, BLOCKS_PER_ROW = 32, 16


def traced(source: str) -> Trace:
    """A kernel in the launch of gemv_q4_0:mma, on 32 rows of 16 blocks. Raises LabError as `trace` does."""
    rng = np.random.default_rng(0)
    args = {
        "W": rng.integers(0, 60, (ROWS, BLOCKS_PER_ROW * BLOCK_BYTES), np.uint8),
        "x": rng.standard_normal(BLOCKS_PER_ROW * BLOCK_WEIGHTS, np.float32),
        "y": np.zeros(ROWS, np.float32),
        "rows": ROWS,
        "blocks_per_row": BLOCKS_PER_ROW,
    }
    return trace(source, ROWS // ROWS_A_BLOCK, MMA.threads, args, name="yours.cu")


def products(mine: Trace) -> int:
    """Products that Tensor Cores made in it."""
    return sum(row.products for row in mine.flow)


def fault(mine: Trace) -> str | None:
    """Where a kernel, right and traced, deals its work otherwise than the mma kernel does; None for nowhere."""
    reads = mine.events[(mine.events["store"] == 0) & (mine.events["shared"] == 0)]
    base, nbytes = next((b, n) for name, b, n in mine.arrays if name == "W")
    mine_of_w = (reads["address"] >= base) & (reads["address"] < base + nbytes)
    found = (reads["address"][mine_of_w].astype(np.int64) - base) // BLOCK_BYTES
    row, k = found // BLOCKS_PER_ROW, found % BLOCKS_PER_ROW
    block, warp = reads["block"][mine_of_w], reads["thread"][mine_of_w] // 32
    astray = np.flatnonzero(row // ROWS_A_BLOCK != block)
    if len(astray):
        i = astray[0]
        return (
            f"The results are right, but block {block[i]} reads row {row[i]}; in the mma kernel it has the rows from "
            f"{block[i] * ROWS_A_BLOCK} to {block[i] * ROWS_A_BLOCK + ROWS_A_BLOCK - 1}."
        )
    astray = np.flatnonzero(k % WARPS != warp)
    if len(astray):
        i = astray[0]
        return (
            f"The results are right, but warp {warp[i]} reads block {k[i]} of row {row[i]}; in the mma kernel warp "
            f"{k[i] % WARPS} does: every eighth block is a warp's."
        )
    return None
