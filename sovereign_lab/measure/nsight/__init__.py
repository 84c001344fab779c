"""What a real GPU says of one kernel: its time always, and Nsight Compute's counters where these may be read.

Counters come from `ncu`, which runs a process of its own around the kernels (`nsight_target.py`). Both sides make the
same arguments from a seed (`workload.py`), so what Nsight counts is what the microscope counts.
"""

import csv
import io
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from sovereign_lab.devices import Device
from sovereign_lab.devices.cuda import why_no_gpu
from sovereign_lab.kernels.registry import Op, Variant, find_kernel
from sovereign_lab.measure.workload import COUNT, DEFINES, workload
from sovereign_lab.models.model import Config

LOAD_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORE_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
STORE_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
L2_SECTORS = "memory_l2_theoretical_sectors_global"
WAVEFRONTS = "memory_l1_wavefronts_shared"
IDEAL_WAVEFRONTS = "memory_l1_wavefronts_shared_ideal"
REGISTERS = "launch__registers_per_thread"
OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"
DURATION = "gpu__time_duration.sum"
TENSOR_CORES = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"

# Nsight Compute's name -> what it counts. Those of the L1's hardware counters come first: they need no
# instrumented kernel, and are asked for alone where the whole list is refused.
METRICS = {
    LOAD_REQUESTS: "requests of global loads",
    LOAD_SECTORS: "sectors of global loads",
    STORE_REQUESTS: "requests of global stores",
    STORE_SECTORS: "sectors of global stores",
    DURATION: "ns, caches emptied before",
    TENSOR_CORES: "% of the time, Tensor Cores at work, over all SMs",
    REGISTERS: "registers a thread",
    OCCUPANCY: "% of an SM's warps that fit at once",
    L2_SECTORS: "sectors of global loads and stores, by address",
    WAVEFRONTS: "wavefronts of shared memory",
    IDEAL_WAVEFRONTS: "wavefronts of shared memory without conflicts",
}
HARDWARE = (LOAD_REQUESTS, LOAD_SECTORS, STORE_REQUESTS, STORE_SECTORS, DURATION)

INSTALL_PLACES = (
    "/usr/local/cuda/bin/ncu",
    "/usr/local/cuda-*/bin/ncu",
    "/opt/nvidia/nsight-compute/*/ncu",
    "/usr/local/NVIDIA-Nsight-Compute*/ncu",
)
LAUNCHES, REPEATS = 20, 5


# ---- ncu: where it is, what it prints ----


@dataclass(frozen=True)
class Counted:
    """One launch in ncu's output: the kernel's name, and the value of every metric that was read."""

    function: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Counters:
    """What a run of ncu gave: by "op:variant" its metrics; or the `reason` why there are none.

    `missing`: metrics that this ncu or this GPU does not have. `failed`: "op:variant" -> why it could not be launched.
    """

    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None


def find_ncu() -> str | None:
    """The path of Nsight Compute's command line: on PATH, or in the usual places; None where it is not."""
    found = shutil.which("ncu")
    if found:
        return found
    root = Path("/")
    places = [p for pattern in INSTALL_PLACES for p in sorted(root.glob(pattern[1:]), reverse=True)]
    return next((str(p) for p in places if os.access(p, os.X_OK)), None)


