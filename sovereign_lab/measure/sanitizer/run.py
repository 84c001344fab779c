"""One sanitized launch: arrays in an arena with room between them, what the checks found, the outputs.

The checks themselves are C++ (devices/simt/shim/sanitize.cpp); here they are told what exists, and their findings are
read. Words for people are measure/sanitizer.py's.
"""

import ctypes
import mmap
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.devices.device import Kernel, Source
from sovereign_lab.devices.signature import without_comments
from sovereign_lab.devices.simt.device import KernelFault, Loaded, SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.measure.binutils import inlined_frames, run_tool

# Between two arrays, and before the first: an access that far off still names the array that it missed.
GUARD_BYTES = 1 << 20
ALIGNMENT = 256
MAX_THREADS = 1 << 32
KINDS = (
    "out of bounds",
    "uninitialised",
    "race",
    "barrier",
    "misaligned",
    "spin",
    "timeout",
    "index",
)
WRITE, ATOMIC, VOLATILE = 1, 2, 4
NAMES_BY = "The sanitizer names lines and variables with"
GLOBAL, STATIC_SHARED, DYNAMIC_SHARED, NOWHERE = range(4)

FINDING = np.dtype(
    [
        *((name, np.uint64) for name in ("count", "address", "place", "other_place")),
        *((name, np.uint64) for name in ("file", "other_file", "name", "other_name")),
        *((name, np.uint32) for name in ("kind", "how", "other_how", "size", "line", "other_line")),
        *((name, np.uint32) for name in ("thread", "other_thread", "space", "padding")),
    ]
)


@dataclass(frozen=True)
class Launch:
    """What is to be run. `written`: for arrays that are not wholly initialised, True where they are, by element."""

    source: Source
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: Mapping[str, Any]
    shared_bytes: int
    cooperative: bool
    written: Mapping[str, np.ndarray]
    timeout: float


@dataclass(frozen=True)
class Array:
    """An array, or a variable in shared memory: `address` of its first byte, `element` its type in words.

    `rows`: of a shared array of several dimensions, all sizes but the first.
    """

    name: str
    address: int
    nbytes: int
    space: int
    itemsize: int = 1
    element: str = "byte"
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Place:
    """A line of the kernel's file, or of another: then `file` names it."""

    line: int
    file: str = ""


@dataclass(frozen=True)
class Fact:
    """A finding as the checks tell it. Threads are numbered through the launch; `name`: of a barrier or a type."""

    kind: str
    count: int
    address: int
    space: int
    size: int
    how: int
    other_how: int
    thread: int
    other_thread: int
    place: Place
    other_place: Place
    name: str
    other_name: str


@dataclass(frozen=True)
class Run:
    """One launch in one lane order. `fault`: the runtime's own diagnosis, if it made one."""

    facts: tuple[Fact, ...]
    arrays: tuple[Array, ...]
    outputs: Mapping[str, np.ndarray]
    unwritten: Mapping[str, np.ndarray] = field(repr=False)  # by element: no thread has written it
    fault: str | None
    stopped: bool
    cpu_seconds: float  # of the launch alone

    @property
    def whole(self) -> bool:
        """Whether the launch came to its end."""
        return self.fault is None and not self.stopped


def run(device: SimtDevice, kernel: Kernel, launch: Launch) -> Run:
    """Launch once on a sanitized device of one worker, on copies of the arguments.

    Raises LabError for arguments that the kernel does not take.
    """
    threads = prod(launch.grid) * prod(launch.block)
    if threads > MAX_THREADS:
        raise LabError(
            f"The sanitizer numbers up to {MAX_THREADS:,} threads of a launch; this one has {threads:,}."
        )
    loaded: Loaded = kernel.handle
    library = loaded.libraries[0]
    device_arrays, arrays, memory = _place(launch.args)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _returns(library)
    library.simt_sanitize_begin(
        ctypes.c_uint64(start),
        ctypes.c_uint64(len(memory)),
        ctypes.c_uint32(_shared_shift(launch.source.text)),
        ctypes.c_double(launch.timeout),
    )
    try:
        _tell_arrays(library, kernel, launch, device_arrays, start)
        shared = _shared_variables(loaded.path, int(library.simt_sanitize_shared_base()), launch)
        for variable in shared:
            offset = variable.address - int(library.simt_sanitize_shared_base())
            library.simt_sanitize_shared(ctypes.c_uint64(offset), ctypes.c_uint64(variable.nbytes))
        fault = None
        values = [device_arrays.get(k, v) for k, v in launch.args.items()]
        began = time.process_time()
        try:
            device.launch(
                kernel, launch.grid, launch.block, values, launch.shared_bytes, launch.cooperative
            )
        except KernelFault as error:
            fault = error.report
        cpu_seconds = time.process_time() - began
        facts, stopped = _findings(library, loaded.path, launch.source.name)
        unwritten = _unwritten(library, device_arrays, launch, start)
    finally:
        library.simt_sanitize_end()
    return Run(
        facts=tuple(facts),
        arrays=(*arrays, *shared, _dynamic_shared(launch)),
        outputs={name: np.array(array) for name, array in device_arrays.items()},
        unwritten=unwritten,
        fault=None if stopped else fault,
        stopped=stopped,
        cpu_seconds=cpu_seconds,
    )


