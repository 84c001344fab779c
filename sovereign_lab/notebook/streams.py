"""What chapter 06 counts, draws and reads of recorded runs: WQ, WK and WV of a layer side by side."""

import inspect
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import plotly.graph_objects as go
from IPython.display import Markdown
from plotly.subplots import make_subplots

from sovereign_lab.devices import Properties
from sovereign_lab.devices.device import WARP
from sovereign_lab.engine import PHASES
from sovereign_lab.engine.forward import Call
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.static.occupancy import CARDS, Card, sm_of
from sovereign_lab.measure.streams import MODES, PROJECTIONS, edges, schedule
from sovereign_lab.models.model import Config, matrix_shapes
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.plots import BLUE, TEXT, VERMILLION, styled
from sovereign_lab.notebook.runs import Run, here, recorded_run
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA
from sovereign_lab.notebook.side_by_side import call_name, calls_of, one_layer
from sovereign_lab.notebook.table import Table

RUN = "2026-11-30-sm_90-streams"
GEMV = op("gemv_q4_0").variant("warp_per_row")
BOX = 0.84  # of the distance between two boxes
COLOURS = {"WQ": BLUE, "WK": VERMILLION, "WV": VERMILLION}
PALE = "rgba(127,127,127,0.15)"


def show_python(thing: object) -> Markdown:
    """The Python source of a function or class of the lab."""
    return Markdown(f"```python\n{textwrap.dedent(inspect.getsource(thing))}```")  # type: ignore[arg-type]


# ---- counts ----


def schedule_table(config: Config, phases: Sequence[str] = ("3", "4")) -> Table:
    """Launches, forks, events and a graph's edges of one token, by phase."""
    counts = {phase: asdict(schedule(calls_of(phase, config)[0])) for phase in phases}
    words = {
        "launches": "launches",
        "forks": "forks into streams",
        "records": "events recorded",
        "waits": "waits for an event",
        "edges": "edges of the graph",
    }
    rows = [[word, *(str(counts[p][key]) for p in phases)] for key, word in words.items()]
    return Table(["a token", *(f"phase {p}" for p in phases)], rows)


def card(name: str) -> Card:
    """A GPU of the occupancy table by its name; raises LabError for one that is not in it."""
    found = next((c for c in CARDS if c.name == name), None)
    if found is None:
        raise LabError(f"No GPU {name!r} here; there are {', '.join(c.name for c in CARDS)}.")
    return found


