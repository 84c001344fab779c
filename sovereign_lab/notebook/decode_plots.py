"""Pictures of a run of measure.decode: time by phase and by context, and the stages of the persistent kernel."""

import plotly.graph_objects as go

from sovereign_lab.measure.decode import LLAMA_CPP, DecodeRun, Stages
from sovereign_lab.measure.decode.facts import NO_GRAPHS
from sovereign_lab.notebook.decode_board import by_kind, kind, ladder, origin
from sovereign_lab.notebook.plots import BLUE, FAINT, GREEN, TEXT, VERMILLION, styled

# A colour and a pattern for each kind of stage: told apart without colour, too.
KIND_LOOKS = {
    "multiplying": (BLUE, ""),
    "waiting for messages, norm, int8": (VERMILLION, "/"),
    "attention, its messages included": (GREEN, "x"),
    "this block's warps wait for each other": ("#E69F00", "."),
    "sums, and telling them": ("#CC79A7", "-"),
    "the head": (TEXT, "|"),
    "start, and the best token of all blocks": ("#999999", "+"),
}
LOOKS = (
    ("circle", "solid"), ("square", "dash"), ("diamond", "dot"), ("cross", "dashdot"), ("x", "longdash"),
)  # fmt: skip


def by_phase(run: DecodeRun, context: int, first: str = "0") -> go.Figure:
    """A bar a phase from `first` on, us a token at a context, with 5 and 95 %; llama.cpp's line, each phase's floor."""
    names = ladder(run)
    names = names[names.index(first) :]
    found = [t for name in names if (t := run.find(name, context)) is not None]
    figure = go.Figure(
        go.Bar(
            x=[t.name for t in found],
            y=[t.median for t in found],
            marker_color=BLUE,
            name="measured",
            error_y={
                "array": [t.high - t.median for t in found],
                "arrayminus": [t.median - t.low for t in found],
                "color": TEXT,
            },
            text=[f"{t.median:,.0f}" for t in found],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="phase %{x}: %{y:,.1f} us a token<extra></extra>",
        )
    )
    floors = [(t.name, us) for t in found if (us := run.floor_us(t.name, context)) is not None]
    if floors:
        figure.add_scatter(
            x=[name for name, _ in floors], y=[us for _, us in floors], mode="markers",
            name="its bytes alone", marker={"symbol": "line-ew", "size": 22, "line": {"color": VERMILLION, "width": 3}},
            hovertemplate="phase %{x}: its bytes alone %{y:,.1f} us<extra></extra>",
        )  # fmt: skip
    if (peer := run.find(LLAMA_CPP, context)) is not None:
        figure.add_hline(
            y=peer.median, line={"color": TEXT, "dash": "dot", "width": 1.5},
            annotation_text=f"llama.cpp {peer.median:,.0f}", annotation_position="top right",
            annotation_font_color=TEXT,
        )  # fmt: skip
    figure.update_xaxes(type="category", title_text="phase", showgrid=False)
    top = max(t.high for t in found)
    figure.update_yaxes(title_text="us a token", range=[0, 1.12 * top], tickformat=",")
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom"})
    title = f"A token at context {context:,} ({origin(run)})"
    return styled(figure, title, height=420).update_layout(margin={"t": 80})


