"""The microscope against Nsight Compute, kernel by kernel: are the counts by address what the hardware counts?

    python -m sovereign_lab.measure.nsight.compare --record data/runs

needs a compiler, a GPU and `ncu`. In two places: `--ours FILE` counts on any machine, `--nsight FILE` on one with a
GPU, and `--join OURS NSIGHT --record data/runs` puts the two together. Both sides launch every variant of every op but
those of `UNCOUNTED` on the arguments that `workload` makes at the size of a model.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sovereign_lab.devices import Device, open_device
from sovereign_lab.devices.device import Source
from sovereign_lab.errors import LabError
from sovereign_lab.kernels import INCLUDE
from sovereign_lab.kernels.registry import OPS, Op, Variant, find_kernel
from sovereign_lab.measure import nsight
from sovereign_lab.measure.environment import environment
from sovereign_lab.measure.memory_trace import trace
from sovereign_lab.measure.static.nvrtc import compile_cubin, why_no_nvrtc
from sovereign_lab.measure.static.occupancy import occupancy
from sovereign_lab.measure.workload import DEFINES, workload
from sovereign_lab.models.model import Config, load_model

TRAFFIC = (
    nsight.LOAD_REQUESTS, nsight.LOAD_SECTORS, nsight.STORE_REQUESTS, nsight.STORE_SECTORS, nsight.L2_SECTORS,
)  # fmt: skip
SHARED = (nsight.WAVEFRONTS, nsight.IDEAL_WAVEFRONTS)
LAUNCH = (nsight.REGISTERS, nsight.OCCUPANCY)
COLUMNS = {
    nsight.LOAD_REQUESTS: "load requests",
    nsight.LOAD_SECTORS: "sectors",
    nsight.STORE_REQUESTS: "store requests",
    nsight.STORE_SECTORS: "sectors",
    nsight.L2_SECTORS: "L2 sectors",
    nsight.WAVEFRONTS: "shared wavefronts",
    nsight.IDEAL_WAVEFRONTS: "ideal",
    nsight.REGISTERS: "registers",
    nsight.OCCUPANCY: "occupancy, %",
}
# Ops that no two runs count alike, and why.
UNCOUNTED = {
    "persistent": "its blocks ask for a word until it is there: how often depends on who is how fast",
}
# Nsight gives the occupancy as a percentage with two places.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Counts:
    """One kernel on one side: `values` by Nsight's names, or the `reason` why there are none.

    `source`: the kernel's `fingerprint`, so that two sides speak of one kernel.
    """

    source: str
    values: Mapping[str, float]
    reason: str | None = None


@dataclass(frozen=True)
class Side:
    """What one side counted, on which arguments, and with what."""

    environment: Mapping[str, str]
    config: Mapping[str, Any]
    position: int
    seed: int
    kernels: Mapping[str, Counts]

    @classmethod
    def load(cls, path: Path) -> "Side":
        """From a file that `save` wrote."""
        content = json.loads(path.read_text())
        kernels = {name: Counts(**counts) for name, counts in content.pop("kernels").items()}
        return cls(kernels=kernels, **content)

    def save(self, path: Path) -> None:
        """As JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True)
class Row:
    """One metric of one kernel; None where a side does not have it. `cause` explains a difference."""

    kernel: str
    metric: str
    ours: float | None
    nsight: float | None
    cause: str | None = None

    @property
    def equal(self) -> bool | None:
        """Whether both sides say the same; None where one says nothing."""
        if self.ours is None or self.nsight is None:
            return None
        tolerance = TOLERANCE if self.metric == nsight.OCCUPANCY else 0
        return abs(self.ours - self.nsight) <= tolerance

    def __str__(self) -> str:
        if self.ours is None and self.nsight is None:
            return ""
        if self.equal:
            return f"{_amount(self.nsight)} ="
        return f"{_amount(self.ours)} / {_amount(self.nsight)}"