def _returns(library: ctypes.CDLL) -> None:
    library.simt_sanitize_findings.restype = ctypes.c_void_p
    library.simt_sanitize_valid.restype = ctypes.c_void_p
    library.simt_sanitize_shared_base.restype = ctypes.c_uint64


def _place(args: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], list[Array], mmap.mmap]:
    """Copies of the arrays in one arena; an array that is passed twice is one copy."""
    offsets: dict[int, int] = {}
    end = GUARD_BYTES
    for value in args.values():
        if isinstance(value, np.ndarray) and id(value) not in offsets:
            offsets[id(value)] = end
            end += -(-value.nbytes // ALIGNMENT) * ALIGNMENT + GUARD_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, end, flags=flags)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    copies: dict[str, np.ndarray] = {}
    arrays = []
    for name, value in args.items():
        if not isinstance(value, np.ndarray):
            continue
        offset = offsets[id(value)]
        flat = np.frombuffer(memory, np.uint8, value.nbytes, offset)
        copies[name] = flat.view(value.dtype).reshape(value.shape)
        copies[name][...] = value
        element = _ELEMENTS.get(value.dtype.name, value.dtype.name)
        arrays.append(Array(name, start + offset, value.nbytes, GLOBAL, value.itemsize, element))
    return copies, arrays, memory


_ELEMENTS = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "uint8": "byte",
    "int8": "byte",
}


def _tell_arrays(
    library: ctypes.CDLL,
    kernel: Kernel,
    launch: Launch,
    copies: Mapping[str, np.ndarray],
    start: int,
) -> None:
    parameters = dict(zip(launch.args, kernel.signature.parameters, strict=False))
    addresses = {name: copy.ctypes.data for name, copy in copies.items()}
    writable = {a for name, a in addresses.items() if not parameters[name].const}
    for name, copy in copies.items():
        written = np.full(copy.shape, True)
        if name in launch.written:
            written = np.broadcast_to(launch.written[name], copy.shape)
            copy.view(np.uint8).reshape(copy.size, -1)[~written.reshape(-1)] = 0xFF
        by_byte = np.repeat(written.reshape(-1).astype(np.uint8), copy.itemsize)
        library.simt_sanitize_array(
            ctypes.c_uint64(addresses[name] - start),
            ctypes.c_uint64(copy.nbytes),
            ctypes.c_uint32({1: 0, 2: 1}.get(copy.itemsize, 2)),
            ctypes.c_int(addresses[name] in writable),
            ctypes.c_void_p(by_byte.ctypes.data),
        )


_SMALL = r"\b((un)?signed\s+)?char\b|\bu?int8_t\b|\bbool\b|\bu?char[234]\b"
_HALF = r"\bhalf\b|\b__half\b|\bKV\b|\bshort\b|\bu?int16_t\b"


def _shared_shift(text: str) -> int:
    """Binary logarithm of the bytes that shared memory's accesses are told apart by: its smallest element."""
    declared = " ".join(re.findall(r"__shared__[^;]*;", without_comments(text)))
    return 0 if re.search(_SMALL, declared) else 1 if re.search(_HALF, declared) else 2


def _shared_variables(library: Path, base: int, launch: Launch) -> list[Array]:
    """The kernel's `__shared__` variables, from the library's symbols, where they lie now."""
    code = without_comments(launch.source.text)
    return [
        Array(name, base + offset, nbytes, STATIC_SHARED, *_element(code, name))
        for name, offset, nbytes in _shared_symbols(library)
    ]