def parse_csv(text: str) -> list[Counted]:
    """The launches in the output of `ncu --csv`, in order; empty where it holds none.

    Reads the pages "raw" (a column a metric, a row of units below the head) and "details" (a row a metric). Cells
    that hold no number ("n/a") are left out; "50,176" is 50176. Lines that ncu prints around the table are skipped.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    start = next((i for i, line in enumerate(lines) if '"Kernel Name"' in line), None)
    if start is None:
        return []
    head, *rows = csv.reader(io.StringIO("\n".join(lines[start:])))
    cells = [dict(zip(head, row, strict=False)) for row in rows]
    # The row of units has no kernel in it.
    cells = [row for row in cells if row.get("Kernel Name")]
    if "Metric Name" not in head:
        return [Counted(row["Kernel Name"], dict(_numbers(row))) for row in cells]
    launches: dict[str, Counted] = {}
    for row in cells:
        launch = launches.setdefault(row.get("ID", ""), Counted(row["Kernel Name"], {}))
        pair = {row["Metric Name"]: row.get("Metric Value", "")}
        launches[row.get("ID", "")] = Counted(
            launch.function, {**launch.values, **dict(_numbers(pair))}
        )
    return list(launches.values())


def _numbers(row: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for name, cell in row.items():
        # Of a metric with instances, "12 (3; 4; 5)", the total comes first.
        number = re.match(r"\s*(-?[\d,]*\.?\d+(?:[eE][-+]?\d+)?)(?:\s*\(|\s*$)", cell or "")
        if name in METRICS and number:
            yield name, float(number.group(1).replace(",", ""))


def explain(output: str) -> str:
    """Why ncu gave no counters, in a sentence, from what it printed."""
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "the driver lets only administrators read this GPU's counters (ERR_NVGPUCTRPERM): run as root, or have "
            "the driver loaded with NVreg_RestrictProfilingToAdminUsers=0; a container needs --cap-add=SYS_ADMIN."
        )
    errors = [
        line.split("==ERROR==", 1)[1].strip() for line in output.splitlines() if "==ERROR==" in line
    ]
    if errors:
        return f"ncu says: {' '.join(errors[:3])}"
    if "No kernels were profiled" in output:
        return "ncu saw no launch of a kernel."
    last = [line for line in output.splitlines() if line.strip()]
    return f"ncu gave no table; its last words: {last[-1] if last else 'none'}"


def unknown_metrics(output: str, asked: Sequence[str]) -> list[str]:
    """Those of the metrics asked for that ncu says it cannot find: one of them, and it counts nothing at all."""
    complaints = "\n".join(
        line
        for line in output.splitlines()
        if re.search(
            r"failed to find metric|unknown metric|metric.*(not found|not available)", line, re.I
        )
    )
    return [m for m in asked if re.search(rf"\b{re.escape(m.split('.')[0])}(?!\w)", complaints)]


def count(
    kernels: Sequence[str],
    config: Config,
    position: int = 63,
    seed: int = 0,
    seconds: float = 60,
    keep: Path | None = None,
    tokens: int = COUNT,
) -> Counters:
    """Counters of each of `kernels` ("op:variant"), launched once on the arguments of `workload`.

    All of them in one run of ncu, which takes at most `seconds`; a metric that ncu does not know is left out and the
    rest is asked for again. `tokens`: of the ops that take many. `keep`: a file for all that ncu prints, and what was
    launched. Never raises for what the machine lacks: `reason` says it.
    """
    reason = why_no_gpu()
    if reason:
        return Counters(reason=f"no GPU: {reason}")
    ncu = find_ncu()
    if ncu is None:
        return Counters(
            reason="Nsight Compute is not installed: `ncu` is neither on PATH nor in the usual places. It comes with "
            "the CUDA toolkit, and by itself from NVIDIA's developer site."
        )
    deadline = time.monotonic() + seconds
    asked = list(METRICS)
    output = ""
    launched: list[dict[str, str]] = []
    while asked and time.monotonic() < deadline:
        output, launched = _run(
            ncu, asked, kernels, config, position, seed, tokens, deadline - time.monotonic()
        )
        if keep:
            said = "".join(f"launched {json.dumps(line)}\n" for line in launched)
            keep.parent.mkdir(parents=True, exist_ok=True)
            with keep.open("a") as file:
                file.write(f"{output}\n{said}")
        counted = parse_csv(output)
        if counted:
            return _assign(counted, launched)
        unknown = unknown_metrics(output, asked)
        if unknown:
            asked = [m for m in asked if m not in unknown]
        elif len(asked) > len(HARDWARE) and "ERR_NVGPUCTRPERM" not in output:
            asked = list(HARDWARE)
        else:
            break
    failed = {line["kernel"]: line["error"] for line in launched if "error" in line}
    return Counters(failed=failed, reason=explain(output))


def _assign(counted: Sequence[Counted], launched: Sequence[Mapping[str, str]]) -> Counters:
    """Put ncu's launches, which have the functions' names, to the kernels that were launched, in order."""
    failed = {line["kernel"]: line["error"] for line in launched if "error" in line}
    done = [line for line in launched if "error" not in line]
    functions = {line["function"] for line in done}
    names = [re.match(r"\w*", c.function).group() for c in counted]  # type: ignore[union-attr]
    mine = [(n, c) for n, c in zip(names, counted, strict=True) if n in functions]
    if [n for n, _ in mine] != [line["function"] for line in done]:
        return Counters(
            failed=failed,
            reason=f"ncu counted {len(mine)} launches and {len(done)} were made, or in another order: which is which "
            "cannot be told.",
        )
    values = {line["kernel"]: dict(c.values) for line, (_, c) in zip(done, mine, strict=True)}
    missing = tuple(m for m in METRICS if not any(m in v for v in values.values()))
    return Counters(values, missing, failed)


def command(ncu: str, metrics: Sequence[str], log: Path, job: Path) -> list[str]:
    """The command line of one run: clocks are left as they are, values come in base units."""
    return [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--target-processes", "all", "--metrics", ",".join(metrics), "--log-file", str(log),
        sys.executable, "-m", "sovereign_lab.measure.nsight.target", str(job),
    ]  # fmt: skip


def _run(
    ncu: str,
    metrics: Sequence[str],
    kernels: Sequence[str],
    config: Config,
    position: int,
    seed: int,
    tokens: int,
    seconds: float,
) -> tuple[str, list[dict[str, str]]]:
    """Run ncu around the kernels: everything that it printed, and what the process inside says it launched."""
    package = Path(__file__).resolve().parents[3]
    with tempfile.TemporaryDirectory(prefix="sovereign-ncu-") as folder:
        job, log, launched = (Path(folder) / name for name in ("job.json", "ncu.csv", "launched"))
        job.write_text(
            json.dumps(
                {
                    "config": asdict(config),
                    "position": position,
                    "seed": seed,
                    "tokens": tokens,
                    "kernels": list(kernels),
                    "seconds": 0.7 * seconds,  # the rest is ncu's, to start and to write
                    "launched": str(launched),
                }
            )
        )
        paths = [str(package), os.environ.get("PYTHONPATH", "")]
        process = subprocess.Popen(
            command(ncu, metrics, log, job),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Numbers are written as the locale has them.
            env={**os.environ, "LC_ALL": "C", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the process that ncu started, too
            printed, _ = process.communicate()
            printed += f"\n==ERROR== it took more than {seconds:.0f} s and was ended."
        logged = log.read_text(errors="replace") if log.exists() else ""
        lines = launched.read_text().splitlines() if launched.exists() else []
    return f"{printed}\n{logged}", [json.loads(line) for line in lines]


# ---- one kernel ----


@dataclass(frozen=True)
class KernelProfile:
    """One kernel at the size of a model.

    `us`: microseconds a launch, the median of `samples`; launches follow each other in one recording, so caches are
    warm and what a node of a graph costs is in it. `counters`: by Nsight Compute's name; empty with the `reason`.
    """

    kernel: str
    device: str
    times: str
    model: str
    position: int
    grid: int
    threads: int
    us: float
    samples: tuple[float, ...]
    counters: Mapping[str, float]
    missing: tuple[str, ...]
    reason: str | None

    def rows(self) -> list[tuple[str, str, str]]:
        """What, how much, and where it is from."""
        rows = [("a launch, caches warm", f"{self.us:,.2f} us", self.times)]
        for name, value in self.counters.items():
            amount = f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
            rows.append((METRICS[name], amount, name))
        return rows

    def _notes(self) -> list[str]:
        notes = [f"No counters: {self.reason}"] if self.reason else []
        return notes + [f"Not counted by this ncu: {name}." for name in self.missing]

    def _title(self) -> str:
        return (
            f"{self.kernel}, {self.grid:,} blocks of {self.threads} threads, at the size of {self.model}, position "
            f"{self.position:,}, on {self.device}"
        )

    def __str__(self) -> str:
        rows = self.rows()
        left, middle = (max(len(row[i]) for row in rows) for i in (0, 1))
        lines = [f"{what:<{left}}  {amount:>{middle}}  {origin}" for what, amount, origin in rows]
        return "\n".join([self._title(), *lines, *self._notes()])

    def _repr_html_(self) -> str:
        body = "".join(
            f"<tr><td style='text-align:left'>{escape(what)}</td><td>{escape(amount)}</td>"
            f"<td style='text-align:left'>{escape(origin)}</td></tr>"
            for what, amount, origin in self.rows()
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return f"<p>{escape(self._title())}</p><table>{body}</table>{notes}"


def profile_kernel(
    name: str, device: Device, config: Config, position: int = 63, seed: int = 0
) -> KernelProfile:
    """Time one kernel, "op:variant", on `device` at the size of a model, and read its counters where that can be.

    Counters need a CUDA device and take a process of their own, 5 to 20 s. Raises LabError for a kernel that there
    is not, and for what `workload` refuses.
    """
    which, variant = find_kernel(name)
    host = workload(which, config, position, seed)
    samples = launch_us(which, variant, host, device)
    on_gpu = device.properties.kind == "cuda"
    counters = (
        count([name], config, position, seed)
        if on_gpu
        else Counters(
            reason="the SIMT device has none; `inspect_kernel` counts the same by address."
        )
    )
    return KernelProfile(
        kernel=name,
        device=device.properties.name,
        times=f"device events on {device.properties.name}" if on_gpu else device.properties.times,
        model=config.name,
        position=position,
        grid=which.grid(variant, host),
        threads=variant.threads,
        us=statistics.median(samples),
        samples=samples,
        counters=counters.values.get(name, {}),
        missing=counters.missing,
        reason=counters.reason or counters.failed.get(name),
    )


def launch_us(
    which: Op, variant: Variant, host: Mapping[str, Any], device: Device
) -> tuple[float, ...]:
    """Microseconds a launch: the mean of `LAUNCHES` in one recording, `REPEATS` times after a warm-up."""
    kernel = device.compile(variant.path, DEFINES)
    args = device.arguments(host)
    grid, shared = which.grid(variant, host), variant.shared_bytes(host)
    launch = (kernel, grid, variant.threads, list(args.values()), shared, variant.cooperative)
    launches = LAUNCHES if device.properties.kind == "cuda" else 2
    device.launch(*launch)
    with device.capture() as capture:
        for _ in range(launches):
            device.launch(*launch)
    samples = []
    for repeat in range(REPEATS + 1):
        # What is changed in place starts afresh: a position would leave its context, sums would grow.
        for written in (*which.outputs, *which.scratch):
            device.update(args[written], host[written])
        with device.timer() as timer:
            capture.replay()
        if repeat:
            samples.append(1e3 * timer.milliseconds / launches)
    return tuple(samples)
