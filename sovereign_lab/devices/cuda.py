"""A CUDA GPU, through CuPy: NVRTC compiles the kernels, the driver launches them."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
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
from sovereign_lab.errors import LabError
from sovereign_lab.kernels import INCLUDE

# Weights go through two pinned buffers in turn: 52 GB/s on an H200, against 6.6 from pageable memory.
STAGING_BYTES = 16 << 20
# Without asking, a block gets at most this much dynamic shared memory.
DEFAULT_SHARED_BYTES = 48 << 10


def why_no_gpu() -> str | None:
    """Why no CUDA GPU can be used, in a sentence that says what to do; None where one can."""
    if find_spec("cupy") is None:
        return (
            "CuPy is not installed. On a machine with an NVIDIA driver: pip install 'sovereign-lab[cuda13]' "
            "(or [cuda12] for a driver older than 580). Without a GPU: --device simt."
        )
    try:
        import cupy
    except ImportError as error:  # CuPy without a driver: libcuda is not there
        return f"CuPy is installed but cannot be imported ({error}). Without a GPU: --device simt."
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return (
            f"the CUDA runtime says {error}; nvidia-smi shows whether the driver works. "
            "Without a GPU: --device simt."
        )
    return None if count else "the driver lists no GPU. Without a GPU: --device simt."


class CudaRecording(Recording):
    """A CUDA graph on the device's stream."""

    def __init__(self, device: "CudaDevice", graph: Any) -> None:
        self._device, self._graph = device, graph

    def replay(self) -> None:
        """Launch the graph; returns at once."""
        with self._device._telling("a graph of launches"):
            self._graph.launch(self._device._stream)


class CudaTimer(Timer):
    """Time between two events on the device's stream."""

    def __init__(self, device: "CudaDevice") -> None:
        self._device = device
        cuda = device._cupy.cuda
        self._start, self._end = cuda.Event(), cuda.Event()

    def __enter__(self) -> "CudaTimer":
        self._start.record(self._device._stream)
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.record(self._device._stream)
        self._device.synchronize()
        self.milliseconds = self._device._cupy.cuda.get_elapsed_time(self._start, self._end)


class CudaStamps(Stamps):
    """Events on the device's stream."""

    def __init__(self, device: "CudaDevice") -> None:
        self._device = device
        self._events: list[Any] = []

    def mark(self) -> None:
        event = self._device._cupy.cuda.Event()
        event.record(self._device._stream)
        self._events.append(event)

    def microseconds(self) -> list[float]:
        self._device.synchronize()
        elapsed = self._device._cupy.cuda.get_elapsed_time
        return [1e3 * elapsed(self._events[0], event) for event in self._events]


