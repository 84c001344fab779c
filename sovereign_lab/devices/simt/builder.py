"""From a kernel's source to a shared library: find a host compiler, compile, keep the result by content."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from sovereign_lab.devices.signature import find_kernel, without_comments
from sovereign_lab.errors import LabError
from sovereign_lab.kernels import INCLUDE
from sovereign_lab.models.cache import cache_dir, whole_or_nothing

SHIM = Path(__file__).parent / "shim"
# "traced" records accesses (shim/trace.h), "sanitized" checks them (shim/sanitize.cpp).
Build = Literal["plain", "traced", "sanitized"]
CHECKS, SANITIZED = "sanitize.cpp", "-DSIMT_SANITIZED"
_CHECKS_LOCK = threading.Lock()  # of several kernels that need it, one compiles it

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
WATCH_FLAGS: tuple[str, ...] = (
    "-O1",
    "-g1",
    "-gdwarf-4",
    "-fno-optimize-sibling-calls",
    "-fsanitize=thread",
)
# Each basic block is one call, too; clang would leave out those that others imply.
GCC_BLOCKS, CLANG_BLOCKS = (
    "-fsanitize-coverage=trace-pc",
    "-fsanitize-coverage=trace-pc,bb,no-prune",
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
    def gcc_major(self) -> int:
        """The major version of a gcc, 0 of another compiler."""
        found = re.search(r"(\d+)\.\d+", self.version)
        return int(found.group(1)) if found and self.family == "gcc" else 0

    @property
    def link_flags(self) -> tuple[str, ...]:
        """Flags for linking; a library's own memcpy (shim/trace.h) goes before that of the C library."""
        own = self.family == "gcc" and sys.platform == "linux"
        return (*LINK_FLAGS, "-Wl,-Bsymbolic-functions") if own else LINK_FLAGS

    @property
    def frame_flags(self) -> tuple[str, ...]:
        """Flags that refuse a kernel whose locals do not fit a fiber's stack."""
        if self.family == "gcc":
            return (f"-Werror=frame-larger-than={MAX_FRAME_BYTES}",)
        return (f"-Wframe-larger-than={MAX_FRAME_BYTES}", "-Werror=frame-larger-than")

    @property
    def watch_flags(self) -> tuple[str, ...]:
        """Flags that put a call at every access and basic block of a kernel (shim/trace.h, shim/sanitize.cpp)."""
        if self.family == "gcc":
            blocks = (GCC_BLOCKS,) if self.gcc_major >= 12 else ()
            return (*WATCH_FLAGS, *blocks, "-fno-tree-vectorize", "-Wno-tsan")
        keep = ("-mllvm", "-tsan-instrument-read-before-write=1")
        still = ("-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops")
        return (*WATCH_FLAGS, CLANG_BLOCKS, *still, *keep)

    @property
    def volatile_flags(self) -> tuple[str, ...]:
        """Flags that tell accesses through volatile pointers apart from others; gcc has one from version 11 on."""
        if self.family != "gcc":
            return ("-mllvm", "-tsan-distinguish-volatile=1")
        return ("--param=tsan-distinguish-volatile=1",) if self.gcc_major >= 11 else ()


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


_DYNAMIC_SHARED = (
    r"extern\s+__shared__\s+(?:__align__\s*\([^)]*\)\s*|alignas\s*\([^)]*\)\s*)?"
    r"([\w\s]+?)\s*(\w+)\s*\[\s*\]\s*;"
)


def entry_source(text: str, name: str) -> str:
    """The kernel's source as a translation unit for a host compiler, line numbers kept.

    The kernel sits in an unnamed namespace, so that nothing of it is shared between the copies that the worker
    threads load. `extern __shared__` arrays become pointers to the launch's buffer.
    """
    kernel, _ = find_kernel(text)
    # A declaration outside of all functions is a line of its own, and holds for every block that runs.
    text = re.sub(
        rf"^{_DYNAMIC_SHARED}(?=[ \t]*(//.*)?$)",
        r"#define \2 ((\1*)simt::current->block->dynamic_shared)",
        text,
        flags=re.M,
    )
    text = re.sub(_DYNAMIC_SHARED, r"\1* \2 = (\1*)simt::current->block->dynamic_shared;", text)
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


def build_kernel(text: str, name: str, defines: Mapping[str, str], build: Build = "plain") -> Path:
    """The shared library of a kernel, from the cache or compiled now.

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
    code, stem, kernel = entry_source(text, name), Path(name).stem, _Written(name, text)
    if build == "traced":
        flags += ["-DSIMT_TRACED", *compiler.watch_flags]
        return _build(compiler, code, flags, stem, kernel)
    if may_misalign(text):
        flags.append("-fsanitize=alignment")
    if build == "plain":
        return _build(compiler, code, flags, stem, kernel)
    # Behind the kernel, for a guard that lies behind its shared memory.
    code += "SIMT_SHARED_GUARD(simt_guard_last)\n"
    # A null pointer that is followed is to be seen, not reasoned away.
    flags += [
        SANITIZED,
        "-fsanitize=bounds",
        "-fno-delete-null-pointer-checks",
        *compiler.watch_flags,
        *compiler.volatile_flags,
    ]
    return _build(compiler, code, flags, stem, kernel, _build_checks(compiler))


def _build_checks(compiler: Compiler) -> Path:
    """The object of shim/sanitize.cpp, which every sanitized kernel is linked with: compiled once."""
    code = (SHIM / CHECKS).read_text()
    flags = [*compiler.flags, f"-I{SHIM}", SANITIZED]
    with _CHECKS_LOCK:
        return _build(compiler, code, flags, "sanitize", link=False)


def build_pool() -> Path:
    """The shared library of the worker pool."""
    compiler = find_compiler()
    return _build(compiler, (SHIM / "pool.cpp").read_text(), [*compiler.flags], "pool")


@dataclass(frozen=True)
class _Written:
    """A kernel as it was written, without the lines that `entry_source` puts behind it."""

    name: str
    text: str

    @property
    def lines(self) -> int:
        """Of the compiler's words, those about later lines are not about the kernel."""
        return self.text.count("\n") + 1


