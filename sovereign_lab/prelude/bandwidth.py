"""How fast this machine reads memory: what sets the floor under a token's time."""

import time

import numpy as np

from sovereign_lab.prelude import compiled

# More than three times the largest cache that the lab has met (300 MiB), so that most of it comes from DRAM.
MEMORY_BYTES = 1 << 30
_BYTES_AT_LEAST = 1 << 29  # read for one timing, so that the start of the threads does not count


def read_bandwidth(nbytes: int = MEMORY_BYTES, repeats: int = 5) -> float:
    """GB/s (10^9 bytes a second) at which all threads together read an array of nbytes, over and over: the best repeat.

    An array that fits in a cache is read from there, which tells the floor of a model of that size. Only reading is
    measured, since a product with a matrix writes next to nothing.
    """
    words: np.ndarray = np.arange(max(1, nbytes // 8), dtype=np.uint64)
    sums = np.empty(compiled.threads(), np.uint64)
    passes = max(1, _BYTES_AT_LEAST // words.nbytes)
    compiled.read_all(words[: len(sums)], 1, sums)
    read = passes * (len(words) // len(sums)) * len(sums) * 8
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        compiled.read_all(words, passes, sums)
        best = min(best, time.perf_counter() - start)
    return read / best / 1e9


def floor_ms(nbytes: int, gigabytes_per_second: float) -> float:
    """Milliseconds in which nbytes can just be read."""
    return nbytes / gigabytes_per_second / 1e6
