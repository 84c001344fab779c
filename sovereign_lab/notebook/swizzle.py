"""Where chunks of a tile lie in shared memory: bank conflicts counted, and exercise 17.1.

A chunk is 16 bytes, four of the 32 banks. `ldmatrix` reads the same chunk of eight neighbouring rows at once, and a
store of 16 bytes a lane goes out eight lanes at a time: each takes one pass where its eight chunks lie in different
banks.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import Trace, trace
from sovereign_lab.models.quants import BLOCK_WEIGHTS
from sovereign_lab.notebook.table import Table

CHUNK_BANKS, AT_ONCE = 8, 8  # places of 16 bytes in 128; rows that are read at once
ROWS, CHUNKS = 128, 4  # of the exercise's tile: 32 halves a row


def block_trace(steps: int = 4) -> Trace:
    """One block of gemm_q4_0:mma, a tile of 128 rows and 64 tokens, traced over so many steps of 64 weights."""
    variant = op("gemm_q4_0").variant("mma")
    rows, count, blocks_per_row = 128, 64, 2 * steps
    rng = np.random.default_rng(0)
    args = {
        "nibbles": rng.integers(0, 2**32, (rows, blocks_per_row * 4), np.uint32),
        "scales": np.full((rows, blocks_per_row), 0.01, np.float16),
        "x": rng.standard_normal((count, blocks_per_row * BLOCK_WEIGHTS)).astype(np.float16),
        "y": np.zeros((count, rows), np.float32),
        "rows": rows,
        "blocks_per_row": blocks_per_row,
        "count": count,
        "accumulate": 0,
    }
    return trace(variant.path, 1, variant.threads, args)


def wavefronts(traced: Trace) -> int:
    """Passes over the banks of all shared accesses."""
    return sum(row.wavefronts for row in traced.lines if row.space == "shared")


def by_line_table(traced: Trace) -> Table:
    """Each line that touches shared memory: requests, passes over the banks, and those of them that are conflicts."""
    shared = [row for row in traced.lines if row.space == "shared"]
    rows = []
    for row in shared:
        tile = re.search(r"\w+_tiles?", row.text)
        numbers = (row.requests, row.wavefronts, row.bank_conflicts)
        name = tile.group() if tile else row.text
        rows.append([str(row.line), f"{name}, {row.kind}", *(f"{n:,}" for n in numbers)])
    total = f"{wavefronts(traced):,}"
    conflicts = f"{sum(row.bank_conflicts for row in shared):,}"
    requests = f"{sum(row.requests for row in shared):,}"
    rows.append(["together", "", requests, total, conflicts])
    return Table(["line", "tile", "requests", "passes", "conflicts"], rows)


# ---- exercise 17.1 ----


def fault(answer: Callable[[int, int], Any]) -> str | None:
    """What is wrong with a `place(row, c)` for 128 rows of 4 chunks: None for nothing, "" where it is the starter."""
    places = np.empty((ROWS, CHUNKS), np.int64)
    owner: dict[int, tuple[int, int]] = {}
    for row in range(ROWS):
        for c in range(CHUNKS):
            try:
                got = answer(row, c)
            except Exception as error:
                return f"Row {row}, chunk {c}: your function raises {type(error).__name__}: {error}"
            if got is None:
                return ""
            if not isinstance(got, int | np.integer) or not 0 <= got < ROWS * CHUNKS:
                return (
                    f"Row {row}, chunk {c}: place {got!r} is not one of the tile's {ROWS * CHUNKS}, 0 to "
                    f"{ROWS * CHUNKS - 1}; there is no room for padding."
                )
            at = int(got)
            if at in owner:
                other, its = owner[at]
                return f"Row {row}, chunk {c} and row {other}, chunk {its} both lie at {at}."
            owner[at] = (row, c)
            places[row, c] = at
    for first in range(0, ROWS, AT_ONCE):
        for c in range(CHUNKS):
            passes = _passes(places[first : first + AT_ONCE, c])
            if passes > 1:
                last = first + AT_ONCE - 1
                return f"Rows {first} to {last}, chunk {c}: ldmatrix takes {passes} passes in place of 1."
    for first in range(0, ROWS, AT_ONCE // CHUNKS):
        passes = _passes(places[first : first + AT_ONCE // CHUNKS].reshape(-1))
        if passes > 1:
            return (
                f"Rows {first} and {first + 1}, stored side by side: {passes} passes in place of 1."
            )
    return None


def _passes(places: np.ndarray) -> int:
    """Passes for eight chunks at once: the most that share four banks."""
    return int(np.bincount(places % CHUNK_BANKS, minlength=CHUNK_BANKS).max())
