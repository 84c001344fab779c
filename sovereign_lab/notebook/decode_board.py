"""The scoreboard past the seed: all phases in one recorded run, and llama.cpp: tables, and what they say in words."""

from collections.abc import Sequence

import numpy as np

from sovereign_lab.devices import Properties
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.measure.compare import Comparison, median_interval
from sovereign_lab.measure.decode import BASE, LLAMA_CPP, DecodeRun, Stages
from sovereign_lab.measure.decode.facts import NO_GRAPHS, named
from sovereign_lab.measure.decode.turns import decode_us
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.runs import NO_FIGURE, here
from sovereign_lab.notebook.scoreboard import CHAPTERS as SEED_CHAPTERS
from sovereign_lab.notebook.seed import GPU_NAME
from sovereign_lab.notebook.table import Table

RECORDED = "2026-12-01-sm_90-decode"
CHAPTERS = SEED_CHAPTERS | {
    "9a": "15", "9b": "16", "10": "19", "11": "20", "12": "21", "13a": "22", "13b": "22", "13c": "22"
}  # fmt: skip
"""The chapter that builds and measures a step."""

# What the lab set itself before these phases were built, for an H200 and TinyLlama's shape.
MOST_US, AIM_US, SHORT = 400, 250, (16, 128, 256)
MOST_ADDED = {2048: 40, 4000: 80}


def recorded_decode() -> DecodeRun:
    """The recorded run. Raises LabError where it is not there."""
    return DecodeRun.read(in_checkout(f"data/runs/{RECORDED}.json"))


def origin(run: DecodeRun) -> str:
    """ "NVIDIA H200, recorded 2026-12-01"."""
    return f"{run.environment['device']}, recorded {run.environment['date']}"


# ---- steps ----


def ladder(run: DecodeRun) -> list[str]:
    """The phases of the run in the ladder's order, each with a graph."""
    return [name for name in PHASES if name in run.names]


def base_of(run: DecodeRun, name: str) -> str | None:
    """The nearest phase below that was measured; None for the first. 10 stands on 9c, which decodes as 9b does."""
    base = PHASES[name].base
    while base is not None and base not in run.names:
        base = PHASES[base].base
    return base


def comparison(run: DecodeRun, name: str, over: str, context: int) -> Comparison:
    """Two engines of the run, round by round. KeyError where one was not measured there."""
    base, change = run.find(over, context), run.find(name, context)
    if base is None or change is None:
        raise KeyError(f"{name} and {over} at context {context}")
    found = median_interval(np.array(base.us) / np.array(change.us))
    theirs, ours = (tuple(us / 1e3 for us in t.us) for t in (base, change))
    device = run.environment["device"]
    return Comparison(named(over), named(name), device, theirs, ours, *found)


def fastest(run: DecodeRun, context: int) -> str:
    """Our fastest engine at a context."""
    ours = [n for n in run.names if n != LLAMA_CPP and run.find(n, context) is not None]
    return min(ours, key=lambda name: run.us(name, context))


def ladder_table(run: DecodeRun, context: int = BASE) -> Table:
    """Every phase at one context: time, speed, over its base with the interval, over 8b and over llama.cpp."""
    rows = []
    peer = LLAMA_CPP in run.names
    for name in ladder(run):
        base, us = base_of(run, name), run.us(name, context)
        step = comparison(run, name, base, context) if base else None
        rows.append(
            [
                name,
                PHASES[name].title,
                f"{us:,.0f} us",
                f"{1e6 / us:,.0f}",
                f"{step.speedup:.3f} over {base}" if step else "",
                f"{step.low:.3f} to {step.high:.3f}" if step else "",
                f"{run.gain(name, '8b', context):.2f}" if "8b" in run.names else "",
                f"{run.gain(name, LLAMA_CPP, context):.2f}" if peer else "not measured",
                CHAPTERS.get(name, ""),
            ]
        )
    if peer:
        us = run.us(LLAMA_CPP, context)
        ratio = f"{run.gain(LLAMA_CPP, '8b', context):.2f}" if "8b" in run.names else ""
        rows.append([LLAMA_CPP, "", f"{us:,.0f} us", f"{1e6 / us:,.0f}", "", "", ratio, "1.00", ""])
    for name, reason in run.refused.items():
        rows.append([name, PHASES[name].title, "did not run", reason, "", "", "", "", ""])
    head = ["phase", "", "a token", "tok/s", "times as fast", "95 %", "over 8b", "over llama.cpp"]
    return Table([*head, "chapter"], rows)


