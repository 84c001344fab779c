"""Pictures of the scoreboard: the ladder, the roofline, speed over context, prompts, and the gap to llama.cpp."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sovereign_lab.engine import PHASES
from sovereign_lab.measure.ladder import LadderRun
from sovereign_lab.notebook.gap import Gap, Peer
from sovereign_lab.notebook.plots import BLUE, FAINT, GREEN, SERIES, TEXT, VERMILLION, styled
from sovereign_lab.notebook.scoreboard import Dot, Roof

# Colour, mark and line of the phases that share an attention kernel: told apart without colour, too.
ATTENTION = {
    "three_pass": (VERMILLION, "circle", "solid"),
    "split_values": (BLUE, "square", "dash"),
    "online_softmax": (GREEN, "diamond", "solid"),
}


def ratio_bars(columns: Mapping[str, Mapping[str, float]], title: str) -> go.Figure:
    """Bars of each phase's speed over phase 0 of the same machine: `columns` is machine -> phase -> ratio.

    Ratios only: tokens/s of two GPUs are no comparison of kernels.
    """
    phases = PHASES.measured()
    figure = go.Figure()
    for (name, ratios), colour in zip(columns.items(), SERIES * len(columns), strict=False):
        figure.add_bar(
            name=name, x=phases, y=[ratios.get(p) for p in phases], marker_color=colour,
            text=[f"{ratios[p]:.1f}" if p in ratios else "" for p in phases],
            textposition="outside", textangle=0, textfont_size=11, cliponaxis=False,
            hovertemplate=f"{name}, phase %{{x}}: %{{y:.2f}} times phase 0<extra></extra>",
        )  # fmt: skip
    figure.add_hline(y=1, line={"color": TEXT, "width": 1, "dash": "dot"})
    figure.update_layout(
        barmode="group", bargap=0.22, legend={"y": 1, "x": 0.01, "yanchor": "top", "xanchor": "left"},
    )  # fmt: skip
    top = max(ratio for ratios in columns.values() for ratio in ratios.values())
    figure.update_xaxes(type="category", title_text="phase", showgrid=False)
    # The first phases leave the upper left to the legend.
    figure.update_yaxes(title_text="times as fast as phase 0", range=[0, 1.15 * top])
    return styled(figure, title, height=400)


def roofline(panels: Mapping[str, tuple[Roof, Sequence[Dot]]], title: str) -> go.Figure:
    """Operations a second against operations a byte, both logarithmic: a panel a GPU, its roof and its dots."""
    figure = make_subplots(
        cols=len(panels), subplot_titles=list(panels), shared_yaxes=True, horizontal_spacing=0.04
    )
    work = np.geomspace(0.5, 100, 100)
    for col, (roof, dots) in enumerate(panels.values(), 1):
        slope = roof.gpu.bandwidth / 1e3
        figure.add_scatter(
            x=work, y=np.minimum(slope * work, roof.tflops), mode="lines", line={"color": TEXT, "width": 2},
            hovertemplate="%{x:.3g} operations a byte: at most %{y:.3g} TFLOP/s<extra></extra>",
            row=1, col=col,
        )  # fmt: skip
        flat_x = min(2.4 * roof.tflops / slope, 50)
        for x, y, text, anchors in (
            (flat_x, roof.tflops, f"{roof.tflops:.0f} TFLOP/s, FP32", ("center", "bottom")),
            (1.7, slope * 1.7, f" {roof.gpu.bandwidth:,.0f} GB/s", ("left", "top")),
        ):
            figure.add_annotation(
                x=math.log10(x), y=math.log10(y), text=text, showarrow=False, xanchor=anchors[0],
                yanchor=anchors[1], font={"size": 11}, row=1, col=col,
            )  # fmt: skip
        peers = [dot for dot in dots if not dot.name.startswith("phase ")]
        ours = [dot for dot in dots if dot not in peers]
        for some, colour, symbol in ((ours, VERMILLION, "circle"), (peers, BLUE, "diamond")):
            figure.add_scatter(
                x=[d.intensity for d in some], y=[d.tflops for d in some], mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 8},
                text=[d.name for d in some],
                hovertemplate="%{text}: %{y:.3g} TFLOP/s at %{x:.3g} operations a byte<extra></extra>",
                row=1, col=col,
            )  # fmt: skip
        # Names stand in one place each, those of neighbours together.
        labels = merged([(dot.tflops, dot.name.removeprefix("phase ")) for dot in ours], 1.2)
        places = [(y, text, ours[0].intensity) for y, text in labels]
        places += [(dot.tflops, dot.name, dot.intensity) for dot in peers]
        for y, text, at_x in places:
            figure.add_annotation(
                x=math.log10(at_x * 1.25), y=math.log10(y), text=text, showarrow=False,
                xanchor="left", font={"size": 11}, row=1, col=col,
            )  # fmt: skip
    figure.update_xaxes(
        type="log", title_text="operations a byte", range=[math.log10(0.5), 2], dtick=1
    )
    figure.update_yaxes(type="log", range=[-1.1, 2.1], dtick=1)
    figure.update_yaxes(title_text="TFLOP/s", col=1)
    figure.update_layout(showlegend=False)
    return styled(figure, title, height=520).update_layout(margin={"t": 90})


def merged(labels: Sequence[tuple[float, str]], factor: float) -> list[tuple[float, str]]:
    """(value, name) of labels, those closer than `factor` to the next in one label at their middle (geometric)."""
    groups: list[list[tuple[float, str]]] = []
    for label in sorted(labels):
        if groups and label[0] / groups[-1][-1][0] < factor:
            groups[-1].append(label)
        else:
            groups.append([label])
    order = [name for _, name in labels]
    return [
        (
            math.exp(sum(math.log(value) for value, _ in group) / len(group)),
            ", ".join(sorted((name for _, name in group), key=order.index)),
        )
        for group in groups
    ]


def apart(values: Sequence[int], factor: float) -> list[int]:
    """Ascending values without those closer than `factor` to the one kept before: their labels would meet."""
    kept = list(values[:1])
    for value in values[1:]:
        if value >= factor * kept[-1]:
            kept.append(value)
    return kept


def context_speeds(run: LadderRun, peer: Peer | None, title: str) -> go.Figure:
    """Tokens a second of every phase against the context, both logarithmic, named at the left end.

    Phases of one attention kernel share colour and mark; `peer`, where given, is a grey line.
    """
    figure = go.Figure()
    left, right = [], []
    for phase in PHASES.measured():
        of = {r.context: r.tokens_per_second for r in run.rungs if r.phase == phase}
        if not of:
            continue
        kernel = PHASES[phase].plan["attention"]
        colour, symbol, dash = ATTENTION[kernel]
        figure.add_scatter(
            x=list(of), y=list(of.values()), mode="lines+markers", name=kernel,
            line={"color": colour, "dash": dash, "width": 1.5}, marker={"symbol": symbol, "size": 6},
            legendgroup=kernel, showlegend=not any(kernel == trace.name for trace in figure.data),
            hovertemplate=f"phase {phase}, {kernel}, at %{{x:,}}: %{{y:.1f}} tok/s<extra></extra>",
        )  # fmt: skip
        left.append((of[min(of)], phase))
        right.append((of[max(of)], phase))
    first, last = min(r.context for r in run.rungs), max(r.context for r in run.rungs)
    if peer is not None:
        # Depth 0 has no place on a logarithmic scale: its 128 tokens are in the middle of 0 to 127.
        places = [depth + 64 for depth in peer.rates]
        figure.add_scatter(
            x=places, y=list(peer.rates.values()), mode="lines+markers", name="llama.cpp",
            line={"color": TEXT, "dash": "dot"}, marker={"symbol": "x", "size": 7},
            hovertemplate="llama.cpp, at %{x:,}: %{y:.0f} tok/s<extra></extra>",
        )  # fmt: skip
    for ends, x, anchor in ((left, first / 1.12, "right"), (right, last * 1.12, "left")):
        for y, text in merged(ends, 1.12):
            figure.add_annotation(
                x=math.log10(x), y=math.log10(y), text=text, showarrow=False, xanchor=anchor
            )
    figure.update_xaxes(
        type="log", title_text="position", range=[math.log10(first / 3), math.log10(last * 2.8)],
        tickvals=apart(sorted({r.context for r in run.rungs}), 1.2), tickformat=",",
    )  # fmt: skip
    figure.update_yaxes(type="log", title_text="tok/s", tickvals=[30, 50, 100, 200, 500, 1000])
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom"})
    return styled(figure, title, height=440)


def prompt_strip(columns: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> go.Figure:
    """Each prompt's repeats as marks, in % of the middle of the machine's prompts; a panel a machine, one scale.

    `columns`: machine -> prompt -> tokens/s of its repeats. The bar is the prompt's median.
    """
    heights = [len(prompts) for prompts in columns.values()]
    figure = make_subplots(
        rows=len(columns), subplot_titles=list(columns), shared_xaxes=True, row_heights=heights,
        vertical_spacing=0.09,
    )  # fmt: skip
    for row, (prompts, colour) in enumerate(
        zip(columns.values(), SERIES * len(columns), strict=False), 1
    ):
        middle = float(np.median([np.median(samples) for samples in prompts.values()]))
        for name, samples in prompts.items():
            off = [100 * (s / middle - 1) for s in samples]
            figure.add_scatter(
                x=off, y=[name] * len(off), mode="markers", customdata=list(samples),
                marker={"color": colour, "size": 8, "opacity": 0.6},
                hovertemplate="%{y}: %{customdata:.2f} tok/s, %{x:+.2f} %<extra></extra>",
                row=row, col=1,
            )  # fmt: skip
            figure.add_scatter(
                x=[float(np.median(off))], y=[name], mode="markers", hoverinfo="skip",
                marker={"symbol": "line-ns", "size": 16, "line": {"color": TEXT, "width": 2}},
                row=row, col=1,
            )  # fmt: skip
        figure.add_vline(x=0, line={"color": FAINT, "width": 1}, row=row, col=1)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure.update_xaxes(title_text="% off the middle of this machine's prompts", row=len(columns))
    figure.update_layout(showlegend=False)
    figure = styled(figure, title, height=150 + 60 * len(columns) + 24 * sum(heights))
    return figure.update_layout(margin={"l": 250, "t": 90})


def gap_waterfall(found: Gap, title: str) -> go.Figure:
    """From our time of a token down to the floor that both have, part by part, and up again to llama.cpp's, in us."""
    names = ["ours"] + [f"- {part.name}" for part in found.parts]
    names += ["the floor of both", "+ llama.cpp, not taken apart", "llama.cpp"]
    values = [found.ours_us, *(-part.us for part in found.parts), found.floor_us]
    values += [found.peer_above_us, found.peer_us]
    parts = len(found.parts)
    measures = ["absolute", *["relative"] * parts, "total", "relative", "total"]
    figure = go.Figure(
        go.Waterfall(
            orientation="h", y=names, x=values, measure=measures,
            text=[f"{abs(v):,.0f} us" for v in values], textposition="outside", textfont_color=TEXT,
            cliponaxis=False, connector={"line": {"color": FAINT}},
            decreasing={"marker": {"color": VERMILLION}}, increasing={"marker": {"color": TEXT}},
            totals={"marker": {"color": BLUE}},
            hovertemplate="%{y}: %{text}<extra></extra>",
        )
    )  # fmt: skip
    figure.add_vline(x=found.peer_us, line={"color": TEXT, "width": 1, "dash": "dot"})
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(
        title_text="us a token", range=[-0.05 * found.ours_us, 1.12 * found.ours_us], tickformat=","
    )
    figure = styled(figure, title, height=170 + 30 * len(names))
    return figure.update_layout(showlegend=False, margin={"l": 240, "t": 70})
