"""From a kernel's source to a shared library: find a host compiler, compile, keep the result by content."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sovereign_lab.devices.signature import find_kernel, without_comments
from sovereign_lab.errors import LabError
from sovereign_lab.kernels import INCLUDE
from sovereign_lab.models.cache import cache_dir, whole_or_nothing

SHIM = Path(__file__).parent / "shim"

# -ffp-contract=off and no fast-math: the same numbers on every CPU, so that notebooks can compare text.
FLAGS = [
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-stack-protector",
    "-fomit-frame-pointer",
    "-fno-asynchronous-unwind-tables",
]
LINK_FLAGS: tuple[str, ...] = ("-shared", "-pthread", "-lm")
# Each access of the source is one call: nothing vectorised, merged over iterations, or reordered much. DWARF 4:
# of version 5, addr2line gives the compiled file in place of the one that #line names.
TRACE_FLAGS: tuple[str, ...] = (
    "-DSIMT_TRACED",
    "-O1",
    "-g1",
    "-gdwarf-4",
    "-fno-optimize-sibling-calls",
    "-fsanitize=thread",
)
# The fiber switch pushes below the stack pointer, and jumps to places that are no function's start.
X86_FLAGS: tuple[str, ...] = ("-mno-red-zone", "-fcf-protection=none")
# A fiber's stack has 32 KiB; a kernel whose locals take half of it would spill on a GPU as well.
MAX_FRAME_BYTES = 16384


@dataclass(frozen=True)
class Compiler:
    """A host C++ compiler: the command, "gcc", "clang" or "zig", and its version line."""

    command: tuple[str, ...]
    family: str
    version: str

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags for every build with this compiler on this machine."""
        flags = [
            *FLAGS,
            "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native",
        ]
        if platform.machine() in ("x86_64", "AMD64"):
            flags += X86_FLAGS
        if self.family == "gcc":
            flags += ["-fno-gnu-unique"]
        if self.family == "zig":
            flags += ["-fno-sanitize=undefined"]
        return tuple(flags)

    @property
    def frame_flags(self) -> tuple[str, ...]:
        """Flags that refuse a kernel whose locals do not fit a fiber's stack."""
        if self.family == "gcc":
            return (f"-Werror=frame-larger-than={MAX_FRAME_BYTES}",)
        return (f"-Wframe-larger-than={MAX_FRAME_BYTES}", "-Werror=frame-larger-than")

    @property
    def trace_flags(self) -> tuple[str, ...]:
        """Flags that make a kernel record its accesses (shim/trace.h)."""
        if self.family == "gcc":
            return (*TRACE_FLAGS, "-fno-tree-vectorize", "-Wno-tsan")
        keep = ("-mllvm", "-tsan-instrument-read-before-write=1")
        return (*TRACE_FLAGS, "-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops", *keep)


@cache
def find_compiler() -> Compiler:
    """$CXX, else g++, clang++ or c++ on the PATH, else zig from the ziglang package; raises LabError if none."""
    candidates: list[tuple[str, ...]] = []
    if os.environ.get("CXX"):
        candidates.append(tuple(os.environ["CXX"].split()))
    candidates += [(name,) for name in ("g++", "clang++", "c++")]
    if find_spec("ziglang"):
        candidates.append((sys.executable, "-m", "ziglang", "c++"))
    for command in candidates:
        if not shutil.which(command[0]):
            continue
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        if done.returncode == 0:
            line = done.stdout.splitlines()[0]
            family = "zig" if "ziglang" in command else "clang" if "clang" in done.stdout else "gcc"
            return Compiler(command, family, line)
    raise LabError(
        "The SIMT device needs a C++ compiler and found none: install g++ or clang++ (Debian: apt install g++), "
        "or run pip install ziglang."
    )


def entry_source(text: str, name: str) -> str:
    """The kernel's source as a translation unit for a host compiler, line numbers kept.

    The kernel sits in an unnamed namespace, so that nothing of it is shared between the copies that the worker
    threads load. `extern __shared__` arrays become pointers to the launch's buffer.
    """
    kernel, _ = find_kernel(text)
    text = re.sub(
        r"extern\s+__shared__\s+(?:__align__\s*\([^)]*\)\s*|alignas\s*\([^)]*\)\s*)?([\w\s]+?)\s*(\w+)\s*\[\s*\]\s*;",
        r"\1* \2 = (\1*)simt::current->block->dynamic_shared;",
        text,
    )
    return (
        f'#include "cuda_shim.h"\nnamespace {{\n#line 1 "{name}"\n{text}\n}}\n'
        f"void simt::kernel_body(void** a) {{ simt::call({kernel}, a); }}\n"
    )


