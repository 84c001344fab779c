"""Edited kernels run in a process of their own, so that nothing they do costs the learner their notebook.

with Worker("simt", time_limit=2) as worker:
    card = worker.call(trial, "gemv_q4_0", source)

A kernel that never ends, writes where it may not, takes all memory or leaves a GPU unusable ends that process alone.
The caller gets a WorkerEnded that names the kernel, and the next call a fresh process. What functions may use on the
other side is in `measure/worker/child.py`.
"""

import contextlib
import json
import os
import pickle
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from sovereign_lab.errors import LabError
from sovereign_lab.measure.worker.child import (
    HEADER,
    OPENING_SECONDS,
    Answer,
    Doing,
    device,
    doing,
    launch_words,
    model,
    retire,
)

__all__ = ["Worker", "WorkerEnded", "device", "doing", "launch_words", "model", "retire"]

Reason = Literal["time limit", "crash", "memory", "gpu", "cancelled"]
T = TypeVar("T")

KEPT_OUTPUT = 64 << 10  # bytes of what a worker prints
SHOWN_LINES = 8
MAX_MESSAGE = 1 << 32  # bytes; more is no message, but memory that a kernel has written over
# A process in the hands of a GPU's driver may take long to die; nobody waits longer than this for it.
DEATH_SECONDS = 5.0
ASKED = Doing("A call", None)  # until the child says that it has begun
START = (
    "import json, sys; path, arguments = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from sovereign_lab.measure.worker.child import main; main(*arguments)"
)
SIGNALS = {
    signal.SIGSEGV: "it touched memory that is not its own: an index far out of bounds, a null pointer, or calls "
    "nested too deeply",
    signal.SIGBUS: "it touched memory that is not there",
    signal.SIGFPE: "an integer was divided by zero",
    signal.SIGILL: "it ran into an instruction that stands for what must never happen",
    signal.SIGTRAP: "it ran into a trap",
    signal.SIGABRT: "the C library found memory damaged, or an exception that nobody handles",
}


class WorkerEnded(LabError):
    """The process that ran a call is gone; the caller's own is as it was.

    `reason`: "time limit", "crash", "memory", "gpu" or "cancelled". `doing`: what it was at, as told by `child.doing`.
    `signal`: the name of the signal that ended it, where one did. `output`: what it printed last.
    """

    def __init__(
        self, reason: Reason, doing: str, text: str, output: str = "", signal: str | None = None
    ) -> None:
        lines = output.strip().splitlines()[-SHOWN_LINES:]
        printed = "\nIt printed last:\n" + "\n".join(lines) if lines else ""
        super().__init__(text + printed)
        self.reason = reason
        self.doing = doing
        self.output = output
        self.signal = signal


class _Damaged(Exception):
    """What came over the channel is no message."""


class _Cancelled(Exception):
    """Another thread has asked for the call's end."""


