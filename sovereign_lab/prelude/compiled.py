"""Loops that numba compiles: rows times a vector, in Q4_0 or float32, and reading memory as fast as it goes.

No file of the compiled code is kept: all of it compiles in a few seconds, and a kept file could be stale, or its
folder read-only.
"""

from typing import Any

import numpy as np
from numba import config, get_num_threads, njit, prange

# numba's own threads sleep between loops. Those of OpenMP, its first choice, go on spinning, and where other programs
# want the cores a token took ten times as long with them. Only one Python thread may call these loops at a time.
config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]
# Sums may be added in another order, as vector instructions need; NaN and infinity keep their meaning.
FASTMATH = {"reassoc", "contract", "nsz"}
# Bytes of nibbles in a block. Passed as an argument: with a loop count that LLVM knows, it unrolls the loop before it
# could turn it into vector instructions, and the dot takes about three times as long.
HALF = 16


@njit(fastmath=FASTMATH)
def _scale(low: Any, high: Any) -> Any:
    """Two bytes of an fp16 number -> float32: its bits moved into place, then times 2^(127 - 15) for the bias."""
    bits = np.uint32(low) | np.uint32(high) << np.uint32(8)
    size = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13)).view(np.float32)
    size *= np.float32(2.0**112)
    return -size if bits & np.uint32(0x8000) else size


@njit(fastmath=FASTMATH)
def _dot_floats(block: Any, x: Any, half: Any) -> Any:
    """The 32 weights of a block, without their scale, times 32 floats."""
    total = np.float32(0)
    for j in range(half):
        low, high = np.int32((block[2 + j] & 15) - 8), np.int32((block[2 + j] >> 4) - 8)
        total += np.float32(low) * x[j] + np.float32(high) * x[half + j]
    return total


@njit
def _dot_int8(block: Any, q: Any, half: Any) -> Any:
    """The same times 32 int8, exact in integers: at most 32 * 8 * 127 in size."""
    total = np.int32(0)
    for j in range(half):
        low, high = np.int32(block[2 + j] & 15) - 8, np.int32(block[2 + j] >> 4) - 8
        total += np.int32(low * q[j] + high * q[half + j])
    return total


def _rows_times_floats(blocks: Any, x: Any, y: Any, half: Any) -> None:
    """y = W x: blocks uint8 [rows, blocks_per_row * 18], x float32 [blocks_per_row * 32], y float32 [rows]."""
    for row in prange(len(y)):
        total = np.float32(0)
        for b in range(len(x) // 32):
            block = blocks[row, 18 * b : 18 * b + 18]
            total += _scale(block[0], block[1]) * _dot_floats(block, x[32 * b : 32 * b + 32], half)
        y[row] = total


def _rows_times_int8(blocks: Any, q: Any, d: Any, y: Any, half: Any) -> None:
    """y = W (q d): as above, with x as int8 q [blocks_per_row * 32] and a float32 scale d for each 32 of them."""
    for row in prange(len(y)):
        total = np.float32(0)
        for b in range(len(d)):
            block = blocks[row, 18 * b : 18 * b + 18]
            dot = _dot_int8(block, q[32 * b : 32 * b + 32], half)
            total += _scale(block[0], block[1]) * d[b] * np.float32(dot)
        y[row] = total


def _float_rows_times_floats(weights: Any, x: Any, y: Any) -> None:
    """y = W x with W float32 [rows, cols]: the head."""
    for row in prange(len(y)):
        total = np.float32(0)
        for i in range(len(x)):
            total += weights[row, i] * x[i]
        y[row] = total


# One source, compiled twice: without `parallel`, prange is range.
float_rows_times_floats = njit(fastmath=FASTMATH)(_float_rows_times_floats)
float_rows_times_floats_threads = njit(fastmath=FASTMATH, parallel=True)(_float_rows_times_floats)
rows_times_floats = njit(fastmath=FASTMATH)(_rows_times_floats)
rows_times_floats_threads = njit(fastmath=FASTMATH, parallel=True)(_rows_times_floats)
rows_times_int8_threads = njit(fastmath=FASTMATH, parallel=True)(_rows_times_int8)


@njit(fastmath=FASTMATH)
def to_int8(x: Any, q: Any, d: Any) -> None:
    """Each 32 of x -> int8 q of at most 127 in size, and their float32 scale d: x is about q * d."""
    for b in range(len(d)):
        part = x[32 * b : 32 * b + 32]
        largest = np.float32(0)
        for value in part:
            largest = max(largest, abs(value))
        d[b] = largest / np.float32(127)
        inverse = np.float32(127) / largest if largest > 0 else np.float32(0)
        for j in range(len(part)):
            q[32 * b + j] = np.int8(np.rint(part[j] * inverse))


@njit(parallel=True)
def read_all(words: Any, passes: Any, sums: Any) -> None:
    """Read uint64 words `passes` times, each of len(sums) threads its own share, and leave sums that depend on all."""
    share = len(words) // len(sums)
    for thread in prange(len(sums)):
        mine = words[thread * share : (thread + 1) * share]
        total = np.uint64(0)
        for number in range(passes):
            # The pass goes into the sum, so that no compiler may read once and multiply.
            for word in mine:
                total += word ^ np.uint64(number)
        sums[thread] = total


def threads() -> int:
    """How many threads the loops of this file are spread over."""
    return int(get_num_threads())
