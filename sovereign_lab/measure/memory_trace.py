"""What a kernel does to memory, counted exactly: requests and sectors by source line, from the unmodified source.

The kernel runs on the SIMT device in a build that records every access. The accesses that the lanes of one warp
make in one instruction are a request; the 32-byte sectors that its addresses touch are what memory moves. On an
H200 the counts of two kernels equalled Nsight Compute's to the last digit (design page SIMT).
"""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.devices.device import Source
from sovereign_lab.devices.simt.device import Loaded, SimtDevice
from sovereign_lab.errors import LabError

SECTOR_BYTES = 32
LINE_BYTES = 128
WARP = 32

EVENT = np.dtype(
    [
        ("address", np.uint64),
        ("place", np.uint64),
        ("block", np.uint32),
        ("thread", np.uint32),
        ("epoch", np.uint32),
        ("size", np.uint16),
        ("store", np.uint8),
        ("shared", np.uint8),
    ]
)


@dataclass(frozen=True)
class Access:
    """One lane's part of a request: `size` bytes, `offset` bytes into `array`."""

    lane: int
    array: str
    offset: int
    size: int


@dataclass(frozen=True)
class LineTraffic:
    """What one line of the source did, as loads or as stores, to global or to shared memory.

    `bytes_wanted` is what the lanes asked for, `sectors` * 32 what memory moves for it (global memory only: 0 for
    shared). `lanes` is the mean number of lanes a request has.
    """

    line: int
    text: str
    kind: str
    space: str
    requests: int
    sectors: int
    bytes_wanted: int
    lanes: float

    @property
    def sectors_per_request(self) -> float:
        """Sectors a request; a coalesced one of 4 bytes a lane has 4."""
        return self.sectors / self.requests


@dataclass(frozen=True)
class Trace:
    """Every access of a launch, or of the blocks that were kept: `blocks` of `blocks_launched`."""

    source: str
    arrays: tuple[tuple[str, int, int], ...]  # name, first address, bytes
    blocks: int
    blocks_launched: int
    requests_table: np.ndarray = field(repr=False)  # one row a request: see `_group`
    events: np.ndarray = field(repr=False)  # sorted, so that a request's accesses lie together

    @cached_property
    def lines(self) -> list[LineTraffic]:
        """Traffic by source line, loads before stores."""
        text = self.source.splitlines()
        table = self.requests_table
        rows = []
        for key in np.unique(table[["line", "store", "shared"]]):
            mine = table[
                (table["line"] == key["line"])
                & (table["store"] == key["store"])
                & (table["shared"] == key["shared"])
            ]
            line = int(key["line"])
            rows.append(
                LineTraffic(
                    line=line,
                    text=text[line - 1].strip() if 0 < line <= len(text) else "",
                    kind="store" if key["store"] else "load",
                    space="shared" if key["shared"] else "global",
                    requests=len(mine),
                    sectors=int(mine["sectors"].sum()),
                    bytes_wanted=int(mine["bytes"].sum()),
                    lanes=float(mine["lanes"].mean()),
                )
            )
        return rows

    def requests(self, kind: str) -> int:
        """All global requests of a kind, "load" or "store"."""
        return sum(row.requests for row in self._global(kind))

    def sectors(self, kind: str) -> int:
        """All sectors of the global requests of a kind."""
        return sum(row.sectors for row in self._global(kind))

    def bytes_wanted(self, kind: str) -> int:
        """All bytes that lanes asked for in global requests of a kind."""
        return sum(row.bytes_wanted for row in self._global(kind))

    def _global(self, kind: str) -> list[LineTraffic]:
        if kind not in ("load", "store"):
            raise LabError(f"A request is a 'load' or a 'store'; got {kind!r}.")
        return [row for row in self.lines if row.kind == kind and row.space == "global"]

    def accesses(self, line: int, which: int = 0, array: str | None = None) -> list[Access]:
        """The lanes' accesses in one request of a line, the `which`-th; of one array where a line reads several.

        Raises LabError where the line made no such request.
        """
        table = self.requests_table
        found = 0
        for request in table[(table["line"] == line) & (table["shared"] == 0)]:
            first = int(request["first"])
            part = self.events[first : first + int(request["lanes"])]
            name, base = self._array_at(int(part["address"][0]))
            if array in (None, name):
                if found == which:
                    return [
                        Access(
                            int(e["thread"]) % WARP, name, int(e["address"]) - base, int(e["size"])
                        )
                        for e in part
                    ]
                found += 1
        wanted = f" of `{array}`" if array else ""
        raise LabError(
            f"Line {line} makes {found} global requests{wanted}; number {which} does not exist."
        )

    def _array_at(self, address: int) -> tuple[str, int]:
        return next(
            (name, base) for name, base, nbytes in self.arrays if base <= address < base + nbytes
        )


