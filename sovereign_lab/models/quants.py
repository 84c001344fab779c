"""Q4_0 blocks: unpack, and quantise with a scale search.

A block holds 32 weights of one row in 18 bytes: an fp16 scale `d`, then 16 bytes `qs`. The low
nibbles of `qs` are elements 0..15, the high nibbles elements 16..31; a weight is
`(nibble - 8) * d`.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

BLOCK_WEIGHTS = 32
BLOCK_BYTES = 18

Blocks = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# The max-abs rule maps the weight that is largest in size onto -8. The search also tries to map it
# elsewhere: past the end of the range (that weight is clipped, the other 31 get a finer step),
# short of it, and, with the other sign of the scale, onto 7 and its neighbours.
_TARGETS = (-10, -9.5, -9, -8.6, -8.3, -7.7, -7.4, -7, -6.6, 8.6, 8.2, 7.8, 7.4, 7, 6.6)
# 512 KiB of weights, so that the many passes over them stay in the cache.
_BLOCKS_AT_ONCE = 4096


def unpack_q4_0(blocks: Blocks) -> Floats:
    """uint8 [..., blocks_per_row * 18] -> float32 [..., blocks_per_row * 32].

    Raises ValueError where the last dimension is not whole blocks.
    """
    if blocks.dtype != np.uint8 or blocks.shape[-1] % BLOCK_BYTES:
        raise ValueError(
            f"Q4_0 rows are uint8 and a multiple of {BLOCK_BYTES} bytes long, "
            f"but these are {blocks.dtype} and {blocks.shape[-1]}"
        )
    by_block = blocks.reshape(*blocks.shape[:-1], -1, BLOCK_BYTES)
    d = np.ascontiguousarray(by_block[..., :2]).view(np.float16).astype(np.float32)
    qs = by_block[..., 2:]
    weights = np.empty((*by_block.shape[:-1], BLOCK_WEIGHTS), np.float32)
    weights[..., :16] = qs & 15
    weights[..., 16:] = qs >> 4
    weights -= 8
    weights *= d
    return weights.reshape(*blocks.shape[:-1], -1)


def split_q4_0(blocks: Blocks) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float16]]:
    """uint8 [rows, blocks_per_row * 18] -> nibbles, uint32 [rows, blocks_per_row * 4], and scales, float16 [rows, n].

    The 16 bytes of nibbles of every block as they are, so that a GPU reads a block with one load; and the scales, with
    a 0 behind an odd number of them, so that the scales of two blocks lie in 4 aligned bytes.
    """
    rows = len(blocks)
    by_block = blocks.reshape(rows, -1, BLOCK_BYTES)
    nibbles = np.ascontiguousarray(by_block[..., 2:]).view(np.uint32).reshape(rows, -1)
    given = np.ascontiguousarray(by_block[..., :2]).view(np.float16).reshape(rows, -1)
    scales = np.zeros((rows, (given.shape[1] + 1) // 2 * 2), np.float16)
    scales[:, : given.shape[1]] = given
    return nibbles, scales


def join_q4_0(nibbles: npt.NDArray[np.uint32], scales: npt.NDArray[np.float16]) -> Blocks:
    """The way back from split_q4_0; `scales` [rows, blocks_per_row], without the 0 behind an odd number."""
    rows, blocks_per_row = scales.shape
    blocks = np.empty((rows, blocks_per_row, BLOCK_BYTES), np.uint8)
    blocks[..., :2] = np.ascontiguousarray(scales)[..., None].view(np.uint8)
    blocks[..., 2:] = nibbles.reshape(rows, blocks_per_row, 4).view(np.uint8)
    return blocks.reshape(rows, -1)


def quantise_q4_0(w: Floats, importance: Floats | None = None) -> Blocks:
    """float32 [rows, cols] -> Q4_0 blocks, uint8 [rows, cols / 32 * 18], by least squares.

    For each block, several scales around the max-abs rule are tried, each refitted to the nibbles
    it leads to, and the one with the least squared error wins. The plain rule is among them, so
    that no block is worse than by plain rounding. importance, float32 [cols], weighs the squared
    errors: with the mean square of each input of the matrix, what is minimised is the error of its
    output.

    Raises ValueError where cols is not whole blocks or a weight is not finite.
    """
    per_column = np.ones(w.shape[1], np.float32) if importance is None else importance

    def scale(x: Floats, first: int) -> Floats:
        by_block = per_column.reshape(-1, BLOCK_WEIGHTS)
        return _searched_scale(x, by_block[np.arange(first, first + len(x)) % len(by_block)])

    return _quantise(w, scale)


def quantise_q4_0_plain(w: Floats) -> Blocks:
    """The same by the max-abs rule alone: what the scale search is measured against."""
    return _quantise(w, lambda x, first: _plain_scale(x))


def relative_rms_error(approximation: Floats, w: Floats) -> float:
    """||approximation - w|| / ||w||; 0 where both are 0."""
    error = np.linalg.norm(approximation.ravel() - w.ravel())
    size = np.linalg.norm(w.ravel())
    return float(error / size) if size else float(error)


def _quantise(w: Floats, choose_scale: Callable[[Floats, int], Floats]) -> Blocks:
    """Blocks with the scales that choose_scale(x [n, 32], index of the first block) picks, [n]."""
    rows, cols = w.shape
    if cols % BLOCK_WEIGHTS:
        raise ValueError(f"Q4_0 needs rows of a multiple of {BLOCK_WEIGHTS} weights, not {cols}")
    if not np.isfinite(w).all():
        raise ValueError("a weight to quantise is not finite")
    x = np.ascontiguousarray(w, np.float32).reshape(-1, BLOCK_WEIGHTS)
    blocks = np.empty((len(x), BLOCK_BYTES), np.uint8)

    def one_part(first: int) -> None:
        part = x[first : first + _BLOCKS_AT_ONCE]
        d = choose_scale(part, first)
        nibbles = (_levels(part, d) + 8).astype(np.uint8)
        out = blocks[first : first + _BLOCKS_AT_ONCE]
        out[:, :2] = d.astype(np.float16).view(np.uint8).reshape(-1, 2)
        out[:, 2:] = nibbles[:, :16] | (nibbles[:, 16:] << 4)

    # NumPy lets go of the interpreter lock inside its loops, so threads use every core.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one_part, range(0, len(x), _BLOCKS_AT_ONCE)))
    return blocks.reshape(rows, -1)


def _levels(x: Floats, d: Floats) -> Floats:
    """The whole numbers -8..7 nearest to x / d; x [n, 32], d [n] -> [n, 32]."""
    # A scale below float32's normal numbers has no reciprocal, and fp16 holds it as 0 anyway.
    usable = np.abs(d) >= np.finfo(np.float32).tiny
    inverse = np.divide(1, d, out=np.zeros_like(d), where=usable)
    levels = x * inverse[:, None]
    np.rint(levels, out=levels)
    return np.clip(levels, -8, 7, out=levels)


def _as_stored(d: Floats) -> Floats:
    """The scale that fp16 will hold, as float32; a scale beyond fp16 becomes its largest number."""
    largest = np.float32(np.finfo(np.float16).max)
    return np.clip(d, -largest, largest).astype(np.float16).astype(np.float32)


def _extreme(x: Floats) -> Floats:
    """The weight of largest size in each block, with its sign; [n, 32] -> [n]."""
    low, high = x.min(axis=1), x.max(axis=1)
    return np.where(-low > high, low, high)


def _plain_scale(x: Floats) -> Floats:
    return _as_stored(_extreme(x) / np.float32(-8))


def _searched_scale(x: Floats, weights: Floats) -> Floats:
    """The best fp16 scale of each block, as float32; x and weights [n, 32] -> [n]."""
    extreme = _extreme(x)
    weighted_x = weights * x
    best = _plain_scale(x)
    most = np.full(len(x), -np.inf, np.float32)
    for target in (-8, *_TARGETS):
        levels = _levels(x, extreme / np.float32(target))
        dots = np.einsum("ij,ij->i", weighted_x, levels)
        levels *= levels
        squares = np.einsum("ij,ij->i", weights, levels)
        refitted = _as_stored(np.divide(dots, squares, out=np.zeros_like(dots), where=squares > 0))
        # The sum of weights * (x - d * levels)^2 is that of weights * x^2 less this.
        gain = refitted * (2 * dots - refitted * squares)
        better = gain > most
        best[better], most[better] = refitted[better], gain[better]
    return best
