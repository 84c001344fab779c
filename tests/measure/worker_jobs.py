"""What tests have a worker do: functions of a module, as a worker takes them."""

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.errors import LabError
from sovereign_lab.measure.worker import child, device, doing, model, retire

_calls = 0


def echo(*args: Any, **kwargs: Any) -> Any:
    """Its arguments."""
    return args, kwargs


def pid() -> int:
    """The worker's process."""
    return os.getpid()


def retiring_pid() -> int:
    """The worker's process, which ends behind this call."""
    retire()
    return os.getpid()


def refuse(text: str) -> None:
    """An error for a person, of a class that pickle could not make again."""

    class Refused(LabError):
        def __init__(self, one: str, other: str) -> None:
            super().__init__(one + other)

    raise Refused(text, "!")


def mistake() -> float:
    """An error of a programmer."""
    return 1 / int("0")


def unsendable() -> Any:
    """A result that cannot be pickled."""
    return lambda: 0


def device_facts() -> tuple[str, bool, bool]:
    """The device's kind, and whether it and the model are the same at each asking."""
    return device().properties.kind, device() is device(), model() is model()


def say(words: str) -> None:
    """Print, by Python and past it."""
    print(words)
    os.write(2, f"{words} past Python\n".encode())


def sleep_in_steps(steps: int, seconds: float) -> int:
    """Sleep `steps` times, telling each time."""
    for step in range(steps):
        doing(f"Step {step}")
        time.sleep(seconds)
    return steps


def sleep_on(what: str, seconds: float | None = None) -> None:
    """Far longer than any limit."""
    doing(what, seconds)
    time.sleep(600)


def end_by(which: int) -> None:
    """A signal to itself."""
    os.kill(os.getpid(), which)
    time.sleep(600)


def abort_without_memory() -> None:
    """What operator new does where there is no memory and nobody handles its exception."""
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def leave(status: int) -> None:
    """End the process without an answer."""
    os._exit(status)


def crash_when_used() -> int:
    """A crash in a process that has been here before, its number in a fresh one."""
    global _calls
    _calls += 1
    if _calls > 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return os.getpid()


def damage(message: bytes) -> None:
    """What a kernel that has written over the channel's memory might send."""
    channel = child._process.channel
    assert channel is not None
    channel.sendall(message)
    time.sleep(600)


def take_memory(nbytes: int) -> int:
    """An array of so many bytes."""
    return int(np.ones(nbytes, np.uint8)[-1])


def temporary_folder() -> str:
    """Where this process puts temporary files; one lies there now."""
    Path(tempfile.mkstemp()[1]).write_text("left")
    return tempfile.gettempdir()


def hold_open(fifo: str) -> None:
    """Hold a pipe open, in a process that this one starts and in a loop here; the temporary folder goes into it."""
    with Path(fifo).open("wb") as pipe:
        subprocess.Popen(["sleep", "600"], stdout=pipe)
        pipe.write(tempfile.gettempdir().encode())
        pipe.flush()
        while True:
            pass


def poisoned() -> int:
    """Stands in for a kernel behind which a GPU's context is unusable."""

    def refuse_all() -> None:
        raise LabError("CUDA reports cudaErrorIllegalAddress")

    device().synchronize = refuse_all  # type: ignore[method-assign]
    return 0
