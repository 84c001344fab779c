"""A matrix in the file's layout and in tiles: what a product asks memory for, counted, by kernel.

32 rows of 2,048 columns are traced; tables are of all 2,048, since every block does the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import SECTOR_BYTES, Access, Trace, trace
from sovereign_lab.measure.roofline import GPU, floor, token_bytes
from sovereign_lab.models.model import Config
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.models.tiles import tile_q4_0
from sovereign_lab.notebook.array_traffic import array_traffic
from sovereign_lab.notebook.table import Table

ROWS, COLS = 2048, 2048
TRACED_ROWS = 32
FILE, TILES = "gemv_q4_0", "gemv_tiles"
KERNELS = {
    "float4": FILE,
    "mma": FILE,
    "wide": TILES,
    "dp4a": TILES,
    "columns": TILES,
}  # variant -> op


def arguments(op_name: str, rows: int = TRACED_ROWS) -> dict[str, Any]:
    """Arguments of a product with the same W, `rows` rows of 2,048 columns: as in the file, or in tiles."""
    rng = np.random.default_rng(0)
    blocks = COLS // BLOCK_WEIGHTS
    W = rng.integers(0, 60, (rows, blocks * BLOCK_BYTES), np.uint8)
    return {
        "W": tile_q4_0(W) if op_name == TILES else W,
        "x": rng.standard_normal(COLS, np.float32),
        "y": np.zeros(rows, np.float32),
        "rows": rows,
        "blocks_per_row": blocks,
    }


def traced(name: str) -> Trace:
    """The trace of one of KERNELS on 32 rows."""
    chosen = op(KERNELS[name])
    variant, args = chosen.variant(name), arguments(chosen.name)
    return trace(
        variant.path,
        chosen.grid(variant, args),
        variant.threads,
        args,
        shared_bytes=variant.shared_bytes(args),
    )


@dataclass(frozen=True)
class Counts:
    """What a kernel does for 2,048 x 2,048: requests and sectors of W and of x, and what its warps do besides."""

    w_requests: int
    w_sectors: int
    x_requests: int
    x_sectors: int
    shared_requests: int
    shared_wavefronts: int
    barriers: int
    shuffles: int

    @property
    def bytes_a_request(self) -> float:
        """Bytes of W that a request brings, the mean."""
        return ROWS * COLS // BLOCK_WEIGHTS * BLOCK_BYTES / self.w_requests

    @property
    def requests_a_row(self) -> float:
        """Requests of W a row."""
        return self.w_requests / ROWS


def counts(t: Trace) -> Counts:
    """The counts of a trace of `traced`, for all 2,048 rows."""
    times = ROWS // TRACED_ROWS
    arrays = array_traffic(t)
    w, x = arrays["W"], arrays["x"]
    shared = [row for row in t.lines if row.space == "shared"]
    found = (
        w.requests, w.sectors, x.requests, x.sectors,
        sum(row.requests for row in shared), sum(row.wavefronts for row in shared),
        sum(row.barriers for row in t.flow), sum(row.shuffles for row in t.flow),
    )  # fmt: skip
    return Counts(*(times * n for n in found))


LINES = {
    "requests for W": "w_requests",
    "sectors of them": "w_sectors",
    "requests for x": "x_requests",
    "sectors of x": "x_sectors",
    "requests to shared memory": "shared_requests",
    "passes over its banks": "shared_wavefronts",
    "times a warp waits at __syncthreads": "barriers",
    "shuffles": "shuffles",
}


def counts_table(found: Mapping[str, Counts], only: tuple[str, ...] = tuple(LINES)) -> Table:
    """By kernel: the lines of LINES that are named, of 2,048 x 2,048."""
    rows = [[what, *(f"{getattr(c, LINES[what]):,}" for c in found.values())] for what in only]
    return Table([f"{ROWS:,} x {COLS:,}, one token", *found], rows)


def least_sectors() -> int:
    """Sectors of W's bytes, each once."""
    return ROWS * COLS // BLOCK_WEIGHTS * BLOCK_BYTES // SECTOR_BYTES


def first_requests(traces: Mapping[str, Trace]) -> dict[str, list[Access]]:
    """The first request for weights of float4 and of wide, as `plots.warp_addresses` draws them."""
    places = {"float4": "float dot = (float)((bytes[0]", "wide": "load_once(nibbles"}
    labels = {"float4": "the file's layout, a byte a lane", "wide": "tiles, 16 bytes a lane"}
    found = {}
    for name, text in places.items():
        lines = traces[name].source.splitlines()
        (line,) = (n for n, code in enumerate(lines, 1) if text in code)
        found[labels[name]] = traces[name].accesses(line, array="W")
    return found


# ---- bytes a token ----

HEADS = {
    "FP32, phases 7 to 9": GGMLQuantizationType.F32,
    "Q8_0, from phase 10 on": GGMLQuantizationType.Q8_0,
    "Q6_K, llama.cpp": GGMLQuantizationType.Q6_K,
}


def head_table(config: Config, gpu: GPU) -> Table:
    """By the head's type: its bytes, those of a token, and the least time that they take a GPU."""
    rows = []
    for name, type in HEADS.items():
        found = token_bytes(config, type)
        ms = floor(found.at(0), gpu).ms
        rows.append(
            [
                name,
                f"{found.head / 1e6:.1f} MB",
                f"{found.at(0) / 1e6:.1f} MB",
                f"{1e3 * ms:.1f} us",
            ]
        )
    return Table(["head in", "the head", "a token", f"at {gpu.bandwidth:,.0f} GB/s"], rows)
