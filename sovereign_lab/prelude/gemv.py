"""Ways to do y = W x. Each prepares a matrix once, and returns the product as a function.

`Gemv` takes a matrix in Q4_0, `Head` the head in float32 [vocab, dim], which stays float32 in every step.

x is float32 [cols] and y float32 [rows]; a product keeps no reference to either.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sovereign_lab.models.model import Q4Matrix
from sovereign_lab.models.quants import BLOCK_WEIGHTS
from sovereign_lab.prelude import compiled

Floats = npt.NDArray[np.float32]
Product = Callable[[Floats], Floats]
Gemv = Callable[[Q4Matrix], Product]
Head = Callable[[Floats], Product]


def numpy_unpacking(matrix: Q4Matrix) -> Product:
    """Unpack the whole matrix for every product, multiply, throw the floats away."""
    return lambda x: matrix.float32() @ x


def numpy_cached(matrix: Q4Matrix) -> Product:
    """Unpack once and keep the floats: 4 bytes a weight to hold and to read. NumPy's BLAS uses threads by itself."""
    weights = matrix.float32()
    return lambda x: weights @ x


def fused(matrix: Q4Matrix) -> Product:
    """Unpack a block in registers and use it there: 18 bytes for 32 weights, read once. One thread."""
    blocks = _read_only(matrix)

    def product(x: Floats) -> Floats:
        y = np.empty(matrix.rows, np.float32)
        compiled.rows_times_floats(blocks, np.ascontiguousarray(x), y, compiled.HALF)
        return y

    return product


def fused_threads(matrix: Q4Matrix) -> Product:
    """The same loop, its rows spread over threads."""
    blocks = _read_only(matrix)

    def product(x: Floats) -> Floats:
        y = np.empty(matrix.rows, np.float32)
        compiled.rows_times_floats_threads(blocks, np.ascontiguousarray(x), y, compiled.HALF)
        return y

    return product


def fused_int8(matrix: Q4Matrix) -> Product:
    """Threads, and x as int8 with a scale for each 32: a block's dot is a sum of integers."""
    blocks = _read_only(matrix)

    def product(x: Floats) -> Floats:
        y = np.empty(matrix.rows, np.float32)
        q, d = quantise_q8_0(x)
        compiled.rows_times_int8_threads(blocks, q, d, y, compiled.HALF)
        return y

    return product


def numpy_head(weights: Floats) -> Product:
    """NumPy's own product, with the threads of its BLAS."""
    return lambda x: weights @ x


def compiled_head(weights: Floats) -> Product:
    """A compiled loop, one thread."""

    def product(x: Floats) -> Floats:
        y = np.empty(len(weights), np.float32)
        compiled.float_rows_times_floats(weights, np.ascontiguousarray(x), y)
        return y

    return product


def compiled_head_threads(weights: Floats) -> Product:
    """The same loop, its rows spread over threads.

    NumPy's product would be as fast by itself, but the threads of its BLAS go on waiting for work after it, and take
    the cores from ours: with both, a pass of the storyteller took up to five times as long.
    """

    def product(x: Floats) -> Floats:
        y = np.empty(len(weights), np.float32)
        compiled.float_rows_times_floats_threads(weights, np.ascontiguousarray(x), y)
        return y

    return product


def quantise_q8_0(x: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """float32 [n * 32] -> int8 [n * 32] and float32 scales [n], so that x is about q * scale.

    The rule of llama.cpp's Q8_0: the scale is the largest size in the block over 127. It keeps the scale in fp16; here
    it stays float32. Raises ValueError where x is not whole blocks.
    """
    if x.ndim != 1 or len(x) % BLOCK_WEIGHTS:
        raise ValueError(
            f"a vector of whole blocks of {BLOCK_WEIGHTS} was expected, not the shape {x.shape}"
        )
    q, d = np.empty(len(x), np.int8), np.empty(len(x) // BLOCK_WEIGHTS, np.float32)
    compiled.to_int8(np.ascontiguousarray(x), q, d)
    return q, d


def _read_only(matrix: Q4Matrix) -> npt.NDArray[np.uint8]:
    """The blocks as one type of array for numba, mapped from a file or not: each type compiles by itself."""
    blocks = np.asarray(matrix.blocks).view()
    blocks.flags.writeable = False
    return blocks
