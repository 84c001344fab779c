"""Weights in tiles: every weight and scale at its own address, odd sizes filled with zeros, the same weights back."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from sovereign_lab.models.model import Table
from sovereign_lab.models.quants import BLOCK_BYTES, quantise_q4_0, unpack_q4_0
from sovereign_lab.models.tiles import (
    Q4_0_PAIR,
    Q8_0_BYTES,
    Q8_0_PAIR,
    TILE_ROWS,
    pairs,
    q8_0_blocks,
    q8_0_float32,
    tile_q4_0,
    tile_q8_0,
    untile_q4_0,
    untile_q8_0,
)

# rows, blocks_per_row: whole tiles and pairs, a row or a block too many, one too few, one alone.
SIZES = [(8, 4), (9, 5), (7, 3), (1, 1), (4, 1), (130, 2)]


def random_blocks(rows: int, blocks_per_row: int, block_bytes: int) -> np.ndarray:
    """Every byte of the weights, and scales that are numbers: uint8 [rows, blocks_per_row * block_bytes]."""
    rng = np.random.default_rng(rows * 100 + blocks_per_row)
    blocks = rng.integers(0, 256, (rows, blocks_per_row, block_bytes), np.uint8)
    scales = rng.standard_normal((rows, blocks_per_row, 1)).astype(np.float16)
    blocks[..., :2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize(("rows", "blocks_per_row"), SIZES)
def test_tiles_hold_the_weights_of_their_blocks(rows: int, blocks_per_row: int) -> None:
    cols = 32 * blocks_per_row
    q4, q8 = (random_blocks(rows, blocks_per_row, size) for size in (BLOCK_BYTES, Q8_0_BYTES))
    np.testing.assert_array_equal(untile_q4_0(tile_q4_0(q4), rows, cols), unpack_q4_0(q4))
    expected = dequantize(q8, Type.Q8_0).reshape(rows, cols)
    np.testing.assert_array_equal(untile_q8_0(tile_q8_0(q8), rows, cols), expected)


@pytest.mark.parametrize(("rows", "blocks_per_row"), SIZES)
def test_what_is_lacking_to_whole_tiles_is_zero(rows: int, blocks_per_row: int) -> None:
    whole_rows, whole_cols = -(-rows // TILE_ROWS) * TILE_ROWS, 64 * pairs(32 * blocks_per_row)
    for tile, untile, block_bytes, pair in (
        (tile_q4_0, untile_q4_0, BLOCK_BYTES, Q4_0_PAIR),
        (tile_q8_0, untile_q8_0, Q8_0_BYTES, Q8_0_PAIR),
    ):
        tiles = tile(random_blocks(rows, blocks_per_row, block_bytes))
        assert tiles.dtype == np.uint32
        assert tiles.shape == (whole_rows // TILE_ROWS, whole_cols // 64 * pair)
        weights = untile(tiles, whole_rows, whole_cols)
        assert not weights[rows:].any() and not weights[:, 32 * blocks_per_row :].any()


def address(
    row: int, block: int, blocks_per_row: int, part: int, parts: int, pair_words: int
) -> tuple[int, int]:
    """Bytes from the start of the matrix to 16 bytes of a block's weights, and to its scale: as tiles.cuh has them."""
    count = (blocks_per_row + 1) // 2
    tile = row // 4 * count * pair_words * 4
    pair, place = block // 2, block % 2 * 4 + row % 4
    return (
        tile + ((pair * parts + part) * 8 + place) * 16,
        tile + count * parts * 128 + (pair * 8 + place) * 2,
    )


@pytest.mark.parametrize(("rows", "blocks_per_row"), [(8, 4), (7, 5)])
def test_every_block_of_q4_0_lies_at_its_address(rows: int, blocks_per_row: int) -> None:
    blocks = random_blocks(rows, blocks_per_row, BLOCK_BYTES).reshape(rows, blocks_per_row, -1)
    memory = tile_q4_0(blocks.reshape(rows, -1)).view(np.uint8).reshape(-1)
    for row in range(rows):
        for block in range(blocks_per_row):
            at, scale_at = address(row, block, blocks_per_row, 0, 1, Q4_0_PAIR)
            there = memory[at : at + 16].view(np.int8)
            weights = unpack_q4_0(
                np.concatenate([np.array([0, 60], np.uint8), blocks[row, block, 2:]])
            )
            # A scale of 1. The nibble at the top of a byte is 16 times the weight: low ones first, then high ones.
            np.testing.assert_array_equal(there << 4, 16 * weights[:16])
            np.testing.assert_array_equal(there & -16, 16 * weights[16:])
            assert (memory[scale_at : scale_at + 2] == blocks[row, block, :2]).all()


@pytest.mark.parametrize(("rows", "blocks_per_row"), [(8, 4), (7, 5)])
def test_every_block_of_q8_0_lies_at_its_address_in_two_halves(
    rows: int, blocks_per_row: int
) -> None:
    blocks = random_blocks(rows, blocks_per_row, Q8_0_BYTES).reshape(rows, blocks_per_row, -1)
    memory = tile_q8_0(blocks.reshape(rows, -1)).view(np.uint8).reshape(-1)
    for row in range(rows):
        for block in range(blocks_per_row):
            for half in range(2):
                at, scale_at = address(row, block, blocks_per_row, half, 2, Q8_0_PAIR)
                expected = blocks[row, block, 2 + 16 * half :][:16]
                assert (memory[at : at + 16] == expected).all()
                assert (memory[scale_at : scale_at + 2] == blocks[row, block, :2]).all()


def test_pairs_are_rounded_up() -> None:
    assert [pairs(cols) for cols in (32, 64, 96, 2048, 2080)] == [1, 1, 2, 32, 33]


def test_tiles_are_as_large_as_the_file_where_nothing_is_added() -> None:
    assert tile_q4_0(random_blocks(8, 4, BLOCK_BYTES)).nbytes == 8 * 4 * BLOCK_BYTES
    assert tile_q8_0(random_blocks(8, 4, Q8_0_BYTES)).nbytes == 8 * 4 * Q8_0_BYTES


# ---- the head in Q8_0 ----


def table(kind: Type, rows: int = 5, cols: int = 96) -> tuple[Table, np.ndarray]:
    """A table of that type, and its weights."""
    w = np.random.default_rng(3).standard_normal((rows, cols)).astype(np.float32)
    raw = quantise_q4_0(w) if kind == Type.Q4_0 else quantize(w, kind).view(np.uint8)
    found = Table("output.weight", rows, cols, kind, raw.reshape(rows, -1))
    return found, found.float32()


def test_a_head_in_q8_0_keeps_the_bytes_of_its_file() -> None:
    head, weights = table(Type.Q8_0)
    assert (q8_0_blocks(head) == head.raw).all()
    np.testing.assert_array_equal(q8_0_float32(head), weights)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.Q4_0])
def test_a_head_of_another_type_is_quantised_to_the_nearest_level(kind: Type) -> None:
    head, weights = table(kind)
    blocks = q8_0_blocks(head)
    assert blocks.dtype == np.uint8 and blocks.shape == (5, 3 * Q8_0_BYTES)
    largest = np.abs(weights.reshape(5, 3, 32)).max(axis=2).repeat(32, axis=1)
    # Half a level of the largest / 127, and what rounding the scale to half moves 127 levels by.
    off = np.abs(q8_0_float32(head) - weights)
    assert (off <= largest * (0.5 / 127 + 2**-11 + 1e-6)).all() and off.any()
    tiles = tile_q8_0(blocks)
    np.testing.assert_array_equal(untile_q8_0(tiles, 5, 96), q8_0_float32(head))
