"""What a kernel does to memory, counted exactly: requests and sectors by source line, from the unmodified source.

The kernel runs on the SIMT device in a build that records every access. The accesses that the lanes of one warp
make in one instruction are a request; the 32-byte sectors that its addresses touch are what memory moves. On an
H200 the counts of two kernels equalled Nsight Compute's to the last digit (design page SIMT).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.devices.device import WARP, Source, launch_shape
from sovereign_lab.errors import LabError
from sovereign_lab.measure.tracing import recorder
from sovereign_lab.measure.tracing.recorder import Launch, Recording
from sovereign_lab.measure.tracing.request_cost import active_lanes, sectors, wavefronts
from sovereign_lab.measure.tracing.source_lines import lines_of_branches, lines_of_calls

SECTOR_BYTES = 32
LINE_BYTES = 128
KINDS = ("load", "store", "atomic")


@dataclass(frozen=True)
class Access:
    """One lane's part of a request: `size` bytes, `offset` bytes into `array`."""

    lane: int
    array: str
    offset: int
    size: int


@dataclass(frozen=True)
class LineTraffic:
    """What one line of the source did to global or to shared memory, as loads, as stores or as atomics.

    `bytes_wanted` is what the lanes asked for. Global memory: `sectors` * 32 is what memory moves for it, and
    `ideal_sectors` what the same lanes would need side by side (a request whose lanes read the same bytes needs fewer).
    Shared memory: `wavefronts` are the passes that its 32 banks take, `ideal_wavefronts` those without a conflict. Each
    is 0 for the other space. `lanes` is the mean number of lanes a request has.
    """

    line: int
    text: str
    kind: str
    space: str
    requests: int
    sectors: int
    bytes_wanted: int
    lanes: float
    ideal_sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0

    @property
    def sectors_per_request(self) -> float:
        """Sectors a request; a coalesced one of 4 bytes a lane has 4."""
        return self.sectors / self.requests

    @property
    def ideal_sectors_per_request(self) -> float:
        """Sectors that a request of so many lanes and bytes has where they lie side by side."""
        return self.ideal_sectors / self.requests

    @property
    def bytes_moved(self) -> int:
        """32 a sector; 0 in shared memory."""
        return self.sectors * SECTOR_BYTES

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts that a better placement would save; 0 in global memory."""
        return self.wavefronts - self.ideal_wavefronts


@dataclass(frozen=True)
class LineFlow:
    """How warps went through one line of the source: all counts are of warps, each time that they came by.

    `barriers` are of the block or the grid, `warp_barriers` are __syncwarp, `votes` ballots and their like.
    `products` are those of Tensor Cores, 16 x 16 by 16 x 8 each: an mma_16x8x16 is one, a wmma::mma_sync two.
    `branches` are those that the compiler made of the line and that went both ways at some time in the launch; after
    `divergent_branches` of them some lanes went one way and some another.
    """

    line: int
    text: str
    barriers: int
    warp_barriers: int
    shuffles: int
    votes: int
    products: int
    branches: int
    divergent_branches: int


@dataclass(frozen=True)
class Trace:
    """Every access of a launch, or of the blocks that were kept: `blocks` of `blocks_launched`.

    `requests_table`: a row a request, as a warp that comes together again after every branch makes them: `block`,
    `warp`, `line`, `store` (0 load, 1 store, 2 atomic), `shared`, `lanes`, `bytes`, `sectors`, `ideal_sectors`,
    `wavefronts`, `ideal_wavefronts`, and `first`, the index of its first access in `events`.

    `by_blocks` is false where the compiler (gcc before 12) does not tell which basic blocks a lane goes through: lanes
    that skip an iteration of a loop without a barrier or a shuffle are then counted an iteration early, and no branches
    are.
    """

    source: str
    name: str
    arrays: tuple[tuple[str, int, int], ...]  # name, first address, bytes
    blocks: int
    blocks_launched: int
    by_blocks: bool
    flow: tuple[LineFlow, ...]
    requests_table: np.ndarray = field(repr=False)
    _deeds: np.ndarray = field(repr=False)  # a row a request: as it was recorded
    _addresses: np.ndarray = field(repr=False)  # uint64 [requests, 32], by lane

    @property
    def sampled(self) -> bool:
        """Whether only some of the launch's blocks were run and counted."""
        return self.blocks < self.blocks_launched

    @property
    def scope(self) -> str:
        """What the counts are of, in words."""
        if self.sampled:
            return (
                f"a sample: {self.blocks:,} of {self.blocks_launched:,} blocks were run and counted"
            )
        return f"all {self.blocks:,} blocks" if self.blocks > 1 else "the one block"

    @cached_property
    def events(self) -> np.ndarray:
        """A row an access, those of a request together and by lane.

        `address`, `block`, `thread` (in its block), `epoch` (barriers and exchanges that came before in its warp),
        `size`, `store` (0 load, 1 store, 2 atomic), `shared`.
        """
        owner, lane = np.nonzero(active_lanes(self._deeds["lanes"]))
        deeds = self._deeds[owner]
        events = np.empty(len(owner), EVENT)
        events["address"] = self._addresses[owner, lane]
        events["thread"] = deeds["warp"] * WARP + lane
        for name in ("block", "epoch", "size", "shared"):
            events[name] = deeds[name]
        events["store"] = deeds["kind"]
        return events

    @cached_property
    def lines(self) -> list[LineTraffic]:
        """Traffic by source line; loads, stores, atomics; global memory first."""
        text = self.source.splitlines()
        table = self.requests_table
        rows = []
        keys, which = np.unique(
            (table["line"] * 2 + table["shared"]) * len(KINDS) + table["store"], return_inverse=True
        )
        for key in range(len(keys)):
            mine = table[which == key]
            line = int(mine["line"][0])
            rows.append(
                LineTraffic(
                    line=line,
                    text=_text(text, line),
                    kind=KINDS[mine["store"][0]],
                    space="shared" if mine["shared"][0] else "global",
                    requests=len(mine),
                    sectors=int(mine["sectors"].sum()),
                    bytes_wanted=int(mine["bytes"].sum()),
                    lanes=float(mine["lanes"].mean()),
                    ideal_sectors=int(mine["ideal_sectors"].sum()),
                    wavefronts=int(mine["wavefronts"].sum()),
                    ideal_wavefronts=int(mine["ideal_wavefronts"].sum()),
                )
            )
        return rows

    @cached_property
    def distinct_sectors(self) -> int:
        """How many sectors of global memory are touched at all, by whichever requests."""
        mine = self._deeds["shared"] == 0
        active = active_lanes(self._deeds["lanes"][mine])
        starts = self._addresses[mine][active]
        sizes = np.broadcast_to(self._deeds["size"][mine][:, None], active.shape)[active]
        count = 0
        for _, base, nbytes in self.arrays:
            here = (starts >= base) & (starts < base + nbytes)
            low = (starts[here] // SECTOR_BYTES).astype(np.int64) - base // SECTOR_BYTES
            ends = starts[here] + np.maximum(sizes[here], 1) - 1
            high = (ends // SECTOR_BYTES).astype(np.int64) - base // SECTOR_BYTES
            touched = np.zeros(int(high.max(initial=0)) + 1, bool)
            for step in range(int((high - low).max(initial=0)) + 1):
                touched[np.minimum(low + step, high)] = True
            count += int(touched.sum())
        return count

    def requests(self, kind: str) -> int:
        """All global requests of a kind, "load", "store" or "atomic"."""
        return sum(row.requests for row in self._global(kind))

    def sectors(self, kind: str) -> int:
        """All sectors of the global requests of a kind."""
        return sum(row.sectors for row in self._global(kind))

    def bytes_wanted(self, kind: str) -> int:
        """All bytes that lanes asked for in global requests of a kind."""
        return sum(row.bytes_wanted for row in self._global(kind))

    def _global(self, kind: str) -> list[LineTraffic]:
        if kind not in KINDS:
            raise LabError(f"A request is a 'load', a 'store' or an 'atomic'; got {kind!r}.")
        return [row for row in self.lines if row.kind == kind and row.space == "global"]

    def accesses(self, line: int, which: int = 0, array: str | None = None) -> list[Access]:
        """The lanes' accesses in one request of a line, the `which`-th; of one array where a line reads several.

        Raises LabError where the line made no such request.
        """
        found = self.requests_of(line, array)
        if not 0 <= which < len(found):
            wanted = f" of `{array}`" if array else ""
            raise LabError(
                f"Line {line} makes {len(found)} global requests{wanted}; number {which} does not exist."
            )
        return self.accesses_of(int(found[which]))

    def requests_of(self, line: int, array: str | None = None) -> np.ndarray:
        """The rows of `requests_table` that are a line's global requests, in its order; of one array or of all."""
        table = self.requests_table
        rows = np.flatnonzero((table["line"] == line) & (table["shared"] == 0))
        if array is None:
            return rows
        base, nbytes = next(((b, n) for name, b, n in self.arrays if name == array), (0, 0))
        starts = self._first_address[rows]
        return rows[(starts >= base) & (starts < base + nbytes)]

    def accesses_of(self, row: int) -> list[Access]:
        """The lanes' accesses in one global request, a row of `requests_table`."""
        name, base = self._array_at(int(self._first_address[row]))
        size = int(self._deeds["size"][row])
        lanes = np.flatnonzero(active_lanes(self._deeds["lanes"][row : row + 1])[0])
        return [
            Access(int(lane), name, int(self._addresses[row, lane]) - base, size) for lane in lanes
        ]

    @cached_property
    def _first_address(self) -> np.ndarray:
        """Of each request, its lowest active lane's address."""
        first = active_lanes(self._deeds["lanes"]).argmax(axis=1)
        return self._addresses[np.arange(len(first)), first]

    def _array_at(self, address: int) -> tuple[str, int]:
        return next(
            (name, base) for name, base, nbytes in self.arrays if base <= address < base + nbytes
        )


EVENT = np.dtype(
    [
        ("address", np.uint64),
        ("block", np.uint32),
        ("thread", np.uint32),
        ("epoch", np.uint32),
        ("size", np.uint16),
        ("store", np.uint8),
        ("shared", np.uint8),
    ]
)


def trace(
    source: str | Path | Source,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    args: Mapping[str, Any],
    defines: Mapping[str, str] | None = None,
    name: str = "",
    shared_bytes: int = 0,
    blocks: int | None = None,
    cooperative: bool = False,
    lane_order: str | int = "forward",
) -> Trace:
    """Run a kernel and keep what it does to memory.

    `args`: the arguments by parameter name, in the order of the signature; NumPy arrays (copied, so yours stay as
    they are) and scalars. `blocks`: run and count only about so many blocks, spread evenly over the grid; of a
    cooperative launch all run, and so many are counted. Raises LabError for what `device.compile` and
    `device.launch` refuse.

    Lanes are put together as a GPU does that brings a warp together again behind every branch: what they do at one
    place in the same iterations of all loops around it is one request. In code that jumps into the middle of a loop,
    the iterations of that loop are told apart by how often a lane came by. Two loops that the compiler lets start with
    the same block (a `while` as the first statement of an endless loop) are one loop to it, and to these counts.
    """
    chosen = Source.of(source, defines, name)
    grid3, block3 = launch_shape(chosen.name, grid, block)
    launched = int(np.prod(grid3))
    step = max(1, launched // blocks) if blocks else 1
    launch = Launch(chosen, grid3, block3, args, shared_bytes, cooperative, lane_order, step)
    recording = recorder.record(launch)
    deeds = recording.deeds
    accesses = deeds[deeds["kind"] <= recorder.ATOMIC]
    accesses = accesses[_warp_order(accesses, recording)]
    addresses = recording.addresses[accesses["addresses"]]
    places = np.unique(deeds["place"][deeds["kind"] != recorder.BRANCH]).tolist()
    lines = lines_of_calls(recording.library, places, chosen.name)
    return Trace(
        chosen.text,
        chosen.name,
        recording.arrays,
        -(-launched // step),
        launched,
        recording.by_blocks,
        _flow(recording, lines, chosen),
        _requests(accesses, addresses, lines),
        accesses,
        addresses,
    )


def _requests(deeds: np.ndarray, addresses: np.ndarray, lines: Mapping[int, int]) -> np.ndarray:
    names = [
        *("block", "warp", "line", "store", "shared", "lanes", "bytes"),
        *("sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts", "first"),
    ]
    table = np.zeros(len(deeds), [(n, np.int64) for n in names])
    for name in ("block", "warp", "shared"):
        table[name] = deeds[name]
    places, which = np.unique(deeds["place"], return_inverse=True)
    table["line"] = np.array([lines[int(p)] for p in places], np.int64)[which]
    table["store"] = deeds["kind"]
    active = active_lanes(deeds["lanes"])
    table["lanes"] = active.sum(axis=1)
    table["bytes"] = table["lanes"] * deeds["size"]
    table["first"] = np.cumsum(table["lanes"]) - table["lanes"]
    shared = deeds["shared"] == 1
    table["sectors"][~shared] = sectors(addresses[~shared], active[~shared], deeds["size"][~shared])
    table["ideal_sectors"][~shared] = -(-table["bytes"][~shared] // SECTOR_BYTES)
    took, ideal = wavefronts(addresses[shared], active[shared], deeds["size"][shared])
    table["wavefronts"][shared], table["ideal_wavefronts"][shared] = took, ideal
    return table


def _warp_order(deeds: np.ndarray, recording: Recording) -> np.ndarray:
    """The order in which the warps make these requests, each warp on its own: indices.

    Compared from the outermost loop inwards: where the loop starts, and which iteration it is; at last, where in the
    code the request itself is made.
    """
    flow, iterations = recording.flow, recording.iterations
    order = np.array(flow.order, np.int64)
    # By loop, and last the roots, which are no loop: their number is negative.
    starts = order[np.array([*flow.start, 0], np.int64)]
    depth = np.array([*flow.depth, 0], np.int64)[np.maximum(iterations["loop"], -1)]
    innermost = deeds["loops"].astype(np.int64)
    outwards = [innermost]
    for _ in range(max(flow.depth, default=0)):
        outwards.append(iterations["parent"][outwards[-1]].astype(np.int64))
    chains, own_depth = np.array(outwards), depth[innermost]
    keys = [order[deeds["at"]] << 32, deeds["place"].astype(np.int64)]
    for level in range(1, len(chains)):
        inside = own_depth >= level
        at = np.take_along_axis(chains, np.maximum(own_depth - level, 0)[None], axis=0)[0]
        loop = np.maximum(iterations["loop"][at], -1)
        key = np.where(inside, starts[loop] << 32 | iterations["number"][at], keys[-2])
        keys.insert(-2, key)
    if not recording.by_blocks:
        keys = [deeds["epoch"]]
    return np.lexsort([*keys[::-1], deeds["warp"], deeds["block"]])


def _flow(recording: Recording, lines: Mapping[int, int], source: Source) -> tuple[LineFlow, ...]:
    text = source.text.splitlines()
    deeds = recording.deeds[recording.deeds["kind"] > recorder.ATOMIC]
    branches = deeds["kind"] == recorder.BRANCH
    places, which = np.unique(deeds["place"], return_inverse=True)
    of_branch = lines_of_branches(
        recording.library, np.unique(deeds["place"][branches]).tolist(), source.name
    )
    by_call = np.array([lines.get(int(p), 0) for p in places], np.int64)
    by_branch = np.array([of_branch.get(int(p), 0) for p in places], np.int64)
    line = np.where(branches, by_branch[which], by_call[which]) if len(deeds) else branches
    rows = []
    for number in np.unique(line).tolist():
        mine = deeds[line == number]
        count = np.bincount(mine["kind"], minlength=9).tolist()
        rows.append(
            LineFlow(
                number,
                _text(text, number),
                barriers=count[recorder.BARRIER],
                warp_barriers=count[recorder.WARP_BARRIER],
                shuffles=count[recorder.SHUFFLE],
                votes=count[recorder.VOTE],
                products=count[recorder.PRODUCT],
                branches=count[recorder.BRANCH],
                divergent_branches=int(mine["parted"].sum()),
            )
        )
    return tuple(rows)


def _text(lines: list[str], number: int) -> str:
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""
