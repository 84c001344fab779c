"""Set the lab up in `.venv`: find the driver and the compiler, then install what fits, once.

`make` runs this file with the system's Python before anything is installed, so it imports the
standard library alone, and it parses on Python 3.7 in order to say that 3.11 is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "ready.json"
LOG = VENV / "set-up.log"
MINIMUM = (3, 11)
# What decides the environment's content: a change of any of these sets it up again.
INPUTS = ("pyproject.toml", "constraints.txt", "sovereign_lab/provision.py")
# CUDA 13 dropped GPUs older than Turing; those stay on CuPy for CUDA 12.
FIRST_ARCH_OF_CUDA13 = (7, 5)


class SetUpError(Exception):
    """A sentence for the person at the terminal: what is missing and what to do."""


class Driver(NamedTuple):
    """What libcuda says: the newest CUDA it supports, and the oldest GPU's compute capability."""

    cuda: tuple[int, int]
    arch: tuple[int, int]


def find_driver() -> Driver | None:
    """Ask libcuda itself; None where there is no NVIDIA driver, or a driver without a GPU.

    `nvidia-smi` is not asked: in a container it can be there without libcuda, and then no CUDA
    program runs.
    """
    for name in ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so"):
        try:
            cuda = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        return None
    version, count = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDriverGetVersion(ctypes.byref(version)):
        return None
    if cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return None
    arch = min(_compute_capability(cuda, ordinal) for ordinal in range(count.value))
    return Driver(cuda=(version.value // 1000, version.value % 1000 // 10), arch=arch)


def _compute_capability(cuda: ctypes.CDLL, ordinal: int) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # ..._COMPUTE_CAPABILITY_MAJOR
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)  # ..._COMPUTE_CAPABILITY_MINOR
    return major.value, minor.value


def cuda_extra(driver: Driver | None) -> tuple[str | None, str]:
    """The extra whose CuPy fits `driver` (None: no CuPy), and a sentence that says why."""
    if driver is None:
        return None, "No NVIDIA GPU with a driver here: kernels will run on the CPU (SIMT device)."
    cuda = "{}.{}".format(*driver.cuda)
    if driver.cuda < (12, 0):
        return None, (
            f"The NVIDIA driver supports CUDA {cuda} and CuPy needs 12.0 or newer: kernels will "
            "run on the CPU until the driver is updated."
        )
    if driver.cuda >= (13, 0) and driver.arch >= FIRST_ARCH_OF_CUDA13:
        return "cuda13", f"The NVIDIA driver supports CUDA {cuda}: installing CuPy for CUDA 13."
    return "cuda12", f"The NVIDIA driver supports CUDA {cuda}: installing CuPy for CUDA 12."


def has_compiler() -> bool:
    """Whether a C++ compiler that the SIMT device can use is on the path."""
    if sys.platform == "darwin":
        # macOS has a clang++ stub that only offers to install the real one.
        developer_tools = subprocess.run(["xcode-select", "-p"], capture_output=True)
        return developer_tools.returncode == 0
    named = os.environ.get("CXX", "").split()[:1]
    return any(shutil.which(name) for name in [*named, "g++", "clang++"])


def choose_extras(test: bool) -> tuple[list[str], list[str]]:
    """The extras this machine needs, and a sentence for each choice a person may wonder about."""
    extra, why = cuda_extra(find_driver())
    extras, notes = ([extra] if extra else []), [why]
    if not has_compiler():
        extras.append("cpu-compiler")
        notes.append("No C++ compiler here: installing one as a Python wheel (ziglang).")
    if test:
        extras += choose_test_extras(extras)
    return extras, notes


def choose_test_extras(extras: Sequence[str]) -> list[str]:
    """What `make test` needs beside `extras`: not CUDA 13's NVRTC where CuPy is for CUDA 12 and would load it."""
    return ["test"] if "cuda12" in extras else ["test", "static"]


def fingerprint() -> str:
    """One hash over the files that decide what an up-to-date environment contains."""
    return hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in INPUTS)).hexdigest()


def home() -> str:
    """The interpreter and place an environment is tied to: after a move it is made anew."""
    return "Python {}.{} in {}".format(*sys.version_info[:2], VENV)


class Stamp(NamedTuple):
    """What the last complete set-up recorded."""

    fingerprint: str
    home: str
    extras: list[str]


