"""What the lab stands on: Python, its packages, cores and memory."""

import contextlib
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sovereign_lab.checkup.report import Check
from sovereign_lab.provision import ROOT

CONSTRAINTS = ROOT / "constraints.txt"
# What running SmolLM2-135M on the SIMT device took (measured: 513 MB resident), with some room.
MODEL_BYTES = 600_000_000


def check_python(name: str) -> Iterator[Check]:
    """Which Python runs the lab, on what."""
    where = f"{platform.system()} {platform.machine()}"
    yield Check(name, "works", f"{platform.python_version()} on {where}")


def check_packages(name: str) -> Iterator[Check]:
    """What the lab needs, against the bounds it names and the versions it was tested with."""
    try:
        lines = metadata.requires("sovereign-lab") or []
    except metadata.PackageNotFoundError:
        found = "the lab runs from its sources, uninstalled, so nothing says what it needs"
        yield Check(name, "note", found, "Run `make` in the clone, or there: pip install -e .")
        return
    needed = [
        r for r in map(Requirement, lines) if not r.marker or r.marker.evaluate({"extra": ""})
    ]
    tested = _tested_versions()
    unfit, untested = [], []
    for requirement in needed:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            unfit.append(f"{requirement.name} is missing")
            continue
        expected = tested.get(canonicalize_name(requirement.name), version)
        if version not in requirement.specifier:
            unfit.append(f"{requirement.name} is {version}, and {requirement.specifier} is needed")
        elif version != expected:
            untested.append(f"{requirement.name} is {version}, and {expected} was tested")
    install = (
        f"pip install -c {CONSTRAINTS} -e {ROOT}" if tested else "pip install -U sovereign-lab"
    )
    if unfit:
        yield Check(name, "broken", "; ".join(unfit), f"Run: {install}")
    elif untested:
        yield Check(name, "note", "; ".join(untested), f"If something fails, run: {install}")
    else:
        versions = "at the versions of constraints.txt" if tested else "within their bounds"
        yield Check(name, "works", f"{len(needed)} packages {versions}")


def _tested_versions() -> dict[str, str]:
    """The versions of constraints.txt by canonical name; empty where the lab is no clone."""
    if not CONSTRAINTS.is_file():
        return {}
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and line[0] != "#"]
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in map(Requirement, lines)
        if not pin.marker or pin.marker.evaluate()
    }


def check_cores_and_memory(name: str) -> Iterator[Check]:
    """What this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    total, free = _memory()
    found = f"{cores} cores; {total / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB of it free"
    if free < MODEL_BYTES:
        todo = f"Free some memory, or stay with storyteller: smollm2-135m takes {MODEL_BYTES / 1e9:.1f} GB."
        yield Check(name, "note", found, todo)
    else:
        yield Check(name, "works", found)


def _memory() -> tuple[int, int]:
    """(total, free) bytes for this process: of the machine, or of its container where that has less."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = free = pages
    with contextlib.suppress(OSError):  # Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = {key: int(rest.split()[0]) for key, rest in (line.split(":") for line in lines)}
        free = 1024 * kilobytes["MemAvailable"]
    with contextlib.suppress(OSError, ValueError):  # a container; "max" where it has no limit
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        total = min(total, limit)
        free = min(free, limit - int((group / "memory.current").read_text()))
    return total, free