def kept_table(run: DecodeRun, short: int = BASE, long: int = 2048) -> Table:
    """The steps past the seed: what was measured at a short and a long context, what that says, what was decided."""
    rows = []
    for name in ladder(run):
        base = base_of(run, name)
        if base is None or not PHASES[name].planned:
            continue
        both = [comparison(run, name, base, c) for c in (short, long) if run.find(name, c)]
        verdicts = [c.verdict for c in both]
        cells = [f"{c.speedup:.3f}, {c.verdict}" for c in both] + [""] * (2 - len(both))
        rows.append(
            [f"{name} over {base}", PHASES[name].title, *cells, PHASES[name].verdict,
             _why(PHASES[name].verdict, verdicts, long)]
        )  # fmt: skip
    return Table(["step", "", f"at {short:,}", f"at {long:,}", "decided", "on what grounds"], rows)


def _why(decided: str, verdicts: Sequence[str], long: int) -> str:
    if decided in verdicts[:1]:
        return "by its own figure"
    if decided in verdicts:
        return f"by the figure at {long:,}"
    if decided == "keep":
        return "for what the next steps stand on: this run alone would not keep it"
    return "against this run's figures: see its chapter"


def context_table(run: DecodeRun) -> Table:
    """What each context adds to a token over context BASE, in microseconds."""
    late = [c for c in run.contexts if c > BASE]
    rows = []
    for name in [*ladder(run), *(n for n in run.names if n == LLAMA_CPP)]:
        if all(run.find(name, c) is None for c in late):
            continue
        cells = []
        for context in late:
            us = run.added(name, context)
            cells.append("" if us is None else f"{us:+,.1f} us")
        last = run.find(name, run.contexts[-1])
        rows.append([name, *cells, f"{last.median:,.0f} us" if last else ""])
    return Table(
        ["phase", *(f"{c:,} adds" for c in late), f"a token at {run.contexts[-1]:,}"], rows
    )


def floor_table(run: DecodeRun, context: int = BASE) -> Table:
    """Bytes of a token, their time at the GPU's bandwidth, and the share of the measured time that this is."""
    rows = []
    for name in [*ladder(run), *(n for n in run.names if n == LLAMA_CPP)]:
        floor_us = run.floor_us(name, context)
        rows.append(
            [
                name,
                f"{run.nbytes(name, context) / 1e6:,.1f} MB",
                "bandwidth not known" if floor_us is None else f"{floor_us:,.0f} us",
                f"{run.us(name, context):,.0f} us",
                "" if floor_us is None else f"{floor_us / run.us(name, context):.1%}",
            ]
        )
    return Table(["phase", "bytes a token", "floor", "measured", "of the floor's speed"], rows)


def peer_table(run: DecodeRun) -> Table:
    """llama.cpp and our fastest engine at each context, in turn; why there is no llama.cpp where there is none."""
    if LLAMA_CPP not in run.names:
        return Table([LLAMA_CPP], [[f"did not run: {run.peer_reason}"]])
    rows = []
    for context in run.contexts:
        name = fastest(run, context)
        step = comparison(run, name, LLAMA_CPP, context)
        rates = [f"{1e6 / run.us(n, context):,.0f} tok/s" for n in (LLAMA_CPP, name)]
        rows.append(
            [f"{context:,}", *rates, name, f"{step.speedup:.3f}", f"{step.low:.3f} to {step.high:.3f}"]
        )  # fmt: skip
    return Table(["context", LLAMA_CPP, "ours", "phase", "times as fast", "95 %"], rows)


def graphs_table(run: DecodeRun) -> Table:
    """Engines that ran with a graph and without: us a token."""
    rows = []
    for name in run.names:
        if name.endswith(NO_GRAPHS):
            graph = name.removesuffix(NO_GRAPHS)
            for context in run.contexts:
                step = comparison(run, graph, name, context)
                cells = [f"{run.us(n, context):,.0f} us" for n in (name, graph)]
                rows.append([graph, f"{context:,}", *cells, f"{step.speedup:.2f}"])
    return Table(["phase", "context", "launched from Python", "a graph", "times as fast"], rows)


