"""Running a kernel in the traced build (devices/simt/shim/trace.h) and fetching what it recorded."""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.devices.device import WARP, Source
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.measure.tracing.control_flow import Flow, flow

LOAD, STORE, ATOMIC, BARRIER, WARP_BARRIER, SHUFFLE, VOTE, PRODUCT, BRANCH = range(9)

# As in trace.h.
DEED = np.dtype(
    [
        ("place", np.uint64),
        ("block", np.uint64),
        ("warp", np.uint32),
        ("loops", np.uint32),
        ("at", np.uint32),
        ("lanes", np.uint32),
        ("epoch", np.uint32),
        ("addresses", np.uint32),
        ("size", np.uint16),
        ("kind", np.uint8),
        ("shared", np.uint8),
        ("parted", np.uint8),
        ("pad", np.uint8, 3),
    ]
)
BASIC_BLOCK = np.dtype(
    [
        ("place", np.uint64),
        ("context", np.uint32),
        ("loop", np.int32),
        ("header", np.uint8),
        ("branch", np.uint8),
        ("pad", np.uint8, 6),
    ]
)
LOOP = np.dtype([("parent", np.int32), ("depth", np.uint32)])
ITERATION = np.dtype([("parent", np.uint32), ("loop", np.int32), ("number", np.uint32)])
EDGE = np.dtype([("from", np.uint32), ("to", np.uint32)])


@dataclass(frozen=True)
class Launch:
    """What to run, and which of its blocks: every `step`-th."""

    source: Source
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: Mapping[str, Any]
    shared_bytes: int
    cooperative: bool
    lane_order: str | int
    step: int


@dataclass(frozen=True)
class Recording:
    """What the warps of a launch did: a row of `deeds` for what lanes did together, in no particular order.

    `addresses`: uint64 [memory accesses, 32], by lane; a deed's field `addresses` says which row. `iterations`: each
    an iteration of a loop inside another one, its parent; a root is its own. `library`: the file that places lie in.
    """

    library: Path
    flow: Flow
    blocks: np.ndarray
    deeds: np.ndarray
    addresses: np.ndarray
    iterations: np.ndarray
    arrays: tuple[tuple[str, int, int], ...]  # name, first address, bytes

    @property
    def by_blocks(self) -> bool:
        """Whether the compiler says which basic blocks a lane goes through; gcc before 12 does not."""
        return len(self.blocks) > 1


def record(launch: Launch) -> Recording:
    """Run a launch twice, to learn its loops and then to count; both times on copies of the arguments as they are.

    Raises LabError for what `device.compile` and `device.launch` refuse.
    """
    args = _empty_copies(launch.args)
    with _running(launch, args, None, None) as (library, _):
        blocks = _fetch(library, "basic_blocks", BASIC_BLOCK)
        edges = _fetch(library, "edges", EDGE)
    # Blocks were numbered as lanes came to them; numbered by place, they are the same in every lane order.
    order = np.lexsort([blocks["context"], blocks["place"]])
    number = np.argsort(order)
    blocks = blocks[order]
    found = flow(
        len(blocks),
        set(zip(number[edges["from"]].tolist(), number[edges["to"]].tolist(), strict=True)),
    )
    blocks["loop"], blocks["header"], blocks["branch"] = found.loop, found.header, found.branch
    loops = np.empty(len(found.parent), LOOP)
    loops["parent"], loops["depth"] = found.parent, found.depth
    arrays = [(k, v) for k, v in args.items() if isinstance(v, np.ndarray)]
    with _running(launch, args, blocks, loops) as (library, path):
        return Recording(
            path,
            found,
            blocks,
            _fetch(library, "deeds", DEED),
            _fetch(library, "lane_addresses", np.dtype((np.uint64, WARP))),
            _fetch(library, "iterations", ITERATION),
            tuple((k, v.ctypes.data, v.nbytes) for k, v in arrays),
        )


def _empty_copies(args: Mapping[str, Any]) -> dict[str, Any]:
    device = SimtDevice(workers=1)
    copies = {
        k: device.empty(v.shape, v.dtype) if isinstance(v, np.ndarray) else v
        for k, v in args.items()
    }
    device.close()
    return copies


@contextmanager
def _running(
    launch: Launch,
    args: dict[str, Any],
    blocks: np.ndarray | None,
    loops: np.ndarray | None,
) -> Iterator[tuple[ctypes.CDLL, Path]]:
    """Run the launch on `args`, its arrays filled anew; what it recorded can be read until the end of the `with`."""
    # A device of its own, so that `__device__` variables start afresh.
    device = SimtDevice(workers=1, lane_order=launch.lane_order, build="traced")
    try:
        kernel = device.compile(launch.source)
        arrays = {k: v for k, v in args.items() if isinstance(v, np.ndarray)}
        for name, array in arrays.items():
            np.copyto(array, launch.args[name])
        ranges = np.array(
            [(v.ctypes.data, v.ctypes.data + v.nbytes) for v in arrays.values()], np.uint64
        ).reshape(-1, 2)
        threads = int(np.prod(launch.block))
        if launch.cooperative:
            threads *= int(np.prod(launch.grid))
        # What a null pointer means is said in trace.h; an empty table is none.
        learnt = np.empty(0, BASIC_BLOCK) if blocks is None else blocks
        table = None if loops is None else np.append(loops, np.zeros(1, LOOP))
        library: ctypes.CDLL = kernel.handle.libraries[0]
        library.simt_trace_begin(
            ctypes.c_void_p(ranges.ctypes.data),
            ctypes.c_uint32(len(ranges)),
            ctypes.c_uint64(launch.step),
            ctypes.c_uint64(threads),
            ctypes.c_void_p(learnt.ctypes.data),
            ctypes.c_uint64(len(learnt)),
            None if table is None else ctypes.c_void_p(table.ctypes.data),
        )
        try:
            device.launch(
                kernel,
                launch.grid,
                launch.block,
                list(args.values()),
                launch.shared_bytes,
                launch.cooperative,
            )
            yield library, kernel.handle.path
        finally:
            library.simt_trace_end()
    finally:
        device.close()


def _fetch(library: ctypes.CDLL, name: str, dtype: np.dtype) -> np.ndarray:
    read = getattr(library, f"simt_trace_{name}")
    read.restype = ctypes.c_void_p
    count = ctypes.c_uint64()
    address = read(ctypes.byref(count))
    rows = np.empty(count.value, dtype)
    if count.value:
        ctypes.memmove(rows.ctypes.data, address, rows.nbytes)
    return rows