@lru_cache(maxsize=256)
def _shared_symbols(library: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, offset in the section of shared variables, and bytes of each of them."""
    out = run_tool("nm", ["-S", "-C", "--defined-only", str(library)], "", NAMES_BY)
    symbols = re.findall(r"^([0-9a-f]+) (?:([0-9a-f]+) )?\w (.+)$", out, flags=re.M)
    bounds = {name: int(a, 16) for a, _, name in symbols if name.endswith("_simt_shared")}
    if len(bounds) < 2:
        raise LabError(
            "The sanitizer finds shared variables in an ELF file's symbols; this system's libraries have none."
        )
    start, stop = (bounds[f"__{end}_simt_shared"] for end in ("start", "stop"))
    variables = []
    for address, size, name in symbols:
        at = int(address, 16)
        short = re.sub(r"\W\d*$", "", re.sub(r"^.*::", "", name))
        if start <= at < stop and size and not short.startswith("simt_guard"):
            variables.append((short, at - start, int(size, 16)))
    return tuple(variables)


def _dynamic_shared(launch: Launch) -> Array:
    """The kernel's `extern __shared__` array; its first byte counts as address 0."""
    code = without_comments(launch.source.text)
    found = re.search(r"extern\s+__shared__[^;]*?(\w+)\s*\[\s*\]\s*;", code)
    name = found.group(1) if found else "dynamic shared memory"
    return Array(name, 0, launch.shared_bytes, DYNAMIC_SHARED, *_element(code, name))


def _element(code: str, variable: str) -> tuple[int, str, tuple[int, ...]]:
    """Bytes and type of an element of a shared variable, and its sizes but the first, as far as the source says."""
    declared = re.search(rf"__shared__([^;]*?)\b{re.escape(variable)}\b((?:\s*\[[^\]]*\])*)", code)
    if declared is None:
        return 1, "byte", ()
    sizes = {"float4": 16, "float2": 8, "double": 8, "float": 4, "int": 4, "unsigned": 4, "half": 2}
    of_type = [(size, t) for t, size in sizes.items() if re.search(rf"\b{t}\b", declared.group(1))]
    dimensions = re.findall(r"\[\s*([^\]]*?)\s*\]", declared.group(2))[1:]
    known = bool(of_type) and all(d.isdigit() for d in dimensions)
    return *(of_type or [(1, "byte")])[0], tuple(map(int, dimensions)) if known else ()


def _findings(library: ctypes.CDLL, path: Path, name: str) -> tuple[list[Fact], bool]:
    count, stopped = ctypes.c_uint32(), ctypes.c_uint32()
    address = library.simt_sanitize_findings(ctypes.byref(count), ctypes.byref(stopped))
    raw = np.empty(count.value, FINDING)
    if count.value:
        ctypes.memmove(raw.ctypes.data, address, raw.nbytes)
    used = {int(p) for f in raw for p in (f["place"], f["other_place"]) if p}
    places = _places(path, used, name)
    return [_fact(f, places, name) for f in raw], bool(stopped.value)


def _fact(f: np.void, places: Mapping[int, Place], name: str) -> Fact:
    def place(prefix: str) -> Place:
        if f[f"{prefix}line"]:
            file = Path(_text(f[f"{prefix}file"])).name
            return Place(int(f[f"{prefix}line"]), "" if file == name else file)
        return places.get(int(f[f"{prefix}place"]), Place(0))

    return Fact(
        kind=KINDS[int(f["kind"])],
        count=int(f["count"]),
        address=int(f["address"].astype(np.int64)),
        space=int(f["space"]),
        size=int(f["size"]),
        how=int(f["how"]),
        other_how=int(f["other_how"]),
        thread=int(f["thread"]),
        other_thread=int(f["other_thread"]),
        place=place(""),
        other_place=place("other_"),
        name=_text(f["name"]),
        other_name=_text(f["other_name"]),
    )


def _text(address: np.uint64) -> str:
    return ctypes.string_at(int(address)).decode() if address else ""


def _places(library: Path, places: Iterable[int], name: str) -> dict[int, Place]:
    """The source line of each return address: of its inlined frames, the first in the kernel's own file."""
    places = list(places)
    if not places:
        return {}
    lines = {}
    # A return address is behind the call, so one less is in it.
    chains = inlined_frames(library, (p - 1 for p in places), NAMES_BY)
    for place, frames in zip(places, chains, strict=True):
        found = [(Path(f).name, int(n)) for f, n in re.findall(r"^(.+):(\d+)", frames, flags=re.M)]
        mine = [Place(n) for file, n in found if file == name]
        others = [Place(n, file) for file, n in found if not file.endswith((".h", ".cpp"))]
        lines[place] = (*mine, *others, Place(0))[0]
    return lines


def _unwritten(
    library: ctypes.CDLL, copies: Mapping[str, np.ndarray], launch: Launch, start: int
) -> dict[str, np.ndarray]:
    address = int(library.simt_sanitize_valid())
    unwritten = {}
    for name in launch.written:
        copy = copies[name]
        known = ctypes.string_at(address + copy.ctypes.data - start, copy.nbytes)
        by_byte = np.frombuffer(known, np.uint8).reshape(copy.size, copy.itemsize)
        unwritten[name] = (by_byte == 1).any(axis=1)
    return unwritten