@dataclass
class _Child:
    """A running process: its two pipes, what it does now, and `end`, which kills it and all that it started."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    end: "weakref.finalize[Any, Worker]"
    owner: int
    doing: Doing = field(default_factory=lambda: Doing("Starting the worker", OPENING_SECONDS))
    calls: int = 0
    output: bytearray = field(default_factory=bytearray)

    def listen(self) -> bool:
        """Remember the last of what it has printed since; whether it may print more."""
        assert self.process.stdout is not None
        printed = self.process.stdout.read(KEPT_OUTPUT)  # None: nothing now; b"": nothing ever
        self.output += printed or b""
        del self.output[:-KEPT_OUTPUT]
        return printed != b""


class Worker:
    """A child process with a device of its own, started at the first call and again when it has ended.

    `device`: as for open_device. `time_limit`: seconds that each step of a call may take, a step being what lies
    between two `doing`; opening the device is not counted. `memory_limit`: bytes of addresses, by default three
    quarters of the machine's memory; without effect on a GPU's worker. Calls of several threads wait for each other.
    """

    def __init__(
        self, device: str = "auto", time_limit: float = 10.0, memory_limit: int | None = None
    ) -> None:
        self.time_limit = time_limit
        self._device = device
        self._memory_limit = memory_limit
        self._lock = threading.Lock()
        self._bell: socket.socket | None = None  # wakes the call that runs, to be cancelled
        self._bell_lock = threading.Lock()
        self._child: _Child | None = None
        self._output = ""

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def output(self) -> str:
        """What the last call printed, the last 64 KiB of it."""
        return self._output

    def start(self) -> None:
        """Start the process now and return at once, so that the next call finds it ready."""
        with self._lock:
            self._ready()

    def close(self) -> None:
        """End the process; a later call starts another."""
        with self._lock:
            self._drop()

    def cancel(self) -> None:
        """End the call that runs, from another thread: it raises WorkerEnded, and the next has a fresh process.

        Calls that wait for their turn stay. Without effect where no call runs.
        """
        with self._bell_lock:
            if self._bell is not None:
                self._bell.send(b"!")

    def call(
        self,
        function: Callable[..., T],
        *args: Any,
        time_limit: float | None = None,
        on_progress: Callable[[str], None] | None = None,
        **kwargs: Any,
    ) -> T:
        """`function(*args, **kwargs)` in the worker; the function is one that can be imported from a module.

        `on_progress` is called here, in this thread, with the text of each `doing`; an exception of its own ends the
        process and is raised.
        Raises LabError where the function does, with its text; another exception as it is; WorkerEnded where the
        process ended. An interrupt ends the process too. A call that crashes a process which others have used before
        is repeated once in a fresh one, since the damage may be theirs: let functions change nothing outside.
        """
        limit = self.time_limit if time_limit is None else time_limit
        try:
            request = pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)
        except (AttributeError, pickle.PicklingError, TypeError) as error:
            raise LabError(
                "A worker takes functions that a module defines at its top level, and values that can be pickled: "
                f"{error}."
            ) from error
        request = HEADER.pack(len(request), zlib.crc32(request)) + request
        with self._lock, self._rung() as bell:
            answer = self._answer(request, limit, bell, on_progress or (lambda what: None))
        if answer.kind == "lab error":
            raise LabError(answer.value)
        if answer.kind == "exception":
            raise answer.value
        result: T = answer.value
        return result

    @contextlib.contextmanager
    def _rung(self) -> Iterator[socket.socket]:
        """A socket that can be read as soon as the call is to be cancelled."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            with self._bell_lock:
                self._bell = theirs
            try:
                yield ours
            finally:
                with self._bell_lock:
                    self._bell = None

    def _answer(
        self, request: bytes, limit: float, bell: socket.socket, tell: Callable[[str], None]
    ) -> Answer:
        child = self._ready()
        used = child.calls > 0
        try:
            return self._ask(child, request, limit, bell, tell)
        except WorkerEnded as ended:
            begun = child.doing is not ASKED  # else it was dead or dying before
            if not used or ended.reason == "cancelled" or (begun and ended.reason != "crash"):
                raise
        return self._ask(self._ready(), request, limit, bell, tell)

    def _ready(self) -> _Child:
        """The child, or a fresh one: where there is none, where it has died, or where this process is a fork."""
        if self._child is not None and self._child.owner != os.getpid():
            self._child = None  # the parent's
        if self._child is not None and self._child.process.poll() is not None:
            self._drop()
        if self._child is None:
            self._child = _start(self, self._device, self._memory_limit)
        return self._child

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.listen()
            child.end()

    def _ask(
        self,
        child: _Child,
        request: bytes,
        limit: float,
        bell: socket.socket,
        tell: Callable[[str], None],
    ) -> Answer:
        if child.calls:  # else it may still be starting
            child.doing = ASKED
        child.calls += 1
        child.output.clear()
        try:
            answer = _converse(child, request, limit, bell, tell)
        except ConnectionError:
            self._drop()
            raise _crashed(child) from None
        except _Damaged:
            self._drop()
            raise _ended(
                child, "crash", "wrote over its process's memory: the answer made no sense."
            ) from None
        except _Cancelled:
            self._drop()
            raise _ended(child, "cancelled", "was cancelled, and its process ended.") from None
        except TimeoutError:
            self._drop()
            allowed = limit if child.doing.seconds is None else child.doing.seconds
            raise _ended(
                child,
                "time limit",
                f"had not ended after {allowed:g} s, the time limit, and was stopped. Look for a loop that never "
                "ends; if it only needs longer, raise the time limit.",
            ) from None
        except BaseException:
            self._drop()
            raise
        finally:
            self._output = child.output.decode(errors="replace")
        if answer.retired:
            self._drop()
        if answer.kind == "memory":
            raise _ended(child, "memory", f"ran out of memory. {answer.value}".rstrip())
        if answer.kind == "gpu":
            raise _ended(child, "gpu", f"left the GPU unusable for its process. {answer.value}")
        return answer