def trace(
    source: str | Path,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    args: Mapping[str, Any],
    defines: Mapping[str, str] | None = None,
    name: str = "",
    shared_bytes: int = 0,
    blocks: int | None = None,
) -> Trace:
    """Run a kernel once and keep what it does to memory.

    `args`: the arguments by parameter name, in the order of the signature; NumPy arrays (copied, so yours stay as
    they are) and scalars. `blocks`: keep only about so many blocks, spread evenly over the grid. Raises LabError
    for what `device.compile` and `device.launch` refuse.

    Lanes are put together by instruction, by the barriers and shuffles passed since the start, and by how often
    they came by since the last of these. Lanes that skip an iteration of a loop without any of these are therefore
    counted one iteration early.
    """
    chosen = Source.of(source, defines, name)
    device = SimtDevice(workers=1, traced=True)
    try:
        kernel = device.compile(chosen)
        arrays = {k: device.array(v) if isinstance(v, np.ndarray) else v for k, v in args.items()}
        launched = int(np.prod(np.atleast_1d(grid)))
        step = max(1, launched // blocks) if blocks else 1
        with _recording(kernel.handle, arrays, step) as read:
            device.launch(kernel, grid, block, list(arrays.values()), shared_bytes)
            events, base = read()
    finally:
        device.close()
    lines = _lines(kernel.handle.path, np.unique(events["place"]), base, chosen.name)
    table, events = _group(events, lines)
    places = tuple(
        (k, v.ctypes.data, v.nbytes) for k, v in arrays.items() if isinstance(v, np.ndarray)
    )
    return Trace(chosen.text, places, -(-launched // step), launched, table, events)


@contextmanager
def _recording(
    loaded: Loaded, arrays: Mapping[str, Any], step: int
) -> Iterator[Callable[[], tuple[np.ndarray, int]]]:
    """Record every `step`-th block's accesses to `arrays` and to shared memory.

    Yields a function that returns the events so far and the library's base address.
    """
    library = loaded.libraries[0]
    library.simt_trace_base.restype = ctypes.c_uint64
    library.simt_trace_events.restype = ctypes.c_void_p
    host = [v for v in arrays.values() if isinstance(v, np.ndarray)]
    ranges = np.array([(v.ctypes.data, v.ctypes.data + v.nbytes) for v in host], np.uint64)

    def read() -> tuple[np.ndarray, int]:
        count = ctypes.c_uint64()
        address = library.simt_trace_events(ctypes.byref(count))
        events = np.empty(count.value, EVENT)
        if count.value:
            ctypes.memmove(events.ctypes.data, address, events.nbytes)
        return events, int(library.simt_trace_base())

    library.simt_trace_begin(
        ctypes.c_void_p(ranges.ctypes.data),
        ctypes.c_uint32(len(ranges)),
        ctypes.c_uint64(0),
        ctypes.c_uint64(step),
    )
    try:
        yield read
    finally:
        library.simt_trace_end()


def _lines(library: Path, places: np.ndarray, base: int, name: str) -> dict[int, int]:
    """The source line of each place: of its inlined frames, the first that lies in the kernel's own file."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None:
        raise LabError(
            "Counting by source line needs addr2line: install binutils (Debian: apt install binutils)."
        )
    # A return address is behind the call, so one less is in it.
    asked = [f"{int(p) - base - 1:#x}" for p in places]
    out = subprocess.run(
        [tool, "-a", "-i", "-e", str(library)],
        input="\n".join(asked),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines: dict[int, int] = {}
    for place, frames in zip(places, re.split(r"^0x[0-9a-f]+\n", out, flags=re.M)[1:], strict=True):
        mine = re.search(rf"{re.escape(name)}:(\d+)", frames)
        lines[int(place)] = int(mine.group(1)) if mine else 0
    return lines


def _group(events: np.ndarray, lines: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Put the lanes' accesses together into requests.

    Returns the requests (line, store, shared, lanes, bytes, sectors, and `first`, the index of its first access)
    and the accesses sorted so that those of a request lie together, by lane.
    """
    dtype = [
        (n, np.int64) for n in ("line", "store", "shared", "lanes", "bytes", "sectors", "first")
    ]
    if not len(events):
        return np.empty(0, dtype), events
    # How often this thread came by this place since its last meeting: events of a thread are in program order.
    order = np.lexsort((events["epoch"], events["place"], events["thread"], events["block"]))
    e = events[order]
    new = _changes(e, ("block", "thread", "place", "epoch"))
    starts = np.flatnonzero(new)
    occurrence = np.arange(len(e)) - np.repeat(starts, np.diff(np.append(starts, len(e))))
    warp = e["thread"] // WARP

    order = np.lexsort((e["thread"], e["place"], occurrence, e["epoch"], warp, e["block"]))
    e, occurrence, warp = e[order], occurrence[order], warp[order]
    new = _changes(e, ("block", "epoch", "place"))
    new[1:] |= (occurrence[1:] != occurrence[:-1]) | (warp[1:] != warp[:-1])
    first = np.flatnonzero(new)
    request = np.cumsum(new) - 1

    table = np.empty(len(first), dtype)
    table["first"] = first
    table["line"] = [lines[int(p)] for p in e["place"][first]]
    table["store"], table["shared"] = e["store"][first], e["shared"][first]
    table["lanes"] = np.diff(np.append(first, len(e)))
    table["bytes"] = np.add.reduceat(e["size"].astype(np.int64), first)
    table["sectors"] = np.where(table["shared"] == 1, 0, _sectors(e, request, len(first)))
    return table, e


def _changes(e: np.ndarray, fields: tuple[str, ...]) -> np.ndarray:
    new = np.zeros(len(e), bool)
    new[0] = True
    for name in fields:
        new[1:] |= e[name][1:] != e[name][:-1]
    return new


def _sectors(e: np.ndarray, request: np.ndarray, count: int) -> np.ndarray:
    """Distinct 32-byte sectors of each request."""
    low = e["address"] // SECTOR_BYTES
    high = (e["address"] + e["size"] - 1) // SECTOR_BYTES
    most = int((high - low).max()) + 1
    owners = np.concatenate([request[low + k <= high] for k in range(most)])
    sectors = np.concatenate([(low + k)[low + k <= high] for k in range(most)])
    order = np.lexsort((sectors, owners))
    owners, sectors = owners[order], sectors[order]
    distinct = np.ones(len(owners), bool)
    distinct[1:] = (owners[1:] != owners[:-1]) | (sectors[1:] != sectors[:-1])
    return np.bincount(owners[distinct], minlength=count)
