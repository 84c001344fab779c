"""What is done with an edited kernel: does it compile, is it safe, is it right, is it faster? A card with answers.

    trial("gemv_q4_0", source, like="coalesced")

Everything runs where the call is made, so that a notebook makes it in a worker (measure/worker.py). The sanitizer goes
before the device: what it finds out of bounds or hanging is then never run on a GPU.
"""

import time as clock
from dataclasses import replace

from sovereign_lab.devices import Device, Kernel
from sovereign_lab.devices.device import Source
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.mine import DEFAULT_PHASE, Edit, check_engine, edit
from sovereign_lab.measure.sanitizer import Finding, sanitize
from sovereign_lab.measure.sanitizer.cases import poisoned
from sovereign_lab.measure.trial.card import QUESTIONS, Card, Remark, Stage, geometry_words
from sovereign_lab.measure.trial.cases import (
    faults,
    launch_of,
    odd_cases,
    shape_words,
)
from sovereign_lab.measure.trial.compile import REMARKS, compile_edit, why_no_sanitizer
from sovereign_lab.measure.trial.counts import count
from sovereign_lab.measure.trial.times import alone, in_engine
from sovereign_lab.measure.worker import child
from sovereign_lab.measure.workload import DEFINES, config_of

# What would end the process, hang it or poison a GPU: such a kernel goes no further than the sanitizer.
GRAVE = (
    "out of bounds", "misaligned", "trap", "barrier", "shuffle", "deadlock", "spin", "timeout"
)  # fmt: skip
SANITIZER_SECONDS = 0.5  # no further shape is begun behind this
SANITIZER_TIMEOUT = 2.0  # of one launch
COMPILER = "The compiler"
# How those steps begin in which the kernel has no part: a worker that ends in one says nothing about it.
LOADING, MAKING = "Loading", "Making"
NOT_THE_KERNEL = (LOADING, MAKING, "Opening", "Starting", "A call", "The call")
# Steps that take long where nothing is wrong; a launch has the caller's own limit.
COMPILE_SECONDS, TRACE_SECONDS, LOAD_SECONDS = 120.0, 60.0, 600.0
MORE_SHAPES = 3


def trial(
    op_name: str,
    source: str,
    like: str | None = None,
    name: str = "mine",
    threads: int | None = None,
    rows_per_block: int | None = None,
    grid: int | None = None,
    shared_bytes: int | None = None,
    cooperative: bool = False,
    inspect: bool = False,
    time: bool = False,
    engine: bool = False,
    model: str | None = None,
    phase: str | None = None,
    line: int = 1,
    seconds: float = 10.0,
    thorough: bool = False,
    device: Device | None = None,
) -> Card:
    """Try an edited kernel of op `op_name`; `like` and the launch as `mine.edit` takes them.

    `inspect` counts requests and sectors, `time` measures it alone, `engine` inside `phase`; each against the parent,
    at the size of `model`. `thorough` sanitizes every shape, however long that takes. `line`: see Edit. `seconds` that
    a launch may take: the sanitizer gives up well before. `device`: the worker's by default. What is wrong with the
    kernel is on the card. Raises LabError for an op, variant, model or phase that there is not, and for a launch that
    cannot be.
    """
    made = edit(
        op_name, source, like, name=name, threads=threads, rows_per_block=rows_per_block, grid=grid,
        shared_bytes=shared_bytes, cooperative=cooperative, line=line,
    )  # fmt: skip
    if inspect or time:
        config_of(model)  # a model that there is not is better told now
    if engine:
        check_engine(op_name, phase or DEFAULT_PHASE)
        child.doing(f"{LOADING} the model for kernel {made.name}", LOAD_SECONDS)
        child.model(model)
    device = device or child.device()
    card = Card(made, device.properties.name, geometry_words(made), ())
    child.doing(f"{COMPILER}, at kernel {made.name},", COMPILE_SECONDS)
    compiles, kernel = compile_edit(device, made, inspect)
    if kernel is None:
        return _ended(card, compiles)
    limit = float("inf") if thorough else SANITIZER_SECONDS
    safe, grave = _safe(made, limit, min(SANITIZER_TIMEOUT, seconds / 2))
    if grave:
        return _ended(card, compiles, safe)
    right = _right(device, kernel, made)
    if right.answer == "no" or safe.answer == "no":
        return _ended(card, compiles, safe, right)
    try:
        card = _measured(card, device, inspect, time, engine, model, phase)
    except LabError as error:
        return _ended(
            card, compiles, safe, Stage("right", "no", f"it fails at a model's size. {error}")
        )
    return replace(card, stages=(compiles, safe, right, _faster(card, device)))


def ended_card(made: Edit, says: str, compiled: bool) -> Card:
    """The card of a kernel in whose trial the worker ended: `says` what happened, and on which launch."""
    card = Card(made, "", geometry_words(made), ())
    if not compiled:
        return _ended(card, Stage("compiles", "no", says))
    return _ended(card, Stage("compiles", "yes", "it did."), Stage("safe", "no", says))