def read_stamp() -> Stamp | None:
    """The stamp in `.venv`; None where no set-up has been completed."""
    try:
        return Stamp(**json.loads(STAMP.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def python_in_venv() -> Path:
    """The environment's interpreter."""
    return VENV / "bin" / "python"


def make_venv(clear: bool) -> None:
    """Create `.venv`, or keep one that has a working pip unless `clear`."""
    if not clear and python_in_venv().exists():
        pip = subprocess.run([python_in_venv(), "-c", "import pip"], capture_output=True)
        if pip.returncode == 0:
            return
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise SetUpError(
                f"This Python ({sys.executable}) cannot make virtual environments because its "
                f"`{module}` module is missing; on Debian and Ubuntu: apt install python3-venv"
            )
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise SetUpError(
            f"`{' '.join(command)}` failed: {_last_lines(made.stdout + made.stderr, 6)}"
        )


def install(extras: Sequence[str]) -> None:
    """Install the lab (editable) with `extras` at the versions of constraints.txt."""
    target = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    command = [str(python_in_venv()), "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--editable", target]
    with LOG.open("w") as log:
        pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert pip.stdout is not None
        try:
            _show_progress(_copy_lines(pip.stdout, log))
            code = pip.wait()
        except BaseException:
            pip.terminate()
            raise
    if code:
        raise SetUpError(
            f"pip could not install the packages (everything it said: {LOG}):\n"
            + _last_lines(LOG.read_text(), 8)
        )


def _copy_lines(lines: Iterable[str], log: TextIO) -> Iterator[str]:
    for line in lines:
        log.write(line)
        yield line


def _show_progress(lines: Iterable[str]) -> None:
    """One line that moves on a terminal; elsewhere a line every 25 packages."""
    terminal = sys.stderr.isatty()
    packages = 0
    for line in lines:
        words = line.split()
        if words[:1] in (["Collecting"], ["Processing"]):
            packages += 1
            text = f"  packages: {packages}, now {re.split('[<>=!~;-]', Path(words[1]).name)[0]}"
        elif words[:1] == ["Downloading"] and words[-1].endswith(")"):
            size = " ".join(words[-2:]).strip("()")
            text = f"  packages: {packages}, downloading {words[1].split('-')[0]} ({size})"
        elif words[:2] == ["Installing", "collected"]:
            text = f"  unpacking {line.count(',') + 1} packages"
        else:
            continue
        if terminal:
            width = shutil.get_terminal_size().columns - 1
            print("\r\x1b[K" + text[:width], end="", file=sys.stderr, flush=True)
        elif words[0] == "Installing" or (words[0] != "Downloading" and packages % 25 == 0):
            say(text)
    if terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _last_lines(text: str, count: int) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines()[-count:])


def set_up(test: bool) -> None:
    """Bring `.venv` up to date; returns at once where the last set-up still holds."""
    if sys.version_info[:2] < MINIMUM:
        raise SetUpError(
            f"Sovereign Lab needs Python {MINIMUM[0]}.{MINIMUM[1]} or newer, and {sys.executable} "
            f"is {platform.python_version()}; name a newer one: make run PYTHON=python3.12"
        )
    extras, notes = choose_extras(test)
    stamp = read_stamp()
    if stamp and python_in_venv().exists() and is_current(stamp, extras):
        return
    say(f"Setting up {VENV} (once; a few minutes on a slow network)")
    for note in notes:
        say("  " + note)
    make_venv(clear=stamp is not None and must_start_afresh(stamp, extras))
    STAMP.unlink(missing_ok=True)
    if stamp and not test:
        extras += [extra for extra in choose_test_extras(extras) if extra in stamp.extras]
    install(extras)
    STAMP.write_text(json.dumps(Stamp(fingerprint(), home(), extras)._asdict()))
    say("  Ready.")


def is_current(stamp: Stamp, extras: Sequence[str]) -> bool:
    """Whether the environment that `stamp` describes already holds everything wanted now."""
    return (
        stamp.fingerprint == fingerprint()
        and not must_start_afresh(stamp, extras)
        and set(extras) <= set(stamp.extras)
    )


def must_start_afresh(stamp: Stamp, extras: Sequence[str]) -> bool:
    """Whether what `.venv` holds is in the way of what is wanted now.

    CuPy for CUDA 12 and for CUDA 13 install the same files, so a new driver starts afresh too; and CuPy for CUDA 12
    would load the NVRTC of the extra `static`.
    """
    other_cupy = {"cuda12", "cuda13"} & set(stamp.extras) - set(extras)
    other_nvrtc = "cuda12" in extras and "static" in stamp.extras
    return stamp.home != home() or bool(other_cupy) or other_nvrtc


def say(text: str) -> None:
    """A line for the person, on stderr: stdout belongs to what `make` runs next."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Command line: `python3 sovereign_lab/provision.py [--test]`."""
    parser = argparse.ArgumentParser(description="Set Sovereign Lab up in .venv")
    parser.add_argument("--test", action="store_true", help="also what `make test` needs")
    try:
        set_up(parser.parse_args().test)
    except SetUpError as error:
        say(f"error: {error}")
        return 1
    except OSError as error:
        say(f"error: setting up {VENV} failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("\nInterrupted; the same command goes on where this stopped.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