class CudaDevice(Device):
    """The current CUDA device. All work goes to one stream of its own, unless a launch names another."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self.array_type = cupy.ndarray
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._recent: deque[str] = deque(maxlen=4)
        self._staging: list[tuple[Any, Any]] = []
        self._branches: list[tuple[Any, Any]] = []  # a stream, and the event of its end
        self._forked: Any = None
        runtime = cupy.cuda.runtime
        facts = runtime.getDeviceProperties(runtime.getDevice())
        # Double data rate: two transfers a clock (kHz) over the width of the bus (bits).
        clock, width = (
            runtime.deviceGetAttribute(a, runtime.getDevice())
            for a in (runtime.cudaDevAttrMemoryClockRate, runtime.cudaDevAttrGlobalMemoryBusWidth)
        )
        name = facts["name"].decode()
        self._arch = 10 * facts["major"] + facts["minor"]
        self.properties = Properties(
            name=name,
            kind="cuda",
            arch=f"sm_{self._arch}",
            sm_count=facts["multiProcessorCount"],
            shared_per_block=facts["sharedMemPerBlockOptin"],
            l2_bytes=facts["l2CacheSize"],
            peak_bandwidth=2 * clock * 1e3 * width / 8,
            times=f"the time of {name}",
        )

    def array(self, host: np.ndarray) -> Any:
        host = np.ascontiguousarray(host)
        target = self.empty(host.shape, host.dtype)
        self._copy_in(target, host)
        return target

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        with self._stream, self._telling(f"an allocation of shape {shape}"):
            return self._cupy.empty(shape, dtype)

    def to_host(self, array: Any) -> np.ndarray:
        with self._telling("a copy to the host"):
            return array.get(stream=self._stream)

    def update(self, array: Any, host: np.ndarray) -> None:
        self._copy_in(array, np.ascontiguousarray(host, array.dtype))

    def _copy_in(self, target: Any, host: np.ndarray) -> None:
        cuda = self._cupy.cuda
        if not self._staging:
            for _ in range(2):
                pinned = cuda.alloc_pinned_memory(STAGING_BYTES)
                self._staging.append(
                    (
                        np.frombuffer(pinned, np.uint8, STAGING_BYTES),
                        cuda.Event(disable_timing=True),
                    )
                )
        flat = host.reshape(-1).view(np.uint8)
        with self._telling("a copy to the GPU"):
            for i, start in enumerate(range(0, flat.size, STAGING_BYTES)):
                buffer, free = self._staging[i % 2]
                part = flat[start : start + STAGING_BYTES]
                free.synchronize()  # the copy that last read this buffer has ended
                buffer[: part.size] = part
                cuda.runtime.memcpyAsync(
                    target.data.ptr + start, buffer.ctypes.data, part.size,
                    cuda.runtime.memcpyHostToDevice, self._stream.ptr,
                )  # fmt: skip
                free.record(self._stream)

    def synchronize(self) -> None:
        with self._telling("work on the GPU"):
            self._stream.synchronize()

    def stream(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def fork(self, branches: int) -> Iterator[Sequence[Any]]:
        Event = self._cupy.cuda.Event
        while len(self._branches) < branches:
            self._branches.append((self.stream(), Event(disable_timing=True)))
        self._forked = self._forked or Event(disable_timing=True)
        chosen = self._branches[:branches]
        with self._telling("a fork into streams"):
            self._forked.record(self._stream)
            for stream, _ in chosen:
                stream.wait_event(self._forked)
        try:
            yield [stream for stream, _ in chosen]
        finally:
            with self._telling("a join of streams"):
                for stream, ended in chosen:
                    ended.record(stream)
                    self._stream.wait_event(ended)

    def timer(self) -> CudaTimer:
        return CudaTimer(self)

    def stamps(self) -> CudaStamps:
        return CudaStamps(self)

    def _compile(self, sources: Sequence[Source], step: Callable[[str], None]) -> list[Any]:
        handles = []
        for source in sources:
            handles.append(_Module(self._cupy, source))
            step(source.name)
        return handles

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
        function = kernel.handle.function(kernel.name)
        if shared_bytes > DEFAULT_SHARED_BYTES:
            function.max_dynamic_shared_size_bytes = shared_bytes
        what = f"{kernel.name} <<<{grid}, {block}, {shared_bytes}>>>"
        self._recent.append(what)
        with stream or self._stream, self._telling(what):
            function.kernel(grid, block, tuple(args), shared_bytes, None, cooperative)

    def _begin_capture(self) -> None:
        self._stream.begin_capture()

    def _end_capture(self, failed: bool) -> CudaRecording:
        with self._telling("the end of a capture"):
            return CudaRecording(self, self._stream.end_capture())

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Turn CUDA's errors into a sentence: they surface late, so it names the last launches too."""
        cuda = self._cupy.cuda
        try:
            yield
        except cuda.memory.OutOfMemoryError as error:
            raise LabError(f"The GPU's memory is full ({what}): {error}") from error
        except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
            launches = ", ".join(self._recent) or "none"
            raise LabError(
                f"CUDA reports {error} at {what}; the last launches, any of which may be the cause: {launches}. "
                "After an illegal access the process can use this GPU no more: start it again."
            ) from error


class _Module:
    """One compiled source.

    CuPy compiles for a cooperative launch with relocatable device code, which CUDA needs no more: here a source is
    compiled once, and each launch says whether it is cooperative.
    """

    def __init__(self, cupy: Any, source: Source) -> None:
        code = f'#line 1 "{source.name}"\n{source.text}'
        options = (
            "-std=c++17",
            f"-I{INCLUDE}",
            *(f"-D{k}={v}" for k, v in source.defines.items()),
        )
        self._module = cupy.RawModule(code=code, options=options)
        try:
            self._module.compile()
        except cupy.cuda.compiler.CompileException as error:
            raise LabError(f"{source.name} does not compile:\n{error}") from error
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        if name not in self._functions:
            self._functions[name] = self._module.get_function(name)
        return self._functions[name]