def _amount(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


@dataclass(frozen=True)
class Report:
    """Both sides joined. `reasons`: "op:variant" -> why a side has no counts of it."""

    ours: Mapping[str, str]  # the environments
    nsight: Mapping[str, str]
    config: Mapping[str, Any]
    position: int
    seed: int
    rows: tuple[Row, ...]
    reasons: Mapping[str, str]

    @classmethod
    def load(cls, path: Path) -> "Report":
        """From a file that `record` wrote."""
        content = json.loads(path.read_text())
        del content["summary"]
        rows = tuple(
            Row(**{k: v for k, v in row.items() if k != "equal"}) for row in content.pop("rows")
        )
        return cls(rows=rows, **content)

    def record(self, folder: Path) -> Path:
        """Keep it as JSON in `folder`, under a name of the date, the GPU's arch and the model; returns the path."""
        model = re.sub(r"[^a-z0-9.]+", "-", str(self.config["name"]).lower())
        path = (
            folder
            / f"{self.nsight['date']}-{self.nsight.get('arch', 'gpu')}-{model}-microscope.json"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        content = asdict(self)
        content["rows"] = [{**asdict(row), "equal": row.equal} for row in self.rows]
        content["summary"] = self.summary()
        path.write_text(json.dumps(content, indent=1) + "\n")
        return path

    def kernels(self) -> list[str]:
        """The kernels that have a row, in the order of the registry."""
        return list(dict.fromkeys(row.kernel for row in self.rows))

    def agreement(self, metrics: Sequence[str]) -> tuple[int, int]:
        """Kernels on which both sides have at least one of `metrics` and agree on all they both have; and all such."""
        verdicts = {}
        for kernel in self.kernels():
            mine = [r.equal for r in self.rows if r.kernel == kernel and r.metric in metrics]
            known = [equal for equal in mine if equal is not None]
            if known:
                verdicts[kernel] = all(known)
        return sum(verdicts.values()), len(verdicts)

    def differences(self) -> list[Row]:
        """The rows on which the sides disagree."""
        return [row for row in self.rows if row.equal is False]

    def summary(self) -> list[str]:
        """How many kernels agree, a line for each group of metrics that was compared."""
        lines = []
        for what, metrics in (
            ("global loads and stores, requests and sectors", TRAFFIC),
            ("shared-memory wavefronts", SHARED),
            ("registers and occupancy", LAUNCH),
        ):
            equal, compared = self.agreement(metrics)
            lines.append(f"{what}: equal on {equal} of {compared} kernels")
        return lines

    def __str__(self) -> str:
        cells = {(row.kernel, row.metric): str(row) for row in self.rows}
        head = ["kernel", *COLUMNS.values()]
        table = [head] + [
            [kernel, *(cells.get((kernel, metric), "") for metric in COLUMNS)]
            for kernel in self.kernels()
        ]
        widths = [max(len(line[i]) for line in table) for i in range(len(head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in table
        ]
        lines += ["", "ours / Nsight Compute's; = where they are the same", *self.summary()]
        for row in self.differences():
            lines.append(f"{row.kernel}, {row.metric}: {row} {row.cause or '(not explained)'}")
        lines += [f"{kernel}: {reason}" for kernel, reason in self.reasons.items()]
        return "\n".join(lines)


# ---- the two sides ----


def registry_kernels() -> list[str]:
    """Every variant of every op as "op:variant", without those of `UNCOUNTED`."""
    return [
        f"{name}:{variant}"
        for name, op in OPS.items()
        if name not in UNCOUNTED
        for variant in op.variants
    ]


def fingerprint(variant: Variant) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a kernel's text and of the lab's headers that it includes."""
    return hashlib.sha256("\0".join(_with_headers(variant.source)).encode()).hexdigest()[:16]


def _with_headers(text: str) -> Iterator[str]:
    yield text
    for name in re.findall(r'^\s*#include "(.+)"', text, flags=re.M):
        yield from _with_headers((INCLUDE / name).read_text())


def count_ours(
    kernels: Sequence[str],
    config: Config,
    position: int = 63,
    seed: int = 0,
    arch: int = 90,
    report: Callable[[str], None] = lambda kernel: None,
) -> Side:
    """Trace each kernel whole on the SIMT device, and compile it for `arch` where NVRTC is installed.

    A kernel that cannot be traced has the reason in place of counts. `report(kernel)` comes before each.
    """
    counts = {}
    for kernel in kernels:
        report(kernel)
        op, variant = find_kernel(kernel)
        try:
            values, reason = dict(_ours(op, variant, config, position, seed, arch)), None
        except LabError as error:
            values, reason = {}, str(error)
        counts[kernel] = Counts(fingerprint(variant), values, reason)
    device = open_device("simt")
    facts = {**environment(device), "arch": f"sm_{arch}", "static": why_no_nvrtc() or "NVRTC"}
    return Side(facts, asdict(config), position, seed, counts)


def _ours(
    op: Op, variant: Variant, config: Config, position: int, seed: int, arch: int
) -> Iterator[tuple[str, float]]:
    args = workload(op, config, position, seed)
    grid, dynamic = op.grid(variant, args), variant.shared_bytes(args)
    traced = trace(
        variant.path,
        grid,
        variant.threads,
        args,
        DEFINES,
        shared_bytes=dynamic,
        cooperative=variant.cooperative,
    )
    yield nsight.LOAD_REQUESTS, traced.requests("load")
    yield nsight.LOAD_SECTORS, traced.sectors("load")
    yield nsight.STORE_REQUESTS, traced.requests("store")
    yield nsight.STORE_SECTORS, traced.sectors("store")
    yield nsight.L2_SECTORS, traced.sectors("load") + traced.sectors("store")
    yield nsight.WAVEFRONTS, sum(row.wavefronts for row in traced.lines)
    yield nsight.IDEAL_WAVEFRONTS, sum(row.ideal_wavefronts for row in traced.lines)
    if why_no_nvrtc() is None:
        cubin = compile_cubin(Source.of(variant.path, DEFINES), arch)
        fits = occupancy(cubin.registers, cubin.shared + dynamic, variant.threads, arch)
        yield nsight.REGISTERS, cubin.registers
        yield nsight.OCCUPANCY, 100 * fits.share


def count_nsight(
    kernels: Sequence[str],
    config: Config,
    device: Device,
    position: int = 63,
    seed: int = 0,
    seconds: float = 40,
    keep: Path | None = None,
) -> Side:
    """Have Nsight Compute count all kernels in one run; what it prints is added to the file `keep`.

    Raises LabError with the reason where it counts nothing.
    """
    counters = nsight.count(kernels, config, position, seed, seconds, keep)
    if not counters.values:
        said = [f"{kernel}: {why}" for kernel, why in list(counters.failed.items())[:3]]
        raise LabError("\n".join([f"Nsight Compute has no counts: {counters.reason}", *said]))
    counts = {}
    for kernel in kernels:
        _, variant = find_kernel(kernel)
        values = counters.values.get(kernel, {})
        reason = None if values else counters.failed.get(kernel, "ncu gave no counters of it")
        counts[kernel] = Counts(fingerprint(variant), values, reason)
    facts = environment(device) | {"arch": device.properties.arch, "profiler": ncu_version()}
    if counters.missing:
        facts["not counted"] = ", ".join(counters.missing)
    return Side(facts, asdict(config), position, seed, counts)


def ncu_version() -> str:
    """Nsight Compute and its version, as `ncu --version` says it."""
    try:
        said = subprocess.run(
            [nsight.find_ncu() or "ncu", "--version"], capture_output=True, text=True, timeout=20
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    version = re.search(r"Version (\S+)", said)
    return f"Nsight Compute {version.group(1) if version else ''}".strip()


def join(ours: Side, theirs: Side, causes: Mapping[str, str] | None = None) -> Report:
    """Both sides, metric by metric. `causes`: "op:variant" -> why it differs, for the rows that do.

    Raises LabError where the sides were counted on different arguments. A kernel whose text differs between the two
    is not compared; registers and occupancy are only for one arch.
    """
    for what in ("config", "position", "seed"):
        if getattr(ours, what) != getattr(theirs, what):
            raise LabError(
                f"The two sides were counted with different arguments: {what} is {getattr(ours, what)} in ours and "
                f"{getattr(theirs, what)} in Nsight's. Count one of them again."
            )
    same_arch = ours.environment.get("arch") == theirs.environment.get("arch")
    rows, reasons = [], {}
    for kernel in dict.fromkeys([*ours.kernels, *theirs.kernels]):
        a, b = ours.kernels.get(kernel), theirs.kernels.get(kernel)
        if a is None or b is None:
            reasons[kernel] = f"only {'ours' if b is None else 'Nsight'} counted it"
            continue
        if a.source != b.source:
            reasons[kernel] = "its source changed between the two counts: count one of them again"
            continue
        if a.reason or b.reason:
            reasons[kernel] = " ".join(filter(None, [a.reason, b.reason]))
        for metric in nsight.METRICS:
            mine = a.values.get(metric) if same_arch or metric not in LAUNCH else None
            row = Row(kernel, metric, mine, b.values.get(metric))
            if row.equal is False:
                row = Row(kernel, metric, row.ours, row.nsight, (causes or {}).get(kernel))
            if row.ours is not None or row.nsight is not None:
                rows.append(row)
    return Report(
        dict(ours.environment),
        dict(theirs.environment),
        dict(ours.config),
        ours.position,
        ours.seed,
        tuple(rows),
        reasons,
    )


def main() -> None:
    """Parse the command line; count, join, print and record as it says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="storyteller", help="whose size the kernels are run at")
    parser.add_argument("--position", type=int, default=63)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernel", action="append", help="op:variant; may be repeated; else all")
    parser.add_argument("--arch", type=int, default=90, help="the GPU's sm_, for our registers")
    parser.add_argument("--seconds", type=float, default=40, help="the most that ncu may take")
    parser.add_argument("--ours", type=Path, metavar="FILE", help="count our side into FILE")
    parser.add_argument(
        "--nsight",
        type=Path,
        metavar="FILE",
        help="count Nsight's into FILE, what ncu prints beside it",
    )
    parser.add_argument("--join", type=Path, nargs=2, metavar=("OURS", "NSIGHT"))
    parser.add_argument("--causes", type=Path, help="JSON: op:variant -> why it differs")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="keep the joined table here")
    options = parser.parse_args()
    try:
        _do(options)
    except LabError as error:
        sys.exit(str(error))


def _do(options: argparse.Namespace) -> None:
    sides: list[Side] = []
    if options.join:
        sides = [Side.load(path) for path in options.join]
    else:
        config = load_model(options.model).config
        kernels = options.kernel or registry_kernels()
        both = not options.ours and not options.nsight
        if both or options.nsight:  # first: where there is no GPU it says so at once
            device = open_device("cuda")
            keep = options.nsight.with_suffix(".ncu.txt") if options.nsight else None
            theirs = count_nsight(
                kernels, config, device, options.position, options.seed, options.seconds, keep
            )
            sides.append(theirs)
            if options.nsight:
                theirs.save(options.nsight)
        if both or options.ours:
            ours = count_ours(kernels, config, options.position, options.seed, options.arch, _say)
            sides.insert(0, ours)
            if options.ours:
                ours.save(options.ours)
    if len(sides) == 2:
        causes = json.loads(options.causes.read_text()) if options.causes else None
        joined = join(sides[0], sides[1], causes)
        print(joined)
        if options.record:
            print(f"recorded in {joined.record(options.record)}")


def _say(kernel: str) -> None:
    print(f"tracing {kernel}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
