"""Decoding from phase 8b on, as `measure.decode` recorded it on an H200: times a token by phase and context.

Every sentence and picture here is made from the recorded run. Where there is none yet, it says `NOT_YET`.
"""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from sovereign_lab.devices import Properties
from sovereign_lab.errors import LabError
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.decode.facts import BASE, NO_GRAPHS, DecodeRun, named
from sovereign_lab.notebook import decode_board
from sovereign_lab.notebook.plots import BLUE, GREEN, TEXT, VERMILLION, styled
from sovereign_lab.notebook.runs import NO_FIGURE, here
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA
from sovereign_lab.notebook.table import Table

RECORDED = decode_board.RECORDED
NOT_YET = "not recorded yet"
TICKS = [100 * 10**decade * step for decade in range(3) for step in (1, 2, 5)]
LOOKS = (
    (VERMILLION, "circle", "dash"),
    (BLUE, "square", "solid"),
    (GREEN, "diamond", "dot"),
    (TEXT, "x", "dashdot"),
)


def recorded_decode_run() -> DecodeRun | None:
    """The recorded run; None where it is not there yet."""
    try:
        return decode_board.recorded_decode()
    except LabError:
        return None


def origin(run: DecodeRun | None) -> str:
    """ "NVIDIA H200, recorded 2026-12-01"."""
    return NOT_YET if run is None else decode_board.origin(run)


def _compared(run: DecodeRun | None, after: str, before: str, context: int) -> Comparison | None:
    """Two engines round by round; None where not recorded."""
    if run is None or run.find(after, context) is None or run.find(before, context) is None:
        return None
    return decode_board.comparison(run, after, before, context)


def ratio(
    run: DecodeRun | None, after: str, before: str, context: int = BASE
) -> tuple[float, float, float] | None:
    """How many times as fast `after` is: the median over the rounds, and its 95 % interval. None where not recorded."""
    found = _compared(run, after, before, context)
    return None if found is None else (found.speedup, found.low, found.high)


def verdict(run: DecodeRun | None, after: str, before: str, context: int = BASE) -> str:
    """Comparison.verdict: keep or revert where the whole interval lies past 1 % of gain or loss."""
    found = _compared(run, after, before, context)
    return NOT_YET if found is None else found.verdict


def said(run: DecodeRun | None, after: str, before: str, context: int = BASE) -> str:
    """A sentence: both times at a context, how many times as fast, the interval, and the verdict."""
    found = _compared(run, after, before, context)
    what = f"{named(after)} against {named(before)}, context {context:,}"
    if run is None or found is None:
        return f"{what}: {NOT_YET}"
    return (
        f"{what}: {run.us(before, context):,.1f} us -> {run.us(after, context):,.1f} us a token, "
        f"{found.speedup:.3f} times as fast (95 %: {found.low:.3f} to {found.high:.3f}, "
        f"{len(found.change_ms)} rounds): {found.verdict}"
    )


def saved(run: DecodeRun | None, after: str, before: str) -> str:
    """A sentence: the microseconds a token that `after` saves, context by context."""
    what = f"{named(before)} to {named(after)} saves"
    if run is None:
        return f"{what}: {NOT_YET}"
    found = {
        c: run.us(before, c) - run.us(after, c)
        for c in run.contexts
        if run.find(after, c) and run.find(before, c)
    }
    return f"{what} " + ", ".join(f"{us:,.0f} us at {c:,}" for c, us in found.items())


def times_table(run: DecodeRun | None, names: Sequence[str]) -> Table:
    """By engine: microseconds a token at each context, and the time of its bytes alone at the first one."""
    if run is None:
        return Table(["us a token"], [[NOT_YET]])
    rows = []
    for name in names:
        found = [run.find(name, context) for context in run.contexts]
        least = run.floor_us(name, run.contexts[0]) if name in run.heads else None
        cells = [f"{t.median:,.1f}" if t else NO_FIGURE for t in found]
        rows.append([named(name), *cells, "" if least is None else f"{least:,.1f}"])
    head = [
        "us a token",
        *(f"at {context:,}" for context in run.contexts),
        f"bytes alone, at {run.contexts[0]:,}",
    ]
    return Table(head, rows)