def may_misalign(text: str) -> bool:
    """Whether the source could make a misaligned access: it casts pointers or uses vector types.

    Only then is the check before every access compiled in (it halves the speed).
    """
    code = without_comments(text)
    return bool(
        re.search(
            r"reinterpret_cast|\(\s*(const\s+)?[\w:]+(\s+\w+)?\s*\*\s*(const\s*)?\)|\b\w+[a-z](2|4)\s*\*|\bhalf2\b",
            code,
        )
    )


def has_device_variable(text: str) -> bool:
    """Whether the source declares a `__device__` variable: all blocks must then run in one copy of the library."""
    return bool(re.search(r"\b__device__\b[^;({]*[;=\[]", without_comments(text)))


def build_kernel(text: str, name: str, defines: Mapping[str, str], traced: bool = False) -> Path:
    """The shared library of a kernel, from the cache or compiled now; `traced`: one that records its accesses.

    Raises LabError with the compiler's own words, its lines counted in the given source.
    """
    compiler = find_compiler()
    flags = [
        *compiler.flags,
        f"-I{SHIM}",
        f"-I{INCLUDE}",
        *(f"-D{k}={v}" for k, v in sorted(defines.items())),
    ]
    flags += compiler.frame_flags
    if traced:
        flags += compiler.trace_flags
    elif may_misalign(text):
        flags.append("-fsanitize=alignment")
    return _build(compiler, entry_source(text, name), flags, Path(name).stem)


def build_pool() -> Path:
    """The shared library of the worker pool."""
    compiler = find_compiler()
    return _build(compiler, (SHIM / "pool.cpp").read_text(), [*compiler.flags], "pool")


def _build(compiler: Compiler, code: str, flags: list[str], stem: str) -> Path:
    digest = hashlib.sha256(
        "\0".join([*compiler.command, compiler.version, _cpu(), _headers(), code]).encode()
    )
    digest.update("\0".join(f for f in flags if not f.startswith("-I")).encode())
    library = cache_dir() / "simt" / f"{stem}-{digest.hexdigest()[:20]}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory() as folder:
        source, compiled, linked = (Path(folder) / f"{stem}{end}" for end in (".cpp", ".o", ".so"))
        source.write_text(code)
        # Linked apart from compiling: the sanitisers' flags instrument, and their runtimes stay out.
        for command in (
            [*compiler.command, *flags, "-c", str(source), "-o", str(compiled)],
            [*compiler.command, *LINK_FLAGS, str(compiled), "-o", str(linked)],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise LabError(_explain(done.stderr, stem))
        with whole_or_nothing(library) as part:
            shutil.copyfile(linked, part)
    return library


def _explain(stderr: str, stem: str) -> str:
    if "No space left on device" in stderr:
        folder = tempfile.gettempdir()
        return f"{stem} cannot be compiled: the disk of {folder} is full; free some space, or set TMPDIR."
    frame = re.search(r"frame size (?:of )?\(?(\d+)", stderr)
    if frame and "frame-larger-than" in stderr:
        return (
            f"{stem}: its local variables take {frame.group(1)} bytes a thread; the SIMT device allows "
            f"{MAX_FRAME_BYTES}, and on a GPU they would spill to local memory. Use shared memory or smaller arrays."
        )
    lines = stderr.splitlines()
    start = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return f"{stem} does not compile:\n" + "\n".join(lines[start : start + 12])


@cache
def _headers() -> str:
    files = sorted([*SHIM.iterdir(), *INCLUDE.iterdir()])
    return "\0".join(f.name + "\0" + f.read_text() for f in files if f.is_file())


@cache
def _cpu() -> str:
    # -march=native: a cache on a shared home must not serve a build to an older CPU.
    try:
        text = Path("/proc/cpuinfo").read_text()
        return platform.machine() + "".join(
            re.findall(r"^(?:flags|Features)\s*:.*$", text, flags=re.M)[:1]
        )
    except OSError:
        return platform.machine() + platform.processor()
