"""What a request of a warp costs, from its lanes' addresses: sectors of global memory, wavefronts of shared memory."""

import numpy as np

from sovereign_lab.devices.device import WARP

SECTOR_BYTES = 32
BANKS, BANK_BYTES = 32, 4
_ROWS_AT_ONCE = 1 << 15  # so that what is sorted stays in the cache


def active_lanes(masks: np.ndarray) -> np.ndarray:
    """Masks of lanes, uint32 [n], as bool [n, 32]."""
    return (masks[:, None] >> np.arange(WARP, dtype=np.uint32) & 1).astype(bool)


def sectors(addresses: np.ndarray, active: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Distinct 32-byte sectors of each request: int64 [n].

    `addresses` is uint64 [n, 32], `active` bool [n, 32], `sizes` the bytes a lane, [n].
    """
    return _by_parts(_sectors, addresses, active, sizes)


def wavefronts(
    addresses: np.ndarray, active: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Passes over the 32 banks that each request to shared memory takes, and those without conflicts: int64 [n] both.

    32 lanes of up to 4 bytes go together, 16 of 8 bytes, 8 of 16 bytes. Together they take as many passes as the most
    different words that they need of one bank; words that several of them read are read once.
    """
    took, ideal = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    for size in np.unique(sizes).tolist():
        mine = np.flatnonzero(sizes == size)
        lanes = max(1, min(WARP, WARP * BANK_BYTES // max(size, 1)))
        lanes = 1 << lanes.bit_length() - 1
        groups = active[mine].reshape(-1, lanes)
        passes = _by_parts(
            _passes, addresses[mine].reshape(-1, lanes), groups, np.full(len(groups), size)
        )
        took[mine] = passes.reshape(len(mine), -1).sum(axis=1)
        ideal[mine] = groups.any(axis=1).reshape(len(mine), -1).sum(axis=1)
    return took, ideal


def _by_parts(function, addresses, active, sizes) -> np.ndarray:  # type: ignore[no-untyped-def]
    parts = [
        function(
            addresses[i : i + _ROWS_AT_ONCE],
            active[i : i + _ROWS_AT_ONCE],
            sizes[i : i + _ROWS_AT_ONCE],
        )
        for i in range(0, len(sizes), _ROWS_AT_ONCE)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _units(
    addresses: np.ndarray, active: np.ndarray, sizes: np.ndarray, unit: int
) -> tuple[np.ndarray, np.ndarray]:
    """The units of so many bytes that each row touches, sorted, and which of them differ from the one before.

    Lanes that do nothing, and units that a lane does not reach, repeat one that is there.
    """
    low = addresses // np.uint64(unit)
    high = (addresses + (sizes[:, None].astype(np.uint64) - np.uint64(1))) // np.uint64(unit)
    first = np.take_along_axis(low, active.argmax(axis=1)[:, None], axis=1)
    low, high = np.where(active, low, first), np.where(active, high, first)
    most = int((high - low).max(initial=0)) + 1
    touched = np.concatenate([np.minimum(low + np.uint64(k), high) for k in range(most)], axis=1)
    touched.sort(axis=1)
    new = np.ones(touched.shape, bool)
    new[:, 1:] = touched[:, 1:] != touched[:, :-1]
    return touched, new


def _sectors(addresses: np.ndarray, active: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return _units(addresses, active, sizes, SECTOR_BYTES)[1].sum(axis=1)


def _passes(addresses: np.ndarray, active: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    words, new = _units(addresses, active, sizes, BANK_BYTES)
    row, _ = np.nonzero(new)
    bank = (words[new] % np.uint64(BANKS)).astype(np.int64)
    each = np.bincount(row * BANKS + bank, minlength=len(addresses) * BANKS)
    return np.where(active.any(axis=1), each.reshape(-1, BANKS).max(axis=1), 0)
