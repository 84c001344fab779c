"""Where a weight lies in a matrix of tiles: what exercise 19.1 asks for, and the picture of a tile.

The layout is models/tiles.py's: tiles of four rows, pairs of blocks, weights first and scales behind.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.models.tiles import TILE_ROWS
from sovereign_lab.notebook.table import Table

NIBBLES, SCALE = 16, 2  # bytes of a block in a tile
SIDE_BY_SIDE = 2 * TILE_ROWS  # blocks of a pair
# Rows and blocks a row; an odd number of blocks leaves half a pair empty.
SHAPES = ((4, 2), (8, 4), (7, 5), (9, 1), (12, 64))

Place = tuple[int, str, int]


def place(row: int, column: int, blocks_per_row: int) -> Place:
    """The byte of a weight in W, "low" or "high" for its nibble, and the byte at which its scale begins."""
    pairs = (blocks_per_row + 1) // 2
    tile, r = divmod(row, TILE_ROWS)
    block, i = divmod(column, BLOCK_WEIGHTS)
    pair, b = divmod(block, 2)
    begins = tile * pairs * SIDE_BY_SIDE * BLOCK_BYTES
    among = b * TILE_ROWS + r
    nibble = begins + (pair * SIDE_BY_SIDE + among) * NIBBLES + i % NIBBLES
    scales = begins + pairs * SIDE_BY_SIDE * NIBBLES
    return (
        nibble,
        "low" if i < NIBBLES else "high",
        scales + (pair * SIDE_BY_SIDE + among) * SCALE,
    )


def tile_table(blocks_per_row: int = 4) -> Table:
    """The 16-byte pieces of a tile in the order of its bytes: which row's and whose columns' weights they hold."""
    rows = []
    pairs = (blocks_per_row + 1) // 2
    for pair in range(pairs):
        for b in range(2):
            block = 2 * pair + b
            for r in range(TILE_ROWS):
                first = place(r, block * BLOCK_WEIGHTS, blocks_per_row)
                columns = f"{block * BLOCK_WEIGHTS} to {(block + 1) * BLOCK_WEIGHTS - 1}"
                lane = b * TILE_ROWS + r + SIDE_BY_SIDE * pair
                rows.append(
                    [
                        f"{first[0]} to {first[0] + NIBBLES - 1}",
                        str(r),
                        columns,
                        str(lane),
                        f"{first[2]}, {first[2] + 1}",
                    ]
                )
    return Table(["bytes", "row", "columns", "lane of wide", "its scale's bytes"], rows)


def fault(answer: Callable[[int, int, int], Any]) -> str | None:
    """What is wrong with an answer to 19.1: None for nothing, "" where it is the starter."""
    rng = np.random.default_rng(19)
    for rows, blocks in SHAPES:
        asked = {(0, 0), (rows - 1, blocks * BLOCK_WEIGHTS - 1)} | {
            (int(rng.integers(rows)), int(rng.integers(blocks * BLOCK_WEIGHTS))) for _ in range(24)
        }
        for row, column in sorted(asked):
            right = place(row, column, blocks)
            try:
                got = answer(row, column, blocks)
            except Exception as error:
                return f"Row {row}, column {column}: your function raises {type(error).__name__}: {error}"
            if got is None:
                return ""
            if not isinstance(got, tuple | list) or len(got) != 3:
                return f"An answer is (byte, 'low' or 'high', byte of the scale); got {got!r}."
            if tuple(got) != right:
                return _why(row, column, blocks, right, tuple(got))
    return None


def _why(row: int, column: int, blocks: int, right: Place, got: tuple[Any, ...]) -> str:
    where = (
        f"Row {row}, column {column}, {blocks} block{'' if blocks == 1 else 's'} a row: "
        f"the {right[1]} nibble of byte {right[0]}, its scale from byte {right[2]} on; yours says {got!r}."
    )
    if got[:2] == right[:2]:
        return f"{where} The nibble is right. Scales lie behind all weights of their tile, in the same order."
    if got[0] == right[0]:
        return f"{where} The byte is right: it holds weight i in its low nibble and i + 16 in its high one."
    if blocks % 2 and row >= TILE_ROWS:
        return f"{where} An odd number of blocks fills its last pair with zeros: a tile has whole pairs."
    return f"{where} Of a pair, first the first block of all four rows lies there, then the second one of all four."