def _build(
    compiler: Compiler,
    code: str,
    flags: list[str],
    stem: str,
    kernel: _Written | None = None,
    beside: Path | None = None,
    link: bool = True,
) -> Path:
    """Compile `code`, of a `kernel` or not; link it, `beside` another object, unless the object itself is wanted."""
    digest = hashlib.sha256(
        "\0".join([*compiler.command, compiler.version, _cpu(), _headers(), code]).encode()
    )
    digest.update("\0".join(f for f in flags if not f.startswith("-I")).encode())
    digest.update(beside.name.encode() if beside else b"")
    result = cache_dir() / "simt" / f"{stem}-{digest.hexdigest()[:20]}{'.so' if link else '.o'}"
    if result.exists():
        return result
    with tempfile.TemporaryDirectory() as folder:
        source, compiled, linked = (Path(folder) / f"{stem}{end}" for end in (".cpp", ".o", ".so"))
        source.write_text(code)
        objects = [str(compiled), *([str(beside)] if beside else [])]
        # Linked apart from compiling: the sanitisers' flags instrument, and their runtimes stay out.
        commands = [[*compiler.command, *flags, "-c", str(source), "-o", str(compiled)]]
        if link:
            commands.append([*compiler.command, *compiler.link_flags, *objects, "-o", str(linked)])
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode < 0:
                raise LabError(
                    f"{stem} does not compile: {compiler.command[0]} was ended by signal {-done.returncode}, as when "
                    "memory runs out or the compiler itself is broken."
                )
            if done.returncode:
                raise LabError(_explain(done.stderr, stem, kernel))
        with whole_or_nothing(result) as part:
            shutil.copyfile(linked if link else compiled, part)
    return result


def _explain(stderr: str, stem: str, kernel: _Written | None = None) -> str:
    if "No space left on device" in stderr:
        folder = tempfile.gettempdir()
        return f"{stem} cannot be compiled: the disk of {folder} is full; free some space, or set TMPDIR."
    frame = re.search(r"frame size (?:of )?\(?(\d+)", stderr)
    if frame and "frame-larger-than" in stderr:
        return (
            f"{stem}: its local variables take {frame.group(1)} bytes a thread; the SIMT device allows "
            f"{MAX_FRAME_BYTES}, and on a GPU they would spill to local memory. Use shared memory or smaller arrays."
        )
    lines = stderr.splitlines() if kernel is None else _about_kernel(stderr, kernel)
    start = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return f"{stem} does not compile:\n" + "\n".join(lines[start : start + 12])


_DIAGNOSTIC = re.compile(
    r"(?P<file>[^:\s][^:]*):(?P<line>\d+):\d+: (?P<kind>.*?error|warning|note): "
)
_CONTEXT = re.compile(r"[^:\s][^:]*: (In|At) .*:$")


def _about_kernel(stderr: str, kernel: _Written) -> list[str]:
    """The compiler's words without those about the lines behind the kernel, which are none of the learner's.

    A compiler notices there that a `}` is missing, and says so of another brace: that is said of the kernel's last
    line. Where nothing else is left, all words.
    """
    mine: list[str] = []
    context: list[str] = []
    behind = open_brace = False
    for line in stderr.splitlines():
        if _CONTEXT.match(line):  # of the next one
            context = [line]
            continue
        found = _DIAGNOSTIC.match(line)
        if found and found["kind"] != "note":  # a note belongs to the words before it
            behind = "at end of input" in line or (
                found["file"] == kernel.name and int(found["line"]) > kernel.lines
            )
            open_brace |= behind and bool(re.search(r"expected .\}", line))
            mine += [] if behind else context
            context = []
        if not behind:
            mine.append(line)
    if open_brace and not any("unterminated" in line for line in mine):
        code = kernel.text.rstrip()
        number, last = code.count("\n") + 1, code.rpartition("\n")[2]
        mine += [
            f"{kernel.name}:{number}:{len(last)}: error: expected a `}}`: the source ends here, and a `{{` is still "
            "open",
            f"{number:>5} | {last}",
        ]
    return mine if any("error" in line for line in mine) else stderr.splitlines()


@cache
def _headers() -> str:
    files = sorted(f for f in [*SHIM.iterdir(), *INCLUDE.iterdir()] if f.name != CHECKS)
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
