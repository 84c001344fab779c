"""What a device is: arrays, compiled kernels, typed launches, recordings. CUDA and SIMT differ in nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.devices.signature import Signature, bind, parse_signature
from sovereign_lab.errors import LabError

WARP = 32  # lanes
Shape3 = int | tuple[int, ...]
Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Properties:
    """Facts about a device. Bandwidth in bytes/s and None where nobody knows it; sizes in bytes."""

    name: str
    kind: str  # "cuda" or "simt"
    arch: str  # "sm_90", or "simt"
    sm_count: int
    shared_per_block: int
    l2_bytes: int | None
    peak_bandwidth: float | None
    times: str  # what a time measured on this device means, in a sentence


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel: `handle` belongs to the device that made it."""

    name: str
    signature: Signature
    handle: Any


@dataclass(frozen=True)
class Source:
    """What to compile: the text, the name it goes by in messages, and macros (`{"KV": "half"}`)."""

    text: str
    name: str
    defines: Mapping[str, str]

    @classmethod
    def of(
        cls, source: "str | Path | Source", defines: Mapping[str, str] | None = None, name: str = ""
    ) -> "Source":
        """From a path, a text, or one already made."""
        if isinstance(source, Source):
            return source
        if isinstance(source, Path):
            return cls(source.read_text(), name or source.name, dict(defines or {}))
        return cls(source, name or "kernel.cu", dict(defines or {}))


def launch_shape(kernel: str, grid: Shape3, block: Shape3) -> tuple[Dim3, Dim3]:
    """Grid and block as (x, y, z). Raises LabError naming the kernel, and which of the two cannot be."""
    return _three(kernel, "grid", grid), _three(kernel, "block", block)


def _three(kernel: str, which: str, shape: Shape3) -> Dim3:
    values = (shape,) if isinstance(shape, int) else tuple(shape)
    if not 1 <= len(values) <= 3 or any(v < 1 for v in values):
        raise LabError(
            f"Kernel {kernel}: a {which} has one to three sizes of at least 1; got {shape!r}."
        )
    x, y, z = (*values, 1, 1)[:3]
    return int(x), int(y), int(z)


class Recording(ABC):
    """A sequence of launches that replays with one call: a CUDA graph, or a list."""

    @abstractmethod
    def replay(self) -> None:
        """Run every recorded launch in order, with the arguments it was recorded with."""


class Timer(ABC):
    """`with device.timer() as t: ...` then `t.milliseconds`: the device's own time between the two ends."""

    milliseconds: float

    @abstractmethod
    def __enter__(self) -> "Timer": ...

    @abstractmethod
    def __exit__(self, *exc: object) -> None: ...


class Stamps(ABC):
    """Points in time between launches: `mark()` as often as wanted, then `microseconds()` waits and reads them."""

    @abstractmethod
    def mark(self) -> None:
        """Here, behind everything launched before."""

    @abstractmethod
    def microseconds(self) -> list[float]:
        """From the first mark to each mark, the first one included: it is 0."""


class Device(ABC):
    """See the module's docstring. A launch returns at once on a GPU; `synchronize` or `to_host` waits."""

    properties: Properties
    array_type: type

    @abstractmethod
    def array(self, host: np.ndarray) -> Any:
        """A copy of `host` on the device, C-contiguous, same dtype and shape."""

    @abstractmethod
    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised array on the device."""

    def arguments(self, host: Mapping[str, Any]) -> dict[str, Any]:
        """A launch's arguments by parameter name, each NumPy array of `host` copied to the device."""
        return {k: self.array(v) if isinstance(v, np.ndarray) else v for k, v in host.items()}

    @abstractmethod
    def to_host(self, array: Any) -> np.ndarray:
        """A copy on the host, after everything launched before."""

    @abstractmethod
    def update(self, array: Any, host: np.ndarray) -> None:
        """Overwrite `array` (or a contiguous part of one) with `host`, after everything launched before."""

    @abstractmethod
    def _compile(self, sources: Sequence[Source], step: Callable[[str], None]) -> list[Any]:
        """One handle a source; `step(name)` after each."""

    @abstractmethod
    def _launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: list[Any],
        shared_bytes: int,
        cooperative: bool,
        stream: Any,
    ) -> None: ...

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything launched before; raises LabError if any of it failed."""

    @abstractmethod
    def stream(self) -> Any:
        """A stream to launch on, beside the default one."""

    @abstractmethod
    def fork(self, branches: int) -> AbstractContextManager[Sequence[Any]]:
        """`with device.fork(3) as streams:` launches on these may run side by side.

        Each begins when everything launched before has ended, and what is launched behind the block waits for all.
        Within a capture the branches become branches of the recording.
        """

    @abstractmethod
    def timer(self) -> Timer:
        """See Timer."""

    @abstractmethod
    def stamps(self) -> Stamps:
        """See Stamps."""

    @abstractmethod
    def _begin_capture(self) -> None: ...

    @abstractmethod
    def _end_capture(self, failed: bool) -> Recording: ...

    def compile(
        self, source: str | Path | Source, defines: Mapping[str, str] | None = None, name: str = ""
    ) -> Kernel:
        """Compile one kernel. Raises LabError with the compiler's words, lines counted in the given source."""
        return self.compile_all([Source.of(source, defines, name)])[0]

    def compile_all(
        self, sources: Sequence[Source], step: Callable[[str], None] = lambda name: None
    ) -> list[Kernel]:
        """Compile several at once, on all cores where the device can; `step(name)` reports each that is ready."""
        signatures = [parse_signature(s.text, s.defines) for s in sources]
        handles = self._compile(sources, step)
        return [Kernel(g.name, g, h) for g, h in zip(signatures, handles, strict=True)]

    def launch(
        self,
        kernel: Kernel,
        grid: Shape3,
        block: Shape3,
        args: Sequence[Any],
        shared_bytes: int = 0,
        cooperative: bool = False,
        stream: Any = None,
    ) -> None:
        """Run `kernel` on `grid` blocks of `block` threads.

        Arguments are checked against the kernel's C signature (`signature.bind`); blocks have at most 1,024
        threads. Raises LabError naming the kernel, its launch shape and the parameter or limit.
        """
        grid3, block3 = launch_shape(kernel.name, grid, block)
        threads = block3[0] * block3[1] * block3[2]
        if threads > 1024:
            raise LabError(
                f"Kernel {kernel.name}: a block of {threads} threads; a GPU takes at most 1,024."
            )
        if shared_bytes > self.properties.shared_per_block:
            raise LabError(
                f"Kernel {kernel.name}: {shared_bytes} bytes of shared memory a block asked for; "
                f"{self.properties.name} has {self.properties.shared_per_block}."
            )
        bound = bind(kernel.signature, args, self.array_type)
        self._launch(kernel, grid3, block3, bound, shared_bytes, cooperative, stream)

    @contextmanager
    def capture(self) -> Iterator["Capture"]:
        """Record launches instead of running them: `with device.capture() as c: ...`, then `c.replay()`."""
        capture = Capture()
        self._begin_capture()
        try:
            yield capture
        except BaseException:
            self._end_capture(failed=True)
            raise
        capture.recording = self._end_capture(failed=False)


class Capture:
    """Holds the recording once its `with` block has ended."""

    recording: Recording

    def replay(self) -> None:
        """Run what was recorded."""
        self.recording.replay()
