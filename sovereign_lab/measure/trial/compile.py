"""Does an edit compile, and is its signature the op's? What does not fit is told by line and by parameter."""

import contextlib
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from sovereign_lab.devices import Device, Kernel
from sovereign_lab.devices.device import Source
from sovereign_lab.devices.signature import Parameter, parse_signature, without_comments
from sovereign_lab.devices.simt.builder import build_kernel, find_compiler
from sovereign_lab.errors import LabError
from sovereign_lab.measure.mine import Edit
from sovereign_lab.measure.static import nvrtc
from sovereign_lab.measure.trial.card import Remark, Stage
from sovereign_lab.measure.trial.cases import signature_of
from sovereign_lab.measure.workload import DEFINES
from sovereign_lab.models.cache import cache_dir

GPU_ARCH = 90  # what NVRTC compiles for where no GPU is at hand
REMARKS = 4
# Of an edit's builds in the cache: two or three an edit, up to half a megabyte each.
BUILDS_KEPT = 60


def why_no_sanitizer() -> str | None:
    """Why the sanitizer cannot run here, in a sentence that says what to do; None where it can."""
    try:
        find_compiler()
    except LabError as error:
        return str(error)
    missing = [t for t in ("nm", "addr2line") if not (shutil.which(t) or shutil.which(f"llvm-{t}"))]
    return f"{' and '.join(missing)} is missing: install binutils." if missing else None


def compile_edit(device: Device, made: Edit, inspect: bool) -> tuple[Stage, Kernel | None]:
    """The kernel, with every build that later stages need made at the same time; None where something refuses it."""
    source = Source(made.text, f"{made.name}.cu", DEFINES)
    misfits = _signature_remarks(made, source)
    if misfits:
        expected = Remark(f"The op's kernels have the signature `{signature_of(made)}`.")
        return Stage("compiles", "no", _first_words(misfits), (*misfits, expected)), None
    _forget_old_builds(made.name)
    static = device.properties.kind == "simt" and nvrtc.why_no_nvrtc() is None
    jobs: dict[str, Callable[[], Any]] = {}
    if why_no_sanitizer() is None:
        jobs["sanitized"] = lambda: build_kernel(source.text, source.name, DEFINES, "sanitized")
    if static:
        jobs["static"] = lambda: nvrtc.compile_cubin(source, GPU_ARCH)
    if inspect:
        jobs["traced"] = lambda: build_kernel(source.text, source.name, DEFINES, "traced")
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        futures: dict[str, Future[Any]] = {name: pool.submit(job) for name, job in jobs.items()}
        # Here and not in the pool: a GPU's context belongs to this thread.
        try:
            kernel = device.compile(source)
        except LabError as error:
            return _does_not_compile(made, str(error)), None
    errors = {name: future.exception() for name, future in futures.items()}
    for unexpected in errors.values():
        if unexpected is not None and not isinstance(unexpected, LabError):
            raise unexpected
    if isinstance(errors.get("static"), nvrtc.CompileError):
        refused = _does_not_compile(made, str(errors["static"]))
        whose = Remark("The CPU's compiler takes it; NVRTC, which compiles for a GPU, does not.")
        return replace(refused, remarks=(*refused.remarks, whose)), None
    simt = device.properties.kind == "simt"
    says = f"for {'the SIMT device' if simt else device.properties.name}"
    if static and errors["static"] is None:
        says += f", and by NVRTC for sm_{GPU_ARCH}: {_resources(futures['static'].result())}"
    return Stage("compiles", "yes", f"{says}."), kernel


def _forget_old_builds(name: str) -> None:
    """Delete all but the newest builds of edits of this name, before a trial needs any: a learner makes hundreds."""
    with contextlib.suppress(FileNotFoundError):  # another trial was faster
        builds = sorted(
            (cache_dir() / "simt").glob(f"{name}-*.so"), key=lambda p: p.stat().st_mtime
        )
        for old in builds[:-BUILDS_KEPT]:
            old.unlink()


def _resources(cubin: nvrtc.Cubin) -> str:
    spills = cubin.spill_stores + cubin.spill_loads
    words = f"{spills:,} bytes of spills" if spills else "no spills"
    return f"{cubin.registers} registers a thread, {words}, {cubin.shared:,} bytes of shared memory"


def _signature_remarks(made: Edit, source: Source) -> tuple[Remark, ...]:
    """What does not fit between the edit's signature and the op's, by parameter."""
    expected = signature_of(made)
    try:
        got = parse_signature(source.text, source.defines)
    except LabError as error:
        return (Remark(str(error)),)
    if got.name != expected.name:
        says = f"The kernel is called {got.name}; those of this op are called {expected.name}."
        return (_remark(made, says, _line_of(source.text, got.name, got.name)),)
    remarks = []
    if len(got.parameters) != len(expected.parameters):
        says = f"It has {len(got.parameters)} parameters; expected {len(expected.parameters)}."
        remarks.append(_remark(made, says, _line_of(source.text, got.name, got.name)))
    names = [p.name for p in expected.parameters]
    for i, (g, e) in enumerate(zip(got.parameters, expected.parameters, strict=False), 1):
        if (why := _misfit(g, e, names)) is not None:
            line = _line_of(source.text, got.name, g.name)
            remarks.append(_remark(made, f"Parameter {i} is `{g}`; expected `{e}`: {why}.", line))
    return tuple(remarks[:REMARKS])


def _misfit(got: Parameter, expected: Parameter, names: list[str]) -> str | None:
    if got.pointer != expected.pointer:
        return "a pointer" if expected.pointer else "a value, not a pointer"
    if got.dtype != expected.dtype:
        return f"{expected.dtype} in place of {got.dtype}"
    if got.const and not expected.const:
        return "the kernel writes to it, so it cannot be const"
    if got.name != expected.name and got.name in names:
        return "arguments go by their place, and this name belongs to another"
    return None


def _line_of(text: str, kernel: str, word: str) -> int:
    code = without_comments(text)
    head = re.search(rf"\b{kernel}\s*\(", code)
    found = re.compile(rf"\b{re.escape(word)}\b").search(code, head.start() if head else 0)
    return code.count("\n", 0, found.start()) + 1 if found else 0


def _does_not_compile(made: Edit, words: str) -> Stage:
    """The compiler's words by line; all of them where they name no line of the source."""
    told = re.findall(
        rf"^{re.escape(made.name)}\.cu[:(](\d+)(?:[:)]\d*)?:? (?:fatal |catastrophic )?[eE]rror: (.*)$",
        words,
        flags=re.M,
    )
    remarks = [_remark(made, says, int(line)) for line, says in dict.fromkeys(told)]
    if not remarks:
        unplaced = re.findall(r"error\s*: *(.+)", words)
        whole = words.removeprefix(f"{made.name} does not compile:").strip()
        remarks = [Remark(says) for says in unplaced or [whole]]
    code = without_comments(made.text)
    braces = code.count("{"), code.count("}")
    if braces[0] != braces[1]:
        remarks.insert(0, Remark(f"There are {braces[0]} `{{` and {braces[1]} `}}`."))
    return Stage("compiles", "no", _first_words(remarks), tuple(remarks[:REMARKS]))


def _first_words(remarks: Sequence[Remark]) -> str:
    at = f"line {remarks[0].line}: " if remarks[0].line else ""
    return at + remarks[0].says.splitlines()[0]


def _remark(made: Edit, says: str, line: int) -> Remark:
    lines = made.text.splitlines()
    if line > len(lines):  # a compiler notices what is missing behind the end
        return Remark(f"{says} (noticed at the end of the source)")
    return Remark(says, line, lines[line - 1].strip() if line else "")