# ---- the aims ----


def aims(run: DecodeRun) -> list[tuple[str, float, float]]:
    """What was to be reached, at most, and what the last phase measures: (what, limit, measured), us."""
    name = ladder(run)[-1]
    short = [run.us(name, c) for c in SHORT if run.find(name, c)]
    found: list[tuple[str, float, float]] = [
        (f"phase {name}, the slowest context of {SHORT[0]} to {SHORT[-1]}, to be met", MOST_US, max(short)),
        ("the same, the aim", AIM_US, max(short)),
    ]  # fmt: skip
    for context, most in MOST_ADDED.items():
        added = run.added(name, context)
        if added is not None:
            found.append((f"phase {name}, {context:,} over {BASE}, to be met", most, added))
    return found


def aims_table(run: DecodeRun) -> Table:
    """Each aim, and whether it was reached."""
    rows = [
        [what, f"{most:,.0f} us", f"{us:,.1f} us", "yes" if us <= most else "NO"]
        for what, most, us in aims(run)
    ]
    return Table(["aim", "at most", "measured", "reached"], rows)


# ---- stages ----

KINDS = {
    ": product": "multiplying",
    ": barrier": "this block's warps wait for each other",
    ": sums and messages": "sums, and telling them",
    ": take x": "waiting for messages, norm, int8",
    ": take attended": "waiting for messages, norm, int8",
    ": take hidden": "waiting for messages, norm, int8",
    "attention": "attention, its messages included",
}
"""How a stage's name ends -> what is done in it."""


def kind(stage: str) -> str:
    """What is done in a stage."""
    return next(what for end, what in KINDS.items() if stage.endswith(end))


def by_kind(found: Stages) -> dict[str, float]:
    """What is done -> microseconds of a token, in all layers; the head and the rest of a token besides."""
    totals = dict.fromkeys(KINDS.values(), 0.0)
    for stage, us in found.us.items():
        totals[kind(stage)] += sum(us)
    totals["the head"] = found.head_us
    totals["start, and the best token of all blocks"] = found.start_us + found.best_us
    return totals


def stage_table(found: Stages) -> Table:
    """The stages of a layer, the median over layers, and what all layers spend on each."""
    rows = [
        [stage, kind(stage), f"{found.median(stage):.2f} us", f"{sum(us):,.1f} us"]
        for stage, us in found.us.items()
    ]
    rows.append(
        ["all", "", f"{found.layer_us:.2f} us", f"{sum(map(sum, found.us.values())):,.1f} us"]
    )
    return Table(["stage", "what is done", "a layer", "all layers"], rows)


def kinds_table(run: DecodeRun) -> Table:
    """What a token's time goes into, at each context whose stages were stamped."""
    columns = {f"block {s.block}, at {s.context:,}": by_kind(s) for s in run.stages}
    rows = []
    for what in next(iter(columns.values())):
        cells = [
            f"{of[what]:,.1f} us, {of[what] / sum(of.values()):.0%}" for of in columns.values()
        ]
        rows.append([what, *cells])
    rows.append(["all", *(f"{sum(of.values()):,.1f} us" for of in columns.values())])
    return Table(["", *columns], rows)


# ---- texts ----


def text_table(run: DecodeRun) -> Table:
    """Logits and greedy text of every phase, on every model that writes text."""
    rows = []
    for t in run.texts:
        word = ""
        if (d := t.difference) is not None:
            word = (
                f"margin {d.margin:.2g}, rounding explains {d.allowed:.2g}: "
                f"{'a near tie' if d.near_tie else 'NO near tie'}"
            )
        rows.append(
            [
                t.model, t.name, f"{t.to_reference:.1e}", f"{t.to_rounded:.1e}", f"{t.to_8b:.1e}",
                f"{t.same} of {t.tokens}", word,
            ]
        )  # fmt: skip
    head = [
        "model",
        "phase",
        "off the reference",
        "where it rounds alike",
        "off 8b",
        "tokens as 8b's",
        "first difference",
    ]
    return Table(head, rows)


# ---- sentences that the figures decide ----


