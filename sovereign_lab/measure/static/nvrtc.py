"""A kernel compiled for a GPU that is not here: NVRTC makes the cubin, and tells registers, spills and shared memory.

NVRTC is a library that needs no driver and no GPU. The extra [static] installs it; CuPy's [ctk], conda and the CUDA
toolkit bring it too, and it is found wherever one of these put it.
"""

import ctypes
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

from sovereign_lab.devices.device import Source
from sovereign_lab.errors import LabError
from sovereign_lab.kernels import INCLUDE

WINDOWS = sys.platform == "win32"
INSTALL = "pip install 'sovereign-lab[static]' (70 MB, Linux and Windows)"


class CompileError(LabError):
    """What NVRTC says of a kernel that it refuses. `problems`: (line of the given source, message) of each error."""

    def __init__(self, source: Source, arch: int, log: str) -> None:
        super().__init__(f"{source.name} does not compile for sm_{arch}:\n{log}")
        named = rf"^{re.escape(source.name)}\((\d+)\): (?:catastrophic )?error: (.*)$"
        self.problems = tuple((int(n), text) for n, text in re.findall(named, log, flags=re.M))


@dataclass(frozen=True)
class Cubin:
    """A kernel as ptxas made it for one compute capability; sizes in bytes.

    `registers` a thread; `spill_stores` and `spill_loads` a thread, for registers that did not suffice; `stack` a
    thread, in local memory; `shared` a block, without dynamic shared memory; `barriers` a block. `file` is the name
    that the source goes by in `code`'s line table.
    """

    kernel: str
    arch: int
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    barriers: int
    file: str
    code: bytes = field(repr=False)


def why_no_nvrtc() -> str | None:
    """Why nothing can be compiled for a GPU here, in a sentence that says what to do; None where it can."""
    if sys.platform == "darwin":
        return (
            "NVIDIA's compiler NVRTC does not exist for macOS, so registers, occupancy and SASS cannot be had here; "
            "use Linux or Windows, or a Linux container."
        )
    if _library() is None:
        return f"NVIDIA's compiler NVRTC is not installed: {INSTALL}."
    if find_header("cuda_fp16.h") is None:
        return f"NVRTC is installed without the CUDA headers (cuda_fp16.h): {INSTALL}."
    return None


def version() -> tuple[int, int]:
    """The version of the installed NVRTC, (13, 5); raises LabError where there is none."""
    library, major, minor = _load(), ctypes.c_int(), ctypes.c_int()
    _checked(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def supported_archs() -> tuple[int, ...]:
    """The compute capabilities that the installed NVRTC compiles for; raises LabError where there is none."""
    library = _load()
    count = ctypes.c_int()
    _checked(library, library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    archs = (ctypes.c_int * count.value)()
    _checked(library, library.nvrtcGetSupportedArchs(archs))
    return tuple(archs)


def compile_cubin(source: Source, arch: int) -> Cubin:
    """Compile one kernel for `arch` (90: sm_90), with the options that the CUDA device gives and a line table.

    Raises LabError where NVRTC is not installed or does not know the arch, and CompileError where it refuses.
    """
    library = _load()
    if arch not in supported_archs():
        known = ", ".join(map(str, supported_archs()))
        raise LabError(
            f"The installed NVRTC does not compile for sm_{arch}; it knows {known}. Choose one of these."
        )
    options = [
        f"--gpu-architecture=sm_{arch}",
        "--std=c++17",
        "--ptxas-options=-v",
        "--generate-line-info",
        f"--include-path={INCLUDE}",
        *(f"--include-path={folder}" for folder in _include_folders()),
        *(f"--define-macro={k}={v}" for k, v in source.defines.items()),
    ]
    program = ctypes.c_void_p()
    _checked(
        library,
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.text.encode(), source.name.encode(), 0, None, None
        ),
    )
    try:
        encoded = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        status = library.nvrtcCompileProgram(program, len(options), encoded)
        log = _bytes(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status:
            raise CompileError(source, arch, log.strip() or _words(library, status))
        return _cubin(source, arch, log, _bytes(library, program, "CUBIN"))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def compile_cubins(jobs: Iterable[tuple[Source, int]]) -> list[Cubin]:
    """Compile several (source, arch) at once, on all cores, in their order; raises what `compile_cubin` raises."""
    jobs = list(jobs)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: compile_cubin(*job), jobs))


