"""Quantised matrices in tiles of four rows, so that a GPU loads 16 bytes a lane and 128 bytes in a row.

A nibble of Q4_0 is its weight's level and 8 more; here it is the level itself, in two's complement, so that a mask
gives a signed byte of 16 times the level. A tile holds four rows by all columns. Its blocks of 32 weights come in
pairs: eight blocks, [2 blocks][4 rows], lie side by side, first all blocks' weights, then behind them all scales. What
rows or blocks lack to whole tiles and pairs is 0. The kernels' side is kernels/include/tiles.cuh.
"""

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from sovereign_lab.models.model import Table
from sovereign_lab.models.quants import BLOCK_BYTES, Blocks, Floats

TILE_ROWS = 4
Q8_0_BYTES = 34
# uint32 words of a pair of blocks in the four rows of a tile: weights and scales.
Q4_0_PAIR = 36
Q8_0_PAIR = 68

Words = npt.NDArray[np.uint32]


def pairs(cols: int) -> int:
    """Pairs of blocks in a row of so many columns."""
    return (cols // 32 + 1) // 2


def tile_q4_0(blocks: Blocks) -> Words:
    """uint8 [rows, blocks_per_row * 18] -> uint32 [rows / 4, pairs * 36], both rounded up."""
    scales, nibbles = _parts(blocks, BLOCK_BYTES)
    nibbles = nibbles ^ np.uint8(0x88)
    # [tiles, rows, pairs, blocks, bytes] -> a pair's eight blocks side by side
    return _tiles(nibbles.transpose(0, 2, 3, 1, 4), scales)


def tile_q8_0(blocks: Blocks) -> Words:
    """uint8 [rows, blocks_per_row * 34] -> uint32 [rows / 4, pairs * 68]: of every block first its first 16 values."""
    scales, values = _parts(blocks, Q8_0_BYTES)
    halves = values.reshape(*values.shape[:-1], 2, 16)
    return _tiles(halves.transpose(0, 2, 4, 3, 1, 5), scales)


def untile_q4_0(tiles: Words, rows: int, cols: int) -> Floats:
    """The weights of tile_q4_0's tiles: float32 [rows, cols]."""
    weights, scales = _split(tiles, Q4_0_PAIR)
    by_block = weights.reshape(len(tiles), -1, 2, TILE_ROWS, 16).transpose(0, 3, 1, 2, 4)
    low, high = (by_block << 4).view(np.int8), (by_block & 0xF0).view(np.int8)
    levels = np.concatenate([low, high], axis=-1).astype(np.float32) / np.float32(16)
    return _floats(levels, scales, rows, cols)


def untile_q8_0(tiles: Words, rows: int, cols: int) -> Floats:
    """The weights of tile_q8_0's tiles: float32 [rows, cols]."""
    weights, scales = _split(tiles, Q8_0_PAIR)
    by_half = weights.view(np.int8).reshape(len(tiles), -1, 2, 2, TILE_ROWS, 16)
    levels = by_half.transpose(0, 4, 1, 3, 2, 5).astype(np.float32)
    return _floats(levels.reshape(*levels.shape[:4], 32), scales, rows, cols)


def q8_0_blocks(table: Table) -> Blocks:
    """A table's rows in Q8_0, uint8 [rows, cols / 32 * 34]: as in the file, or quantised from what is there."""
    if table.type == GGMLQuantizationType.Q8_0:
        return table.raw.reshape(table.rows, -1)
    return quantize(table.float32(), GGMLQuantizationType.Q8_0)


def q8_0_float32(table: Table) -> Floats:
    """The weights that q8_0_blocks holds: float32 [rows, cols]."""
    return dequantize(q8_0_blocks(table), GGMLQuantizationType.Q8_0).reshape(table.rows, -1)


def _parts(blocks: Blocks, block_bytes: int) -> tuple[npt.NDArray[np.uint8], ...]:
    """Scales and the rest, uint8 [tiles, 4 rows, pairs, 2 blocks, bytes], with zeros for what is not there."""
    rows, blocks_per_row = len(blocks), blocks.shape[1] // block_bytes
    whole = np.zeros(
        (-(-rows // TILE_ROWS) * TILE_ROWS, (blocks_per_row + 1) // 2 * 2, block_bytes), np.uint8
    )
    whole[:rows, :blocks_per_row] = blocks.reshape(rows, blocks_per_row, block_bytes)
    by_tile = whole.reshape(len(whole) // TILE_ROWS, TILE_ROWS, -1, 2, block_bytes)
    return by_tile[..., :2], by_tile[..., 2:]


def _tiles(weights: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> Words:
    count = len(weights)
    parts = [part.reshape(count, -1) for part in (weights, scales.transpose(0, 2, 3, 1, 4))]
    return np.concatenate(parts, axis=1).view(np.uint32)


def _split(tiles: Words, pair: int) -> tuple[npt.NDArray[np.uint8], Floats]:
    """Weights as bytes [tiles, ...], and scales float32 [tiles, rows, pairs, 2]."""
    as_bytes = np.ascontiguousarray(tiles).view(np.uint8)
    count = as_bytes.shape[1] // (4 * pair)
    weights, scales = np.split(as_bytes, [count * (4 * pair - 16)], axis=1)
    halves = np.ascontiguousarray(scales).view(np.float16).reshape(len(tiles), count, 2, TILE_ROWS)
    return np.ascontiguousarray(weights), halves.transpose(0, 3, 1, 2).astype(np.float32)


def _floats(levels: Floats, scales: Floats, rows: int, cols: int) -> Floats:
    """Levels [tiles, rows, pairs, 2, 32] times scales, without what tiling added."""
    weights = levels * scales[..., None]
    return weights.reshape(len(weights) * TILE_ROWS, -1)[:rows, :cols]
