"""A worker's side of `measure/worker.py`: it receives functions, runs them, answers, and dies with its parent.

What a function may use while it runs here: `device`, `model`, `doing`, `retire`. In a process that is no worker they
work too, so that a function can be tried without one.
"""

import contextlib
import ctypes
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import threading
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from sovereign_lab.devices import Device, open_device
from sovereign_lab.devices.device import Dim3, Shape3, launch_shape
from sovereign_lab.errors import LabError
from sovereign_lab.models import Model, load_model

# Length and CRC-32 of what follows: a kernel may have written over this process's memory.
HEADER = struct.Struct(">QI")
# To import, and to open a device: zig takes a minute for what it links first.
OPENING_SECONDS = 120.0
_LINE_BUFFERED = 1  # _IOLBF


@dataclass(frozen=True)
class Doing:
    """What the worker turns to now, and how many seconds it may take; None for the call's time limit."""

    what: str
    seconds: float | None


Kind = Literal["result", "lab error", "exception", "memory", "gpu"]


@dataclass(frozen=True)
class Answer:
    """How a call ended. `value`: the result; the text of a LabError, "memory" or "gpu"; or an exception."""

    kind: Kind
    value: Any
    retired: bool


@dataclass
class _Process:
    """What this process is a worker for; `channel` is None in any other process."""

    channel: socket.socket | None = None
    choice: str = "auto"
    opened: Device | None = None
    retired: bool = False


_process = _Process()


def device() -> Device:
    """This process's device, opened once. Raises LabError where there is none."""
    if _process.opened is None:
        _process.opened = open_device(_process.choice)
    return _process.opened


@cache
def model(name: str | None = None) -> Model:
    """A model by name or path (None: the default), loaded once in this process. Raises LabError as load_model does."""
    return load_model(name)


def doing(what: str, seconds: float | None = None) -> None:
    """Tell the parent what comes now, as the subject of a sentence: "Compiling mine.cu".

    It is named if the worker ends, and the call's time limit, or `seconds` in its place, counts from here.
    """
    if _process.channel is not None:
        _process.channel.sendall(frame(Doing(what, seconds)))


def launch_words(kernel: str, grid: Shape3, block: Shape3) -> str:
    """A kernel and its launch shape, for `doing`: "Kernel mine <<<(4, 2), 128>>>". Raises LabError as a launch does."""

    def words(shape: Dim3) -> str:
        x, y, z = shape
        return str(x) if y == z == 1 else f"({x}, {y})" if z == 1 else f"({x}, {y}, {z})"

    grid3, block3 = launch_shape(kernel, grid, block)
    return f"Kernel {kernel} <<<{words(grid3)}, {words(block3)}>>>"


def retire() -> None:
    """End this process behind the present call: a kernel has, or may have, damaged its memory."""
    _process.retired = True


def frame(message: Any) -> bytes:
    """A message as it goes over the channel."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body), zlib.crc32(body)) + body


def main(channel: int, choice: str, memory_limit: int | None, folder: str) -> None:
    """Serve calls that come over the socket with this descriptor until it closes.

    `folder`: made for this worker's temporary files, and removed if the parent dies and cannot.
    """
    _die_with_parent(folder)
    _harmless_end()
    os.set_inheritable(channel, False)
    _process.channel = socket.socket(fileno=channel)
    _process.choice = choice
    doing("Opening the device", OPENING_SECONDS)
    with contextlib.suppress(LabError):  # told by the function that asks for the device
        device()
    _limit_memory(memory_limit)
    while (request := _receive(_process.channel)) is not None:
        answer = _perform(request)
        _process.channel.sendall(_packed(answer))
        if answer.retired:
            return


def _perform(request: bytes) -> Answer:
    """Run what is asked for, see that the GPU has survived it, and say how it went."""
    kind: Kind = "result"
    value: Any = None
    try:
        function, args, kwargs = _unpack(request)
        doing(f"The call of {getattr(function, '__name__', 'a function')}()")
        value = function(*args, **kwargs)
    except LabError as error:
        kind, value = "lab error", str(error)
    except MemoryError as error:
        return Answer("memory", str(error), retired=True)
    except Exception as error:
        error.add_note("".join(["In the worker:\n", *traceback.format_tb(error.__traceback__)]))
        kind, value = "exception", error
    if _process.opened is not None:
        try:
            _process.opened.synchronize()
        except LabError as error:
            return Answer("gpu", str(error), retired=True)
    return Answer(kind, value, _process.retired)


def _unpack(request: bytes) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    try:
        unpacked: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] = pickle.loads(request)
    except (AttributeError, ImportError) as error:
        raise LabError(
            "A worker takes functions and values of modules that it can import, not those of a notebook's own cells: "
            f"{error}."
        ) from error
    return unpacked


def _packed(answer: Answer) -> bytes:
    """The answer's frame; of what cannot travel, what it is."""
    try:
        packed = frame(answer)
        if answer.kind == "exception":  # some can be pickled and not unpickled
            pickle.loads(packed[HEADER.size :])
    except Exception as error:
        told = answer.value if answer.kind == "exception" else error
        what = "an exception" if answer.kind == "exception" else "a result"
        text = "".join(traceback.format_exception(told))
        sent = RuntimeError(f"{what} that cannot be sent from the worker: {text}")
        packed = frame(Answer("exception", sent, answer.retired))
    return packed


def _receive(channel: socket.socket) -> bytes | None:
    """The next request; None when the parent has closed the channel."""
    header = _exactly(channel, HEADER.size)
    if header is None:
        return None
    return _exactly(channel, HEADER.unpack(header)[0])


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    received = bytearray()
    while len(received) < count:
        part = channel.recv(min(count - len(received), 1 << 20))
        if not part:
            return None
        received += part
    return bytes(received)


def _die_with_parent(folder: str) -> None:
    """The parent holds the other end of standard input and never writes: its end is the parent's."""
    end = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # for the compilers that are started here

    def wait() -> None:
        os.read(end, 1)
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def _harmless_end() -> None:
    """No core files; what a kernel prints is seen even if it crashes; and if memory runs out, this goes first."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    library = ctypes.CDLL(None)
    stdout = ctypes.c_void_p.in_dll(library, "__stdoutp" if sys.platform == "darwin" else "stdout")
    library.setvbuf(stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit_memory(nbytes: int | None) -> None:
    """At most so many bytes of addresses, by default three quarters of the machine's memory.

    Not with a GPU, whose driver reserves far more addresses than it uses.
    """
    import resource

    if _process.opened is not None and _process.opened.properties.kind == "cuda":
        return
    if nbytes is None:
        nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4
    with contextlib.suppress(ValueError, OSError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))