def find_header(name: str) -> Path | None:
    """A CUDA header among those that kernels are compiled with; None where there is none."""
    return next((f / name for f in _include_folders() if (f / name).is_file()), None)


def find_program(name: str) -> Path | None:
    """A program of the CUDA toolkit, such as nvdisasm; None where there is none."""
    file = f"{name}.exe" if WINDOWS else name
    for root in _roots():
        if (root / "bin" / file).is_file():
            return root / "bin" / file
    found = shutil.which(name)
    return Path(found) if found else None


# ---- where the wheels, conda and the toolkit put things ----


def _roots() -> Iterator[Path]:
    """Folders that may hold lib, include and bin, those of this environment first.

    The wheels for CUDA 13 share nvidia/cu13; each of those for CUDA 12 has a folder of its own.
    """
    for site in dict.fromkeys(sysconfig.get_path(p) for p in ("purelib", "platlib")):
        nvidia = Path(site) / "nvidia"
        yield from sorted(nvidia.glob("cu[0-9]*"), reverse=True)
        for part in ("cuda_nvrtc", "cuda_runtime", "cuda_nvdisasm", "cuda_nvcc"):
            if (nvidia / part).is_dir():
                yield nvidia / part
    prefix = Path(sys.prefix)
    yield prefix / "Library" if WINDOWS else prefix
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    if not WINDOWS:
        yield Path("/usr/local/cuda")


def _targets() -> tuple[str, ...]:
    """Where in a root conda and the toolkit keep what belongs to the machine's own kind of CPU."""
    return ("", f"targets/{platform.machine()}-linux", "targets/sbsa-linux")


def _library() -> Path | None:
    """NVRTC itself, not the builtins that lie beside it; of several versions in one folder, the newest."""
    folders = ("bin", "bin/x64", "bin/x86_64", "bin/arm64") if WINDOWS else ("lib", "lib64")
    pattern = "nvrtc64_*_0.dll" if WINDOWS else "libnvrtc.so.[0-9]*"
    for root, target, folder in product(_roots(), _targets(), folders):
        found = list((root / target / folder).glob(pattern))
        if found:
            return max(found, key=lambda p: _version(p.name))
    return None


def _version(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)))


def _include_folders() -> tuple[Path, ...]:
    """The include folder of the root that has cuda_fp16.h, and CCCL's, which cooperative_groups.h needs."""
    for root, target in product(_roots(), _targets()):
        include = root / target / "include"
        if (include / "cuda_fp16.h").is_file():
            return (include, include / "cccl") if (include / "cccl").is_dir() else (include,)
    return ()


# ---- NVRTC's C interface ----


@cache
def _load() -> ctypes.CDLL:
    reason = why_no_nvrtc()
    path = _library()
    if reason or path is None:
        raise LabError(reason)
    if WINDOWS:
        os.add_dll_directory(str(path.parent))  # type: ignore[attr-defined,unused-ignore]
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise LabError(
            f"NVIDIA's compiler NVRTC cannot be loaded ({error}); install it anew: {INSTALL}."
        ) from error
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _words(library: ctypes.CDLL, status: int) -> str:
    words: bytes = library.nvrtcGetErrorString(status)
    return words.decode()


def _checked(library: ctypes.CDLL, status: int) -> None:
    if status:
        raise LabError(f"NVRTC reports {_words(library, status)}; install it anew: {INSTALL}.")


def _bytes(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _checked(library, library[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _checked(library, library[f"nvrtcGet{what}"](program, buffer))
    return buffer.raw


def _cubin(source: Source, arch: int, log: str, code: bytes) -> Cubin:
    """What the log of `--ptxas-options=-v` says of the one kernel in it."""
    kernels = re.findall(r"Compiling entry function '(\w+)'", log)
    if len(kernels) != 1:
        raise LabError(
            f'{source.name} holds {len(kernels)} kernels; expected one, `extern "C" __global__ void ...`.'
        )

    def figure(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    return Cubin(
        kernel=kernels[0],
        arch=arch,
        registers=figure(r"Used (\d+) registers"),
        spill_stores=figure(r"(\d+) bytes spill stores"),
        spill_loads=figure(r"(\d+) bytes spill loads"),
        stack=figure(r"(\d+) bytes stack frame"),
        shared=figure(r"(\d+) bytes smem"),
        barriers=figure(r"used (\d+) barriers"),
        file=source.name,
        code=code,
    )