def picture(run: DecodeRun | None, names: Sequence[str], title: str) -> go.Figure | Table:
    """Microseconds a token by context, a line an engine, with 5 % and 95 % of the rounds."""
    if run is None:
        return Table([title], [[NOT_YET]])
    figure = go.Figure()
    for name, (colour, symbol, dash) in zip(names, LOOKS, strict=False):
        points = [t for t in (run.find(name, context) for context in run.contexts) if t]
        figure.add_scatter(
            x=[f"{t.context:,}" for t in points], y=[t.median for t in points], name=named(name),
            mode="lines+markers", line={"color": colour, "dash": dash},
            marker={"symbol": symbol, "size": 8, "color": colour},
            error_y={
                "type": "data", "symmetric": False, "color": colour,
                "array": [t.high - t.median for t in points],
                "arrayminus": [t.median - t.low for t in points],
            },
            hovertemplate=f"{named(name)}, context %{{x}}: %{{y:,.1f}} us<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(type="category", title_text="context, positions before")
    figure.update_yaxes(title_text="us a token", type="log", tickvals=TICKS)
    figure.update_layout(legend={"orientation": "h", "y": -0.25, "x": 0, "yanchor": "top"})
    return styled(figure, f"{title} ({origin(run)})", height=400).update_layout(margin={"b": 90})


def gains(
    run: DecodeRun | None, questions: Mapping[str, tuple[str, str]], context: int = BASE
) -> dict[str, float]:
    """Question -> how many times as fast (after, before); questions that the run does not answer are left out."""
    found = {what: ratio(run, *pair, context) for what, pair in questions.items()}
    return {what: value[0] for what, value in found.items() if value is not None}


def without_graphs(phase: str) -> str:
    """The engine of a phase whose launches come from Python, one by one."""
    return phase + NO_GRAPHS


def three_columns(
    run: DecodeRun | None,
    phases: tuple[str, str],
    here_rates: tuple[float, float],
    model: str,
    device: Properties,
    context: int = BASE,
) -> Table:
    """Two phases on the seed's GPU, in the recorded run at `context`, and here; `here_rates`: tok/s of `model`."""
    rows = [["model", TINYLLAMA.name, run.model if run else "", model]]
    for phase, rate in zip(phases, here_rates, strict=True):
        found = run.find(phase, context) if run else None
        recorded = f"{1e6 / found.median:,.1f} tok/s" if found else NOT_YET
        rows.append([f"phase {phase}", NO_FIGURE, recorded, f"{rate:,.2f} tok/s"])
    before, after = phases
    value = ratio(run, after, before, context)
    told = NOT_YET if value is None else f"{value[0]:.3f} times as fast"
    here_ratio = f"{here_rates[1] / here_rates[0]:.2f} times as fast"
    rows.append([f"{after} over {before}", NO_FIGURE, told, here_ratio])
    return Table(["", f"{GPU_NAME}, the seed's log", origin(run), here(device)], rows)


def texts_table(run: DecodeRun | None, names: Sequence[str]) -> Table:
    """By model and phase: the logits' distance to FP32, and how far the greedy text is 8b's, over the run's texts."""
    head = ["model", "phase", "logits off FP32's", "the same tokens", "then apart by", "allowed"]
    if run is None:
        return Table(head[:1], [[NOT_YET]])
    rows = []
    for t in run.texts:
        if t.name not in names:
            continue
        apart = ["", ""]
        if t.difference is not None:
            apart = [f"{t.difference.margin:.3f}", f"{t.difference.allowed:.3f}"]
        rows.append([t.model, t.name, f"{t.to_reference:.1e}", f"{t.same} of {t.tokens}", *apart])
    return Table(head, rows)