def by_context(run: DecodeRun, names: list[str]) -> go.Figure:
    """us a token against the context, both logarithmic: the engines in `names`, llama.cpp, and the last one's floor."""
    figure = go.Figure()
    shades = (VERMILLION, BLUE, GREEN, "#E69F00", "#CC79A7")
    ours = [n for n in names if n in run.names and not n.endswith(NO_GRAPHS)]
    for i, name in enumerate(ours):
        symbol, dash = LOOKS[i % len(LOOKS)]
        _line(figure, run, name, f"phase {name}", shades[i % len(shades)], symbol, dash)
    if LLAMA_CPP in run.names:
        _line(figure, run, LLAMA_CPP, LLAMA_CPP, TEXT, "star", "dot")
    floors = {c: us for c in run.contexts if (us := run.floor_us(ours[-1], c)) is not None}
    if floors:
        figure.add_scatter(
            x=list(floors), y=list(floors.values()), mode="lines", name=f"the bytes of {ours[-1]} alone",
            line={"color": TEXT, "width": 1}, hovertemplate="bytes alone at %{x:,}: %{y:,.1f} us<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(type="log", title_text="context", tickvals=run.contexts, tickformat=",")
    ticks = [50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000]
    figure.update_yaxes(type="log", title_text="us a token", tickvals=ticks, tickformat=",")
    return styled(figure, f"A token by context ({origin(run)})", height=440)


def _line(
    figure: go.Figure, run: DecodeRun, name: str, label: str, colour: str, symbol: str, dash: str
) -> None:
    found = [t for c in run.contexts if (t := run.find(name, c)) is not None]
    figure.add_scatter(
        x=[t.context for t in found], y=[t.median for t in found], mode="lines+markers", name=label,
        line={"color": colour, "dash": dash}, marker={"symbol": symbol, "size": 8, "color": colour},
        hovertemplate=f"{label}, at %{{x:,}}: %{{y:,.1f}} us<extra></extra>",
    )  # fmt: skip


def layer_stages(found: Stages, title: str) -> go.Figure:
    """The stages of one layer one behind the other, as the block passed them: the median over the layers, us."""
    figure = go.Figure()
    start, shown = 0.0, set[str]()
    for stage in found.us:
        us, what = found.median(stage), kind(stage)
        colour, pattern = KIND_LOOKS[what]
        figure.add_bar(
            y=["" if stage == "attention" else stage.partition(":")[0]], x=[us], base=[start], orientation="h",
            name=what, legendgroup=what, showlegend=what not in shown,
            marker={"color": colour, "pattern": {"shape": pattern, "bgcolor": colour, "fgcolor": "white", "size": 5}},
            hovertemplate=f"{stage}: {us:.2f} us, {what}<extra></extra>",
        )  # fmt: skip
        shown.add(what)
        start += us
    rows = list(dict.fromkeys("" if s == "attention" else s.partition(":")[0] for s in found.us))
    labels = [row or "attention" for row in rows]
    figure.update_yaxes(
        autorange="reversed", showgrid=False, categoryorder="array", categoryarray=rows,
        tickvals=rows, ticktext=labels,
    )  # fmt: skip
    figure.update_xaxes(title_text="us since the layer began")
    figure.update_layout(
        barmode="overlay", legend={"orientation": "h", "y": -0.25, "x": 0, "yanchor": "top"}
    )
    return styled(figure, title, height=400).update_layout(margin={"l": 90, "b": 130})


def kinds(run: DecodeRun) -> go.Figure:
    """What a token's time goes into: a bar for each context whose stages were stamped, and its bytes' time."""
    figure = go.Figure()
    names = [f"block {s.block}, at {s.context:,}" for s in run.stages]
    for what, (colour, pattern) in KIND_LOOKS.items():
        values = [by_kind(s)[what] for s in run.stages]
        figure.add_bar(
            y=names, x=values, orientation="h", name=what,
            marker={"color": colour, "pattern": {"shape": pattern, "bgcolor": colour, "fgcolor": "white", "size": 5}},
            hovertemplate=f"{what}, %{{y}}: %{{x:,.1f}} us<extra></extra>",
        )  # fmt: skip
    floors = [run.floor_us(s.name, s.context) for s in run.stages]
    if None not in floors:
        figure.add_scatter(
            y=names, x=floors, mode="markers", name="its bytes alone",
            marker={"symbol": "line-ns", "size": 40, "line": {"color": FAINT.replace("0.35", "1"), "width": 3}},
            hovertemplate="bytes alone, %{y}: %{x:,.1f} us<extra></extra>",
        )  # fmt: skip
    figure.update_layout(
        barmode="stack", legend={"orientation": "h", "y": -0.35, "x": 0, "yanchor": "top"}
    )
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure.update_xaxes(title_text="us of the last token of a launch")
    title = f"Phase {run.stages[0].name}: where a token's time goes ({origin(run)})"
    return styled(figure, title, height=190 + 60 * len(names)).update_layout(
        margin={"l": 140, "b": 150}
    )