def _start(worker: Worker, device: str, memory_limit: int | None) -> _Child:
    try:
        # Compilers that are killed leave files behind, and so they lie together.
        folder = tempfile.mkdtemp(prefix="sovereign-worker-")
    except OSError as error:
        raise LabError(f"A worker has no place for its temporary files: {error}.") from error
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    arguments = json.dumps(
        [[str(p) for p in sys.path], [theirs.fileno(), device, memory_limit, folder]]
    )
    try:
        # A session of its own: an interrupt in the terminal is the parent's, and one kill ends compilers as well.
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", START, arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            bufsize=0,
            env={**os.environ, "TMPDIR": folder},
        )
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise LabError(f"A worker process cannot be started: {error}.") from error
    finally:
        theirs.close()
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    end = weakref.finalize(worker, _end, process, ours, folder, os.getpid())
    return _Child(process, ours, end, os.getpid())


def _end(process: subprocess.Popen[bytes], channel: socket.socket, folder: str, owner: int) -> None:
    """Kill a child and what it has started, and clear up behind it. In a fork of the owner: nothing."""
    if os.getpid() != owner:
        return
    # Before anybody has waited for it: until then its number belongs to no other process.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(DEATH_SECONDS)
    for pipe in (process.stdin, process.stdout, channel):
        if pipe is not None:
            pipe.close()
    shutil.rmtree(folder, ignore_errors=True)


def _converse(
    child: _Child,
    request: bytes,
    limit: float,
    bell: socket.socket,
    tell: Callable[[str], None],
) -> Answer:
    """Send the request, tell what the child says it does, and return its answer.

    Raises TimeoutError when a step takes too long, ConnectionError when the child is gone, _Cancelled when the bell
    rings, _Damaged.
    """
    unsent = memoryview(request)
    received = bytearray()
    stdout = child.process.stdout
    assert stdout is not None

    def deadline() -> float:
        seconds = limit if child.doing.seconds is None else child.doing.seconds
        return time.monotonic() + seconds

    end = deadline()
    with selectors.DefaultSelector() as ready:
        ready.register(child.channel, selectors.EVENT_READ | selectors.EVENT_WRITE)
        ready.register(stdout, selectors.EVENT_READ)
        ready.register(bell, selectors.EVENT_READ)
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for key, events in ready.select(left):
                if key.fileobj is bell:
                    raise _Cancelled
                if key.fileobj is stdout:
                    if not child.listen():
                        ready.unregister(stdout)
                    continue
                if events & selectors.EVENT_READ:
                    part = child.channel.recv(1 << 20)
                    if not part:
                        raise ConnectionError
                    received += part
                if events & selectors.EVENT_WRITE:
                    unsent = unsent[child.channel.send(unsent) :]
                    if not unsent:
                        ready.modify(child.channel, selectors.EVENT_READ)
            while (message := _take(received)) is not None:
                if isinstance(message, Answer):
                    child.listen()
                    return message
                child.doing = message
                tell(message.what)
                end = deadline()


def _take(received: bytearray) -> Doing | Answer | None:
    """The first whole message of what has come, taken from it; None where there is none yet."""
    if len(received) < HEADER.size:
        return None
    length, checksum = HEADER.unpack_from(received)
    if length > MAX_MESSAGE:
        raise _Damaged
    if len(received) < HEADER.size + length:
        return None
    body = bytes(received[HEADER.size : HEADER.size + length])
    del received[: HEADER.size + length]
    if zlib.crc32(body) != checksum:
        raise _Damaged
    try:
        message = pickle.loads(body)
    except Exception:
        raise _Damaged from None
    if not isinstance(message, (Doing, Answer)):
        raise _Damaged
    return message


def _crashed(child: _Child) -> WorkerEnded:
    """Why a child that is gone is gone, from its exit status."""
    code = child.process.returncode
    if code is None or code >= 0:
        return _ended(child, "crash", f"ended its process, with exit status {code}.")
    which = signal.Signals(-code)
    if which == signal.SIGKILL:
        killed = "was killed (SIGKILL), as the system does when memory runs out."
        return _ended(child, "memory", killed, which.name)
    if b"bad_alloc" in child.output:
        return _ended(child, "memory", "ran out of memory, and its process was ended.", which.name)
    meaning = SIGNALS.get(which, "a signal that ends a process")
    return _ended(child, "crash", f"crashed its process ({which.name}): {meaning}.", which.name)


def _ended(child: _Child, reason: Reason, told: str, signal: str | None = None) -> WorkerEnded:
    what = child.doing.what
    output = child.output.decode(errors="replace")
    return WorkerEnded(reason, what, f"{what} {told}", output, signal)