def _ended(card: Card, *stages: Stage) -> Card:
    """The card with what was found; the other questions stay open."""
    known = {s.question: s for s in stages}
    bad = next(s.question for s in stages if s.answer == "no")
    open_ = f"not tried, since it {'does not compile' if bad == 'compiles' else f'is not {bad}'}"
    rest = (known.get(q, Stage(q, "unknown", f"{open_}.")) for q in QUESTIONS)
    return replace(card, stages=tuple(rest))


# ---- safe? ----


def _safe(made: Edit, limit: float, timeout: float) -> tuple[Stage, bool]:
    """The sanitizer over the odd shapes, up to the first with findings; and whether they are grave."""
    reason = why_no_sanitizer()
    if reason is not None:
        return Stage("safe", "unknown", f"not checked: {reason}"), False
    source, variant = Source(made.text, f"{made.name}.cu", DEFINES), made.variant()
    began, tried = clock.perf_counter(), 0
    all_cases = odd_cases(made.op)
    for case in all_cases:
        if tried and clock.perf_counter() - began > limit:
            break
        tried += 1
        # Its own limits end each launch, in three lane orders; then it looks lines up.
        child.doing(f"{launch_of(made, case)} in the sanitizer", 10 * timeout + 30)
        try:
            report = sanitize(
                source, op(made.op).grid(variant, case), variant.threads, case,
                shared_bytes=variant.shared_bytes(case), cooperative=variant.cooperative,
                uninitialised=poisoned(op(made.op), case), timeout=timeout,
            )  # fmt: skip
        except LabError as error:
            says = f"it cannot be launched at {shape_words(case)}. {error}"
            return Stage("safe", "no", says), True
        if report.findings:
            remarks = tuple(_of_finding(f) for f in report.findings[:REMARKS])
            more = len(report.findings) - REMARKS
            remarks += (Remark(f"{more} more findings."),) if more > 0 else ()
            first = report.findings[0]
            at = f" in line {first.line}" if first.line else ""
            says = f"{first.kind}{at}, at {shape_words(case)} {report.launch}."
            return Stage("safe", "no", says, remarks), any(f.kind in GRAVE for f in report.findings)
    shapes = f"{tried} of {len(all_cases)} shapes" if tried < len(all_cases) else f"{tried} shapes"
    return Stage(
        "safe", "yes", f"the sanitizer finds nothing at {shapes}, in 3 lane orders."
    ), False


def _of_finding(f: Finding) -> Remark:
    times = f" ({f.count:,} times)" if f.count > 1 else ""
    return Remark(f"{f.kind}{times}: {f.explanation}", f.line, f.text)


# ---- right? ----


def _right(device: Device, kernel: Kernel, made: Edit) -> Stage:
    wrong: list[Remark] = []
    all_cases = odd_cases(made.op)
    for case in all_cases:
        shape = shape_words(case)
        child.doing(f"{launch_of(made, case)} at {shape}")
        try:
            found = list(faults(device, kernel, made, case))
        except LabError as error:
            return Stage("right", "no", f"it fails at {shape}. {error}")
        wrong += [Remark(f"{shape}: {f}") for f in found[:1]]
    if not wrong:
        says = f"equal to the reference at {len(all_cases)} odd shapes, outputs poisoned, canaries around every array."
        return Stage("right", "yes", says)
    says = f"at {len(wrong)} of {len(all_cases)} shapes; {wrong[0].says}"
    return Stage("right", "no", says, tuple(wrong[1:MORE_SHAPES]))


# ---- faster? ----


def _measured(
    card: Card,
    device: Device,
    inspect: bool,
    time: bool,
    engine: bool,
    model: str | None,
    phase: str | None,
) -> Card:
    """The card with what was asked for."""
    made = card.edit
    if inspect:
        child.doing(f"Counting the accesses of kernel {made.name}", TRACE_SECONDS)
        counts, counted = count(made, model)
        card = replace(card, counts=counts, counted=counted)
    if time:
        child.doing(f"{MAKING} arguments for kernel {made.name}", LOAD_SECONDS)
        card = replace(card, alone=alone(device, made, model))
    if engine:
        child.doing(f"{MAKING} engines for kernel {made.name}", LOAD_SECONDS)
        inside = in_engine(device, made, child.model(model), phase or DEFAULT_PHASE)
        card = replace(card, engine=inside)
    return card


def _faster(card: Card, device: Device) -> Stage:
    """The engine's comparison where there is one: a gain that no token shows is none."""
    measured = card.engine or card.alone
    if measured is None:
        says = "not measured: --time measures it alone, --engine inside."
        return Stage("faster", "unknown", says)
    c = measured.comparison
    where = "inside the engine" if card.engine else "alone"
    says = f"{c.speedup:.3f} times as fast as {c.base} {where} (95 %: {c.low:.3f} to {c.high:.3f}): {c.verdict}."
    if device.properties.kind == "simt":
        return Stage("faster", "unknown", f"{says} This is {device.properties.times}.")
    return Stage("faster", "yes" if c.verdict == "keep" else "no", says)
