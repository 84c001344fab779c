"""Pictures of the chapters on many tokens at once: time and speed by tokens, floors, decode, and busy Tensor Cores."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sovereign_lab.measure.compare import WORTH, Comparison
from sovereign_lab.measure.tensor_cores import TensorRun
from sovereign_lab.notebook.plots import BLUE, FAINT, GREEN, TEXT, VERMILLION, styled
from sovereign_lab.notebook.tensor_roofs import (
    CUDA_CORES,
    KERNELS,
    MMA,
    ONE_TOKEN,
    WMMA,
    Roofs,
    layer_floors,
    origin,
    products_of,
)

# Name, colour, mark and line: told apart without colour, too.
LOOKS = {
    ONE_TOKEN: ("float4, once a token", TEXT, "x", "dot"),
    CUDA_CORES: ("cuda_cores", VERMILLION, "circle", "solid"),
    WMMA: ("wmma", GREEN, "diamond", "dash"),
    MMA: ("mma", BLUE, "square", "solid"),
}


def curves(run: TensorRun, matrix: str, on: Roofs) -> go.Figure:
    """One matrix of the recorded run by tokens: microseconds, and TFLOP/s under both roofs; all axes logarithmic."""
    figure = make_subplots(
        cols=2, subplot_titles=("us a product", "TFLOP/s"), horizontal_spacing=0.11
    )
    for kernel in KERNELS:
        name, colour, symbol, dash = LOOKS[kernel]
        of = products_of(run, matrix, kernel)
        for col, unit, values in (
            (1, "us", [p.us for p in of.values()]),
            (2, "TFLOP/s", [p.tflops for p in of.values()]),
        ):
            figure.add_scatter(
                x=list(of), y=values, name=name, legendgroup=name, showlegend=col == 1,
                mode="lines+markers", line={"color": colour, "dash": dash},
                marker={"symbol": symbol, "size": 7, "color": colour},
                hovertemplate=f"{name}, %{{x}} tokens: %{{y:.4g}} {unit}<extra></extra>",
                row=1, col=col,
            )  # fmt: skip
    for tflops, text in ((on.cuda, "CUDA cores"), (on.tensor, "Tensor Cores")):
        figure.add_hline(y=tflops, line={"color": TEXT, "width": 1}, row=1, col=2)
        figure.add_annotation(
            x=0, y=math.log10(tflops), text=f"{text}: {tflops:.0f}", showarrow=False,
            xanchor="left", yanchor="bottom", font={"size": 11}, row=1, col=2,
        )  # fmt: skip
    counts = [1, 4, 16, 64, 256]
    figure.update_xaxes(type="log", title_text="tokens", tickvals=counts)
    figure.update_yaxes(type="log", dtick=1)
    figure.update_yaxes(range=[-1, 3.2], col=2)
    figure.update_layout(legend={"orientation": "h", "y": -0.2, "x": 0, "yanchor": "top"})
    rows, cols = next((p.rows, p.cols) for p in run.products if p.matrix == matrix)
    title = f"{matrix}, {rows:,} x {cols:,} ({origin(run)})"
    return styled(figure, title, height=440).update_layout(margin={"b": 90})


def floors(on: Sequence[Roofs]) -> go.Figure:
    """The floors of TinyLlama's layers by tokens at once, a panel a GPU; where operations overtake bytes is marked."""
    figure = make_subplots(
        cols=len(on), subplot_titles=[gpu.gpu for gpu in on], shared_yaxes=True,
        horizontal_spacing=0.04,
    )  # fmt: skip
    counts = np.unique(np.geomspace(1, 512, 60).astype(int)).tolist()
    for col, gpu in enumerate(on, 1):
        found = [layer_floors(gpu, n) for n in counts]
        for name, colour, dash, values in (
            ("bytes, each weight once", TEXT, "solid", [f.bytes for f in found]),
            ("operations on CUDA cores, FP32", VERMILLION, "dash", [f.cuda for f in found]),
            ("operations on Tensor Cores, halves", BLUE, "dot", [f.tensor for f in found]),
        ):
            figure.add_scatter(
                x=counts, y=values, mode="lines", name=name, legendgroup=name, showlegend=col == 1,
                line={"color": colour, "dash": dash, "width": 2},
                hovertemplate=f"{name}, %{{x}} tokens: %{{y:.4g}} us<extra></extra>",
                row=1, col=col,
            )  # fmt: skip
        bytes_us = layer_floors(gpu, 1).bytes
        looks = ((VERMILLION, "top left"), (BLUE, "bottom right"))
        for tokens, (colour, where) in zip(gpu.ridge_tokens, looks, strict=True):
            figure.add_scatter(
                x=[tokens], y=[bytes_us], mode="markers+text", text=[f"{tokens:.1f}"],
                textposition=where, textfont_color=colour, showlegend=False,
                marker={"symbol": "circle-open", "size": 11, "color": colour, "line": {"width": 2}},
                hovertemplate="equal at %{x:.1f} tokens<extra></extra>", row=1, col=col,
            )  # fmt: skip
    figure.update_xaxes(type="log", title_text="tokens at once", tickvals=[1, 4, 16, 64, 256])
    figure.update_yaxes(type="log", dtick=1)
    figure.update_yaxes(title_text="us, at least", col=1)
    figure.update_layout(legend={"orientation": "h", "y": -0.2, "x": 0, "yanchor": "top"})
    title = "The products of TinyLlama's layers: floors by tokens"
    return styled(figure, title, height=440).update_layout(margin={"b": 90})


