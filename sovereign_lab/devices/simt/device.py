"""The SIMT device: kernels compiled for the host, their blocks spread over its cores."""

import ctypes
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.devices.device import (
    Device,
    Kernel,
    Properties,
    Recording,
    Source,
    Stamps,
    Timer,
)
from sovereign_lab.devices.simt.builder import Build, build_kernel, build_pool, has_device_variable
from sovereign_lab.errors import LabError

LANE_ORDERS = {"forward": 0, "reverse": 1}
ERROR_BYTES = 8192
# What a GPU would allow of shared memory a block (sm_90), so that a kernel that fits here fits there.
SHARED_PER_BLOCK = 227 * 1024
# A cooperative launch keeps every thread of its grid resident, on one core: 4 SMs' worth is enough to be real.
SM_COUNT = 4
MAX_COOPERATIVE_THREADS = 64 * 1024


class _Dim(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32)]


class _Step(ctypes.Structure):  # as in pool.cpp
    _fields_ = [
        ("run", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("grid", _Dim),
        ("block", _Dim),
        ("dynamic_shared_bytes", ctypes.c_uint32),
        ("lane_order", ctypes.c_uint32),
        ("one_worker", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class Loaded:
    """A kernel's library, one copy a worker: `run` is the array of their entry points."""

    path: Path
    libraries: tuple[ctypes.CDLL, ...]
    run: ctypes.Array
    one_worker: bool
    static_shared_bytes: int


@dataclass(frozen=True)
class _Prepared:
    """A launch ready for the pool, and what must stay alive while it can run."""

    step: _Step
    description: str
    alive: tuple[Any, ...]


class KernelFault(LabError):
    """A kernel did, while it ran, what a GPU would punish with a hang or a fault: `report` says what."""

    def __init__(self, launch: str, report: str) -> None:
        super().__init__(f"Kernel {launch}: {report}")
        self.report = report


class SimtRecording(Recording):
    """Launches kept as one array of steps, handed to the pool in one call."""

    def __init__(self, device: "SimtDevice", launches: list[_Prepared]) -> None:
        self._device = device
        self._launches = launches
        self._steps = (_Step * max(1, len(launches)))(*(p.step for p in launches))

    def replay(self) -> None:
        """Run the recorded launches in order; raises LabError at the first that fails."""
        if self._launches:
            self._device._run(self._steps, self._launches)


class SimtTimer(Timer):
    """Wall time of this CPU: says how long the imitation takes, nothing about a GPU."""

    def __enter__(self) -> "SimtTimer":
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.milliseconds = (time.perf_counter() - self._start) * 1e3


class SimtStamps(Stamps):
    """Wall time of this CPU, as with SimtTimer: a launch has ended when it returns."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def mark(self) -> None:
        self._seconds.append(time.perf_counter())

    def microseconds(self) -> list[float]:
        return [(t - self._seconds[0]) * 1e6 for t in self._seconds]


class SimtDevice(Device):
    """Runs kernels on `workers` OS threads (all cores by default).

    `lane_order`: "forward", "reverse" or a seed of 2 or more: the order in which the lanes of a warp get to
    run. A kernel whose result changes with it relies on an order that CUDA does not promise. `build`: "traced"
    kernels record what they do (measure/memory_trace.py reads it), "sanitized" ones check it (measure/sanitizer.py);
    both are many times slower.
    """

    array_type = np.ndarray

    def __init__(
        self, workers: int | None = None, lane_order: str | int = "forward", build: Build = "plain"
    ) -> None:
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        self.workers = workers or cores
        self.lane_order = lane_order
        self._build: Build = build
        self._lock = threading.Lock()
        self._recording: list[_Prepared] | None = None
        self._loaded: dict[Path, Loaded] = {}
        self._start_pool()
        self.properties = Properties(
            name=f"SIMT device on {self.workers} CPU core{'s' if self.workers > 1 else ''}",
            kind="simt",
            arch="simt",
            sm_count=SM_COUNT,
            shared_per_block=SHARED_PER_BLOCK,
            l2_bytes=None,
            peak_bandwidth=None,
            times="wall time of a CPU that imitates a GPU thread by thread: it says nothing about a GPU's speed",
        )

    @property
    def lane_order(self) -> str | int:
        """See the class."""
        return self._lane_order

    @lane_order.setter
    def lane_order(self, value: str | int) -> None:
        if isinstance(value, str):
            if value not in LANE_ORDERS:
                raise LabError(
                    f"lane_order is 'forward', 'reverse' or a seed of 2 or more; got {value!r}."
                )
        elif value < 2:
            raise LabError(f"A lane-order seed is 2 or more; got {value}.")
        self._lane_order = value

    def _start_pool(self) -> None:
        self._pid = os.getpid()
        self._pool_library = ctypes.CDLL(str(build_pool()))
        self._pool_library.pool_create.restype = ctypes.c_void_p
        self._pool = ctypes.c_void_p(self._pool_library.pool_create(self.workers))

    def close(self) -> None:
        """End the worker threads; the device cannot be used afterwards."""
        if self._pool and self._pid == os.getpid():
            self._pool_library.pool_destroy(self._pool)
        self._pool = ctypes.c_void_p()

    def array(self, host: np.ndarray) -> np.ndarray:
        copy = self.empty(np.shape(host), np.asarray(host).dtype)
        copy[...] = host
        return copy

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
        # A GPU's allocations are aligned to 256 bytes, so sectors and vector accesses fall the same way here.
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = np.empty(size + 256, np.uint8)
        start = -raw.ctypes.data % 256
        return raw[start : start + size].view(dtype).reshape(shape)

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def update(self, array: np.ndarray, host: np.ndarray) -> None:
        array[...] = host

    def synchronize(self) -> None:
        """Launches have ended when they return, so there is nothing to wait for."""

    def stream(self) -> None:
        """The one stream there is: launches run one after the other."""
        return None

    def fork(self, branches: int) -> AbstractContextManager[Sequence[None]]:
        """Branches run one after the other here, in the order of their launches."""
        return nullcontext([None] * branches)

    def timer(self) -> SimtTimer:
        return SimtTimer()

    def stamps(self) -> SimtStamps:
        return SimtStamps()

    def _compile(self, sources: Sequence[Source], step: Callable[[str], None]) -> list[Loaded]:
        def one(source: Source) -> Path:
            library = build_kernel(source.text, source.name, source.defines, self._build)
            step(source.name)
            return library

        with ThreadPoolExecutor(self.workers) as pool:
            paths = list(pool.map(one, sources))
        return [self._load(path, source.text) for path, source in zip(paths, sources, strict=True)]

    def _load(self, path: Path, text: str) -> Loaded:
        # The loader gives the same copy for the same file, so every worker gets a file of its own; it can be
        # deleted once loaded.
        if path not in self._loaded:
            with tempfile.TemporaryDirectory(prefix="sovereign-simt-") as folder:
                libraries = []
                for worker in range(self.workers):
                    copy = Path(folder) / f"{path.stem}.{worker}.so"
                    shutil.copyfile(path, copy)
                    libraries.append(ctypes.CDLL(str(copy)))
            run = (ctypes.c_void_p * self.workers)(
                *(ctypes.cast(lib.simt_run, ctypes.c_void_p) for lib in libraries)
            )
            libraries[0].simt_static_shared_bytes.restype = ctypes.c_uint64
            shared = libraries[0].simt_static_shared_bytes()
            self._loaded[path] = Loaded(
                path, tuple(libraries), run, has_device_variable(text), shared
            )
        return self._loaded[path]

    def _launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: list[Any],
        shared_bytes: int,
        cooperative: bool,
        stream: Any,
    ) -> None:
        prepared = self._prepare(kernel, grid, block, args, shared_bytes, cooperative)
        if self._recording is not None:
            self._recording.append(prepared)
        else:
            self._run((_Step * 1)(prepared.step), [prepared])

    def _prepare(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: list[Any],
        shared_bytes: int,
        cooperative: bool,
    ) -> _Prepared:
        loaded: Loaded = kernel.handle
        shape = f"<<<{grid}, {block}>>>"
        total = int(np.prod(grid, dtype=np.int64)) * int(np.prod(block))
        if cooperative and total > MAX_COOPERATIVE_THREADS:
            raise LabError(
                f"Kernel {kernel.name} {shape}: a cooperative launch keeps all {total:,} threads resident; the SIMT "
                f"device takes {MAX_COOPERATIVE_THREADS:,}. Size the grid from device.properties.sm_count."
            )
        # The sanitized build keeps shared arrays apart, and its size says nothing about what the kernel asks for.
        sanitized = self._build == "sanitized"
        if loaded.static_shared_bytes + shared_bytes > SHARED_PER_BLOCK and not sanitized:
            raise LabError(
                f"Kernel {kernel.name} {shape}: {loaded.static_shared_bytes + shared_bytes} bytes of shared memory a "
                f"block; a GPU has at most {SHARED_PER_BLOCK}."
            )
        cells: list[Any] = []
        for parameter, value in zip(kernel.signature.parameters, args, strict=True):
            if parameter.pointer:
                if value.ctypes.data % value.dtype.itemsize:
                    raise LabError(
                        f"Kernel {kernel.name}, parameter `{parameter}`: the array is not aligned to its elements."
                    )
                cells.append(ctypes.c_void_p(value.ctypes.data))
            else:
                cells.append(np.array(value))  # a zero-dimensional array owns the scalar's storage
        addresses = [
            ctypes.addressof(c) if isinstance(c, ctypes.c_void_p) else c.ctypes.data for c in cells
        ]
        pointers = (ctypes.c_void_p * max(1, len(cells)))(*addresses)
        order = (
            LANE_ORDERS[self._lane_order] if isinstance(self._lane_order, str) else self._lane_order
        )
        step = _Step(
            ctypes.addressof(loaded.run),
            ctypes.addressof(pointers),
            _Dim(*grid),
            _Dim(*block),
            shared_bytes,
            order,
            int(cooperative or loaded.one_worker or sanitized),
            int(cooperative),
        )
        return _Prepared(step, f"{kernel.name} {shape}", (loaded, pointers, cells, args))

    def _run(self, steps: ctypes.Array, launches: Sequence[_Prepared]) -> None:
        if self._pid != os.getpid():
            self._start_pool()  # threads do not survive a fork
        if not self._pool:
            raise LabError(
                "This SIMT device has been closed; open another with open_device('simt')."
            )
        error = ctypes.create_string_buffer(ERROR_BYTES)
        with self._lock:
            failed = self._pool_library.pool_run(
                self._pool, steps, len(launches), error, ERROR_BYTES
            )
        if failed >= 0:
            raise KernelFault(launches[failed].description, error.value.decode(errors="replace"))

    def _begin_capture(self) -> None:
        if self._recording is not None:
            raise LabError("A capture is already under way on this device.")
        self._recording = []

    def _end_capture(self, failed: bool) -> SimtRecording:
        launches, self._recording = self._recording or [], None
        return SimtRecording(self, [] if failed else launches)
