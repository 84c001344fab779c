"""What a kernel does wrong, found on the CPU: the four jobs of compute-sanitizer, and results that depend on an order.

A kernel runs on the SIMT device in a build that checks every access (devices/simt/shim/sanitize.cpp): out of bounds
and misaligned (memcheck), memory read that nobody wrote (initcheck), races in shared and global memory (racecheck),
misuse of barriers and shuffles (synccheck). It runs once in each of several lane orders, and outputs that differ are
a finding as well.

What is a race, decided: `__syncthreads`, `__syncwarp`, grid sync, and a `__threadfence` before an atomic order memory;
shuffles and votes do not (CUDA C++ Programming Guide). Atomics do not race with atomics, nor volatile accesses with
either of them: a volatile access is a relaxed one to CUDA's memory model. Threads that write equal values by the same
line do not race, whatever their warps and blocks: at least one of the writes takes place. What is not seen: a thread's
own array overrun through a pointer, what a kernel does to `__device__` and `__constant__` variables, and accesses that
the compiler removes because nothing comes of them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.devices.device import Shape3, Source, launch_shape
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.measure.sanitizer.run import Launch, Run, run
from sovereign_lab.measure.sanitizer.words import CHAPTERS, Told, tell, tell_fault

LANE_ORDERS: tuple[str | int, ...] = ("forward", "reverse", 2)
# What makes a result depend on the order of lanes; where one of them is found, the difference is no finding of its own.
CAUSES = ("race", "uninitialised", "out of bounds")
Uninitialised = Collection[str] | Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Finding:
    """One thing that a kernel does wrong, at one place.

    `kind`: "out of bounds", "misaligned", "uninitialised", "unwritten", "race", "barrier", "shuffle", "deadlock",
    "spin", "timeout", "trap" or "lane order". `line` counts in the kernel's file, 0 where no single line is to blame
    or where it lies in a header, which `explanation` then names; `text` is that line. `lane`, `warp` and `block`
    (linear in the grid) are those of the first thread that did it, None where there is none. `other_line`: the other
    access of a race, the other barrier. `chapter`: the notebook that teaches it. `count`: how often it happened.
    """

    kind: str
    line: int
    text: str
    lane: int | None
    warp: int | None
    block: int | None
    array: str | None
    explanation: str
    other_line: int | None
    chapter: str
    count: int

    def __str__(self) -> str:
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        shown = f"\n    {self.line:>4} | {self.text}" if self.text else ""
        return f"{self.kind}{times}: {self.explanation}{shown}\n    see {self.chapter}"


@dataclass(frozen=True)
class Report:
    """All findings of a kernel, the gravest first, and the lane orders in which it ran."""

    name: str
    launch: str
    findings: tuple[Finding, ...]
    lane_orders: tuple[str | int, ...]

    def record(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        orders = ", ".join(f"seed {o}" if isinstance(o, int) else o for o in self.lane_orders)
        head = f"{self.name} {self.launch}, lane orders {orders}: "
        if not self.findings:
            return head + "no findings"
        count = len(self.findings)
        told = (f"{i}. {f}" for i, f in enumerate(self.findings, 1))
        return "\n".join([f"{head}{count} finding{'s' if count > 1 else ''}", *told])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><b>{escape(f.kind)}</b></td><td style='text-align:right'>{f.line or ''}</td>"
            f"<td style='text-align:left'>{escape(f.explanation)}<br><code>{escape(f.text)}</code></td>"
            f"<td style='text-align:right'>{f.count:,}</td>"
            f"<td><a href='{escape(f.chapter)}'>{escape(f.chapter[:2])}</a></td></tr>"
            for f in self.findings
        )
        head = escape(str(self).splitlines()[0])
        if not rows:
            return f"<p>{head}</p>"
        columns = "<tr><th>kind</th><th>line</th><th>what</th><th>times</th><th>chapter</th></tr>"
        return f"<p>{head}</p><table>{columns}{rows}</table>"


def sanitize(
    source: str | Path | Source,
    grid: Shape3,
    block: Shape3,
    args: Mapping[str, Any],
    defines: Mapping[str, str] | None = None,
    name: str = "",
    shared_bytes: int = 0,
    outputs: Collection[str] | None = None,
    cooperative: bool = False,
    uninitialised: Uninitialised = (),
    timeout: float = 10.0,
    lane_orders: Sequence[str | int] = LANE_ORDERS,
) -> Report:
    """Run a kernel on copies of `args` and report what it does wrong.

    `args`: NumPy arrays and scalars by parameter name, in the order of the signature; an array that is passed twice
    is one array. `uninitialised`: the arrays that hold nothing yet, as `device.empty` makes them; as a mapping, each
    with a boolean array that is True at the elements that hold nothing. `outputs`: the arrays that count as results; by
    default all that the kernel may write to. Named here and uninitialised, they must be written wholly. `timeout`:
    seconds for a launch, so that a loop that waits for another thread ends. `lane_orders`: see SimtDevice; the first is
    reported, the others add what only they show. Raises LabError for what `device.compile` and `device.launch` refuse.
    """
    chosen = Source.of(source, defines, name)
    masks = _masks(args, uninitialised)
    first = SimtDevice(workers=1, build="sanitized")
    devices = [first]
    try:
        kernel = first.compile(chosen)
        writable = [p.name for p in kernel.signature.parameters if p.pointer and not p.const]
        names = dict(zip((p.name for p in kernel.signature.parameters), args, strict=False))
        shown = [names[n] for n in writable if n in names] if outputs is None else list(outputs)
        if strange := [n for n in shown if not isinstance(args.get(n), np.ndarray)]:
            raise LabError(
                f"`outputs` names {', '.join(strange)}, which no array of args is called."
            )
        launch = Launch(
            chosen,
            *launch_shape(kernel.name, grid, block),
            args,
            shared_bytes,
            cooperative,
            masks,
            timeout,
        )
        runs: list[Run] = []
        for order in lane_orders:
            if runs and kernel.handle.one_worker:
                # `__device__` variables keep what they hold; in another copy they are as at the start.
                devices.append(SimtDevice(workers=1, build="sanitized"))
                kernel = devices[-1].compile(chosen)
            devices[-1].lane_order = order
            runs.append(run(devices[-1], kernel, launch))
            if any(f.kind in ("spin", "timeout") for f in runs[-1].facts):
                break  # it would last as long in every order
    finally:
        for device in devices:
            device.close()
    lines = chosen.text.splitlines()
    found = _merge([list(_told(r, launch, outputs)) for r in runs])
    found = _without_consequences(found)
    differs = _order_dependence(runs, lane_orders, shown)
    if differs and not any(t.kind in CAUSES for t in found):
        found.append(differs)
    elif differs:
        found = [_with_order(t, differs) if t.kind == "race" else t for t in found]
    found.sort(key=lambda t: (list(CHAPTERS).index(t.kind), t.line))
    findings = tuple(_finding(t, lines) for t in found)
    shape = f"<<<{_shape(launch.grid)}, {_shape(launch.block)}>>>"
    return Report(chosen.name, shape, findings, tuple(lane_orders[: len(runs)]))


def _shape(size: tuple[int, int, int]) -> str:
    return str(size[0]) if size[1:] == (1, 1) else str(size)


def _masks(args: Mapping[str, Any], uninitialised: Uninitialised) -> dict[str, np.ndarray]:
    """Where arrays are initialised, by name and element."""
    if isinstance(uninitialised, str):
        raise LabError(f"`uninitialised` is a collection of names: write ({uninitialised!r},).")
    masks = {}
    for name in uninitialised:
        if not isinstance(args.get(name), np.ndarray):
            raise LabError(f"`uninitialised` names {name}, which no array of args is called.")
        mask = uninitialised[name] if isinstance(uninitialised, Mapping) else np.array(True)
        if mask.dtype != bool or mask.shape not in ((), args[name].shape):
            raise LabError(
                f"`uninitialised[{name!r}]` must be a boolean array of shape {args[name].shape}; "
                f"got {mask.dtype} of shape {mask.shape}."
            )
        masks[name] = np.broadcast_to(~mask, args[name].shape)
    return masks


def _told(r: Run, launch: Launch, outputs: Collection[str] | None) -> Iterator[Told]:
    for fact in r.facts:
        yield tell(fact, r.arrays, launch)
    if r.fault is not None:
        yield tell_fault(r.fault, launch)
    if not r.whole:
        return
    for name in outputs or ():
        if name in r.unwritten and not launch.written[name].any() and r.unwritten[name].any():
            missing = np.flatnonzero(r.unwritten[name])
            yield Told(
                kind="unwritten",
                line=0,
                array=name,
                explanation=f"{len(missing):,} of the {r.unwritten[name].size:,} elements of the output `{name}` are "
                f"never written, the first of them `{name}[{missing[0]}]`.",
                count=len(missing),
            )


def _merge(runs: list[list[Told]]) -> list[Told]:
    """One of each place. Counts add up within a run; later runs add only what the first did not show."""
    merged: dict[tuple[Any, ...], Told] = {}
    for told in runs:
        here: dict[tuple[Any, ...], Told] = {}
        for t in told:
            key = t.key
            here[key] = replace(here[key], count=here[key].count + t.count) if key in here else t
        for key, t in here.items():
            merged.setdefault(key, t)
    return list(merged.values())


def _without_consequences(found: list[Told]) -> list[Told]:
    """Leave out memory read too early where the race with the thread that writes it is told."""
    races = {(t.array, line) for t in found if t.kind == "race" for line in (t.line, t.other_line)}
    return [t for t in found if t.kind != "uninitialised" or (t.array, t.line) not in races]


def _order_dependence(
    runs: list[Run], orders: Sequence[str | int], outputs: Sequence[str]
) -> Told | None:
    """The first output that is not the same, bit for bit, in all lane orders."""
    if not all(r.whole for r in runs):
        return None
    for other, order in zip(runs[1:], orders[1:], strict=False):
        for name in outputs:
            a, b = runs[0].outputs[name].reshape(-1), other.outputs[name].reshape(-1)
            width = a.itemsize
            same = (a.view(np.uint8) == b.view(np.uint8)).reshape(-1, width).all(axis=1)
            if same.all():
                continue
            i = int(np.flatnonzero(~same)[0])
            return Told(
                kind="lane order",
                line=0,
                array=name,
                explanation=f"the output `{name}` differs in {(~same).sum():,} of {same.size:,} elements between "
                f"the lane orders {orders[0]} and {order}: `{name}[{i}]` is {a[i]} in one and {b[i]} in the other. "
                "CUDA promises no order. Sums of floats by atomicAdd are a common cause, and lanes that count on how "
                "far the others are.",
            )
    return None


def _with_order(race: Told, order: Told) -> Told:
    return replace(
        race, explanation=f"{race.explanation} The result does change: {order.evidence}."
    )


def _finding(t: Told, lines: list[str]) -> Finding:
    return Finding(
        kind=t.kind,
        line=t.line,
        text=lines[t.line - 1].strip() if 0 < t.line <= len(lines) else "",
        lane=t.lane,
        warp=t.warp,
        block=t.block,
        array=t.array,
        explanation=t.explanation,
        other_line=t.other_line,
        chapter=CHAPTERS[t.kind],
        count=t.count,
    )