def decode(comparisons: Sequence[Comparison], title: str) -> go.Figure:
    """Each comparison's speed-up and its 95 % interval, and the band of no difference worth a name."""
    figure = go.Figure()
    names = [c.change for c in comparisons]
    for c in comparisons:
        colour = VERMILLION if c.verdict == "revert" else BLUE
        figure.add_scatter(
            x=[c.speedup], y=[c.change], mode="markers+text", showlegend=False, cliponaxis=False,
            text=[f"{c.speedup:.3f} ({c.low:.3f} to {c.high:.3f}): {c.verdict}"],
            textposition="top center", textfont_color=TEXT,
            marker={"color": colour, "size": 9, "symbol": "diamond"},
            error_x={
                "type": "data", "symmetric": False, "array": [c.high - c.speedup],
                "arrayminus": [c.speedup - c.low], "color": colour, "width": 8,
            },
            hovertemplate=f"{c.change}: %{{x:.3f}}, 95 %: {c.low:.3f} to {c.high:.3f}<extra></extra>",
        )  # fmt: skip
    figure.add_vrect(x0=1 - WORTH, x1=1 + WORTH, fillcolor=FAINT, line_width=0)
    figure.add_vline(x=1, line={"color": TEXT, "width": 1})
    figure.update_xaxes(title_text="times as fast as phase 8c", range=[0.6, 1.2])
    figure.update_yaxes(type="category", categoryarray=names[::-1], range=[-0.6, len(names) - 0.2])
    return styled(figure, title, height=260).update_layout(margin={"l": 90})


def shares(values: Mapping[str, float], unit: str, title: str) -> go.Figure:
    """A bar a name, longest first where they are given so, with its figure beside it."""
    figure = go.Figure()
    figure.add_bar(
        y=list(values), x=list(values.values()), orientation="h", marker_color=BLUE,
        text=[f"{value:,.1f}" for value in values.values()], textposition="outside",
        cliponaxis=False, hovertemplate=f"%{{y}}: %{{x:,.4g}} {unit}<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(title_text=unit, range=[0, 1.12 * max(values.values())])
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure = styled(figure, title, height=130 + 30 * len(values))
    return figure.update_layout(margin={"l": 190}, showlegend=False)


def bank_map(rows: int = 8) -> go.Figure:
    """The first rows of a tile of 128 bytes a row in shared memory, without the swizzle and with it.

    A row of a panel is all 32 banks, a cell four of them, named "row.chunk". Filled: chunk 0, which ldmatrix reads of
    eight rows at once.
    """
    figure = make_subplots(
        cols=2, subplot_titles=("chunk c of row r at c", "chunk c of row r at c ^ r % 8"),
        horizontal_spacing=0.08,
    )  # fmt: skip
    cells = [(row, c) for row in range(rows) for c in range(8)]
    filled = [c == 0 for _, c in cells]
    for col, at in ((1, [c for _, c in cells]), (2, [c ^ row % 8 for row, c in cells])):
        figure.add_scatter(
            x=at, y=[row for row, _ in cells], mode="markers+text",
            marker={
                "symbol": "square", "size": 32, "color": [VERMILLION if f else "#DDDDDD" for f in filled],
            },
            text=[f"{row}.{c}" for row, c in cells],
            textfont={"size": 11, "color": ["#FFFFFF" if f else "#000000" for f in filled]},
            hovertemplate="row.chunk %{text}: row %{y} of the tile, four banks from %{customdata} on<extra></extra>",
            customdata=[4 * place for place in at], row=1, col=col,
        )  # fmt: skip
    figure.update_xaxes(
        tickvals=list(range(8)), ticktext=[str(4 * i) for i in range(8)], title_text="bank",
        showgrid=False, zeroline=False, range=[-0.6, 7.6],
    )  # fmt: skip
    figure.update_yaxes(range=[rows - 0.4, -0.6], dtick=1, showgrid=False, zeroline=False)
    figure.update_yaxes(title_text="row", col=1)
    figure.update_layout(showlegend=False)
    return styled(figure, "Where a tile's chunks lie", height=150 + 36 * rows)