def held_at_most(gpu: Card, threads: int) -> int:
    """Blocks of `threads` that a GPU holds at once if registers and shared memory set no limit."""
    sm = sm_of(gpu.arch)
    return gpu.sms * min(sm.blocks, sm.warps // -(-threads // WARP))


def blocks(config: Config) -> dict[str, int]:
    """Blocks that each of the three projections launches, at phase 3."""
    shapes = matrix_shapes(config)
    return {
        name: op("gemv_q4_0").grid(GEMV, {"rows": shapes[f"w{output}"][0]})
        for name, output in PROJECTIONS.items()
    }


def block_table(config: Config, gpus: Sequence[str] = (GPU_NAME, "H200")) -> Table:
    """Blocks by launch, and their share of those that a GPU holds at once at most."""
    cards = [card(name) for name in gpus]
    held = [held_at_most(c, GEMV.threads) for c in cards]
    launched = blocks(config)
    launched["all three"] = sum(launched.values())
    rows = [[name, str(n), *(f"{n / h:.0%}" for h in held)] for name, n in launched.items()]
    heads = [f"of {h:,} on an {c.name}, {c.sms} SMs" for c, h in zip(cards, held, strict=True)]
    return Table(["launch", "blocks", *heads], rows)


def hidden_bytes(config: Config) -> int:
    """Bytes of all WK and WV that a token reads, in Q4_0."""
    rows, cols = matrix_shapes(config)["wk"]
    return 2 * config.layers * rows * cols // BLOCK_WEIGHTS * BLOCK_BYTES


@dataclass(frozen=True)
class Best:
    """The most that three streams can win: WK and WV cost nothing. Microseconds of a token, and as a speed-up."""

    us: float
    pass_us: float

    @property
    def speedup(self) -> float:
        """The whole pass over the pass without them."""
        return self.pass_us / (self.pass_us - self.us)


def best_case(gemv: Run, passes: Run) -> Best:
    """From recorded runs: both projections alone with cold weights, once a layer, out of a pass at position 16."""
    rows, cols = matrix_shapes(TINYLLAMA)["wk"]
    alone = gemv.value(f"gemv_q4_0 warp_per_row, {rows:,} x {cols:,}, stream")
    return Best(2 * TINYLLAMA.layers * alone, 1e3 * passes.value("  phase 3, at position 16"))


# ---- a picture of the schedule ----


def schedule_picture(config: Config, title: str, phases: Sequence[str] = ("3", "4")) -> go.Figure:
    """One layer's launches by phase, from the engine's own calls: what stands under each other may run side by side.

    A box is a launch with its blocks, an arrow says which one it waits for.
    """
    one = replace(config, layers=1)
    lanes = [PHASES[p].streams for p in phases]
    figure = make_subplots(
        rows=len(phases),
        subplot_titles=[str(PHASES[p]) for p in phases],
        row_heights=[float(n) for n in lanes],
        vertical_spacing=0.16,
    )
    for row, phase in enumerate(phases, 1):
        calls, names = calls_of(phase, one)
        layer = one_layer(calls, one)
        _draw(figure, row, layer, [call_name(c, names) for c in layer], PHASES[phase].plan)
        figure.update_yaxes(range=[PHASES[phase].streams - 0.5, -0.5], row=row, col=1)
    figure.update_xaxes(visible=False, range=[-0.6, len(layer) - 0.4])
    figure.update_yaxes(visible=False)
    figure.update_layout(showlegend=False)
    figure = styled(figure, title, height=150 + 60 * sum(lanes))
    return figure.update_layout(margin={"l": 10, "r": 10, "b": 10, "t": 80})


def _draw(
    figure: go.Figure,
    row: int,
    calls: Sequence[Call],
    labels: Sequence[str],
    plan: Mapping[str, str],
) -> None:
    arrows = edges(calls)
    at: list[tuple[int, int]] = []  # step and lane of each call
    for i, call in enumerate(calls):
        step = 1 + max((at[a][0] for a, b in arrows if b == i), default=-1)
        at.append((step, call.branch or 0))
    for a, b in arrows:
        (x0, y0), (x1, y1) = at[a], at[b]
        figure.add_annotation(
            x=x1 - BOX / 2, y=y1, ax=x0 + BOX / 2, ay=y0, showarrow=True, arrowhead=2, arrowsize=0.8,
            arrowwidth=1, arrowcolor=TEXT, text="", axref=f"x{row}", ayref=f"y{row}", xref=f"x{row}",
            yref=f"y{row}",
        )  # fmt: skip
    for call, label, (x, y) in zip(calls, labels, at, strict=True):
        count = op(call.op).grid(op(call.op).variant(plan[call.op]), call.args)
        colour = COLOURS.get(label, PALE)
        left, right = x - BOX / 2, x + BOX / 2
        figure.add_scatter(
            x=[left, right, right, left, left], y=[y - 0.36, y - 0.36, y + 0.36, y + 0.36, y - 0.36],
            mode="lines", fill="toself", fillcolor=colour, line={"width": 0}, hoveron="fills",
            hoverinfo="text", text=f"{label}: {count} blocks", row=row, col=1,
        )  # fmt: skip
        ink = "#FFFFFF" if label in COLOURS else TEXT
        figure.add_scatter(
            x=[x], y=[y], mode="text", text=[f"{label}<br>{count}"], textfont={"size": 10, "color": ink},
            hoverinfo="skip", row=row, col=1,
        )  # fmt: skip


# ---- the recorded run ----


@dataclass(frozen=True)
class StreamsRun:
    """A run of `sovereign_lab.measure.streams`: its figures, and each comparison with its mode."""

    run: Run
    comparisons: tuple[tuple[str, Comparison], ...]

    def comparison(self, mode: str) -> Comparison:
        """Phase 4 against phase 3 in one of the modes."""
        return next(c for m, c in self.comparisons if m == mode and c.base != c.change)


def recorded_streams(name: str = RUN) -> StreamsRun:
    """A run by its file's name under data/runs/, without ".json". Raises LabError where there is none."""
    content = json.loads(in_checkout(f"data/runs/{name}.json").read_text())
    comparisons = []
    for kept in content["comparisons"]:
        facts = {key: kept[key] for key in Comparison.__dataclass_fields__}
        facts |= {key: tuple(kept[key]) for key in ("base_ms", "change_ms")}
        comparisons.append((kept["mode"], Comparison(**facts)))
    return StreamsRun(recorded_run(name), tuple(comparisons))


def verdict_table(streams: StreamsRun) -> Table:
    """Every comparison: medians, the ratio with its interval, and the verdict that follows from it."""
    rows = [
        [
            f"{c.change} against {c.base}",
            mode,
            f"{np.median(c.base_ms):.3f} ms -> {np.median(c.change_ms):.3f} ms",
            f"{c.speedup:.4f}",
            f"{c.low:.4f} to {c.high:.4f}",
            c.verdict,
        ]
        for mode, c in streams.comparisons
    ]
    return Table(["compared", "launches", "a pass", "before / after", "95 %", "verdict"], rows)


def projection_table(streams: StreamsRun) -> Table:
    """The projections of a layer: each alone, WQ with nothing beside it, all in turn, all side by side; in a graph."""
    value = streams.run.value
    rows = [
        [f"{name} alone", f"{value(f'{name} alone, in a graph'):.2f} us"] for name in PROJECTIONS
    ]
    least = value("rmsnorm, then WQ and no more, in a graph")
    rows.append(["rmsnorm, then WQ and no more", f"{least:.2f} us"])
    for how in ("in turn", "side by side"):
        us = value(f"rmsnorm, then WQ, WK and WV {how}, in a graph")
        rows.append([f"rmsnorm, then all three {how}", f"{us:.2f} us"])
    return Table(["a layer", "time"], rows)


def fork_cost(streams: StreamsRun, mode: str) -> float:
    """Microseconds that a fork adds to four empty launches, one and then three; below 0 where it takes some off."""
    what = "an empty kernel, then three {}, " + mode
    return streams.run.value(what.format("side by side")) - streams.run.value(
        what.format("in turn")
    )


def cost_table(streams: StreamsRun) -> Table:
    """By mode: what a fork adds to empty kernels, and how long the host is busy with a pass."""
    rows = []
    for mode in MODES.values():
        host = [streams.run.value(f"phase {p}, the host's part of a pass, {mode}") for p in "34"]
        rows.append(
            [mode, f"{fork_cost(streams, mode):+.2f} us", *(f"{us:,.0f} us" for us in host)]
        )
    head = ["launches", "a fork adds", "the host's part, phase 3", "the host's part, phase 4"]
    return Table(head, rows)


def won_at_most(streams: StreamsRun) -> Best:
    """As measured in the pass itself: all launches, against all but WK and WV."""
    name = "phase 3, a pass in a graph, "
    whole, without = (
        1e3 * streams.run.value(name + what) for what in ("all launches", "without WK and WV")
    )
    return Best(whole - without, whole)


def won(streams: StreamsRun, mode: str) -> float:
    """Microseconds by which the three streams make a pass shorter, of the medians; below 0 where it becomes longer."""
    c = streams.comparison(mode)
    return 1e3 * float(np.median(c.base_ms) - np.median(c.change_ms))


def hidden_share(streams: StreamsRun) -> float:
    """How much of what WK and WV add to a layer in turn is gone side by side: 0 none, 1 all of it."""
    least, in_turn, side = (
        streams.run.value(f"rmsnorm, then {what}, in a graph")
        for what in ("WQ and no more", "WQ, WK and WV in turn", "WQ, WK and WV side by side")
    )
    return (in_turn - side) / (in_turn - least)


def three_columns(
    streams: StreamsRun, measured: Mapping[str, float], model: str, device: Properties
) -> Table:
    """Phases 3 and 4 on the seed's GPU, in the recorded run, and here; `measured` is phase -> tok/s of `model`."""
    seed = {p: PHASES[p].seed_tokens_per_second or 0.0 for p in "34"}
    c = streams.comparison(MODES[True])
    rates = {"3": 1e3 / float(np.median(c.base_ms)), "4": 1e3 / float(np.median(c.change_ms))}
    columns = [
        (f"{GPU_NAME}, the seed's log", TINYLLAMA.name, seed),
        (f"{streams.run.origin}, in a graph", streams.run.model, rates),
        (here(device), model, dict(measured)),
    ]
    rows = [["model", *(name for _, name, _ in columns)]]
    for phase in "34":
        rows.append([f"phase {phase}", *(f"{rates[phase]:.2f} tok/s" for _, _, rates in columns)])
        rows.append(["", *(f"{1e3 / rates[phase]:.2f} ms" for _, _, rates in columns)])
    ratios = [f"{rates['4'] / rates['3']:.2f} times as fast" for _, _, rates in columns]
    if device.kind == "simt":
        ratios[-1] = "the same work, in turn"
    rows.append(["4 over 3", *ratios])
    return Table(["", *(name for name, _, _ in columns)], rows)