def summary(run: DecodeRun) -> str:
    """What the run shows, in sentences: every number and every "faster" is the run's."""
    last = ladder(run)[-1]
    lines = []
    if "8b" in run.names:
        lines.append(
            f"Phase {last} takes {run.us(last, BASE):,.0f} us a token at context {BASE}, "
            f"{run.gain(last, '8b', BASE):.2f} times as fast as phase 8b."
        )
    if LLAMA_CPP in run.names:
        ratios = {c: run.gain(fastest(run, c), LLAMA_CPP, c) for c in run.contexts}
        ahead = [c for c, ratio in ratios.items() if ratio > 1]
        where = (
            "every measured context"
            if len(ahead) == len(ratios)
            else f"{len(ahead)} of {len(ratios)} contexts"
        )
        lines.append(
            f"Our fastest phase is ahead of llama.cpp at {where}: {min(ratios.values()):.2f} to "
            f"{max(ratios.values()):.2f} times as fast."
        )
    floor_us = run.floor_us(last, BASE)
    if floor_us is not None:
        lines.append(
            f"Its bytes alone take {floor_us:,.0f} us: it runs at {floor_us / run.us(last, BASE):.0%} of what "
            "the memory allows."
        )
    for context in MOST_ADDED:
        added = run.added(last, context)
        if added is not None:
            lines.append(f"Context {context:,} adds {added:,.0f} us to context {BASE}.")
    return " ".join(lines)


def biggest_steps(run: DecodeRun, context: int = BASE) -> list[tuple[str, float]]:
    """Steps past phase 8b by microseconds saved, the most first; a step that costs time is negative."""
    order = ladder(run)
    late = order[order.index("8b") + 1 :] if "8b" in order else order
    saved = [
        (name, run.us(base, context) - run.us(name, context))
        for name in late
        if (base := base_of(run, name)) is not None
    ]
    return sorted(saved, key=lambda step: -step[1])


def steps_sentence(run: DecodeRun, context: int = BASE) -> str:
    """Which step past phase 8b saved the most at a context, and which saved nothing."""
    steps = biggest_steps(run, context)
    name, us = steps[0]
    text = f"At context {context:,} the step that saves the most is {name}, {PHASES[name].title}: {us:,.0f} us a token."
    if lost := [f"{n} ({-saved:,.0f} us slower)" for n, saved in steps if saved < 0]:
        text += f" At that context these cost time: {', '.join(lost)}."
    return text


def held_back(run: DecodeRun) -> str:
    """What the time of the last phase goes into, by the stamps; why there are none where there are none."""
    if not run.stages:
        return f"No stages were recorded: {run.stages_reason}"
    found = run.stages[0]
    parts = by_kind(found)
    order = sorted(parts, key=lambda what: -parts[what])
    total = sum(parts.values())
    first = "; ".join(
        f"{what} {parts[what]:,.0f} us ({parts[what] / total:.0%})" for what in order[:3]
    )
    text = (
        f"At context {found.context:,} block {found.block} of {found.blocks} spends the most on: {first}. "
        f"Multiplying takes {parts['multiplying']:,.0f} us of {total:,.0f}."
    )
    floor_us = run.floor_us(found.name, found.context)
    if floor_us is not None:
        text += (
            f" All the bytes together would take {floor_us:,.0f} us at the memory's full speed, {floor_us / total:.0%} "
            "of it."
        )
    return text


# ---- this machine ----


def here_us(
    engine: Engine, phases: Sequence[str], context: int = 16, tokens: int = 2
) -> dict[str, float]:
    """Phase -> microseconds a token on the engine's device, the better of two."""
    found = {}
    for phase in phases:
        at_phase = engine.with_phase(phase)
        found[phase] = min(decode_us(at_phase, context, tokens) for _ in range(2))
    return found


def columns(
    run: DecodeRun, mine: dict[str, float], model: str, device: Properties, context: int = 16
) -> Table:
    """The seed, the recorded run, and here: tokens a second of the phases in `mine`."""
    rows = [["model", "TinyLlama-1.1B", run.model, model]]
    for phase, us in mine.items():
        seed = PHASES[phase].seed_tokens_per_second
        known = run.find(phase, context)
        rows.append(
            [
                f"phase {phase}",
                f"{seed:.2f} tok/s" if seed else NO_FIGURE,
                f"{1e6 / known.median:,.0f} tok/s" if known else "not measured",
                f"{1e6 / us:.2f} tok/s",
            ]
        )
    return Table(["", f"{GPU_NAME}, the seed's log", origin(run), here(device)], rows)
