"""Pictures for the notebooks: each function takes facts and returns a Plotly figure.

Backgrounds are transparent and text is a grey that can be read on white and on black, so that a figure fits a light
and a dark theme. Colours are told apart by people who see colours differently (Okabe and Ito's set, and cividis).
Every number in a picture is drawn from the facts it is given; what is measured, recorded or exact is the caller's to
say, and titles say it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from sovereign_lab.measure.memory_trace import LINE_BYTES, SECTOR_BYTES, Access, LineTraffic
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS, unpack_q4_0

TEXT = "#7a7a7a"
FAINT = "rgba(127,127,127,0.35)"
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
SERIES = (VERMILLION, BLUE, GREEN)
MONOSPACE = "Menlo, Consolas, DejaVu Sans Mono, monospace"
# Two hues that differ in lightness on either side of a grey: weights below, at and above zero.
SIGNED = ["rgb(213,94,0)", "rgb(190,190,190)", "rgb(0,114,178)"]
WORST_SECTORS = 32
# Fits JupyterLab's output on a small laptop, file browser open; text in pixels needs a width in pixels.
WIDTH = 800


def styled(figure: go.Figure, title: str, height: int) -> go.Figure:
    """The look that all the lab's figures share, put on `figure`: it is changed, and returned."""
    figure.update_layout(
        template="none",
        title={"text": title, "x": 0, "xref": "container", "font": {"size": 15}, "pad": {"l": 10}},
        font={"color": TEXT, "size": 12},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=height,
        width=WIDTH,
        margin={"l": 70, "r": 20, "t": 60, "b": 50},
        hoverlabel={"font": {"family": MONOSPACE}},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": FAINT, "activecolor": TEXT},
    )
    # Subplot titles are annotations, which do not take the layout's colour.
    figure.update_annotations(font_color=TEXT)
    figure.update_xaxes(gridcolor=FAINT, zerolinecolor=FAINT, linecolor=FAINT)
    figure.update_yaxes(gridcolor=FAINT, zerolinecolor=FAINT, linecolor=FAINT)
    return figure


def _text_on(colour: str) -> str:
    """Black or white, whichever reads better on an rgb(...) or #rrggbb colour."""
    if colour.startswith("#"):
        red, green, blue = (float(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
    else:
        red, green, blue = (float(part) for part in colour[4:-1].split(","))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#FFFFFF"


# ---- a block of weights ----


def q4_0_block(block: np.ndarray) -> go.Figure:
    """The 18 bytes of one Q4_0 block (uint8 [18]), the nibbles in them, and the 32 weights that they mean.

    Above: the bytes as they lie in the file, and under each byte its low nibble (weights 0 to 15) and its high one
    (weights 16 to 31). Below: the weights, (nibble - 8) * scale.
    """
    scale = float(block[:2].view(np.float16)[0])
    low, high = block[2:] & 15, block[2:] >> 4
    weights = unpack_q4_0(block)
    # A negative scale turns the order of the nibbles round; colours follow the weights.
    shades = sample_colorscale(SIGNED, list(0.5 + weights / (16 * abs(scale) or 1)))
    figure = make_subplots(
        rows=2,
        row_heights=[0.45, 0.55],
        vertical_spacing=0.16,
        subplot_titles=(
            f"{BLOCK_BYTES} bytes in the file: a scale of 2 bytes, then 16 bytes of two nibbles each",
            f"{BLOCK_WEIGHTS} weights: (nibble - 8) x {scale:.6g}",
        ),
    )
    for row, (label, values, first) in enumerate(
        (("high nibble", high, 16), ("low nibble", low, 0))
    ):
        for i, value in enumerate(values):
            hover = f"weight {first + i}: nibble {value}, ({value} - 8) x {scale:.6g} = {weights[first + i]:.6g}"
            _cell(figure, i, row, str(value), shades[first + i], hover)
        figure.add_annotation(
            x=-2.7, y=row, text=label, showarrow=False, xanchor="right", row=1, col=1
        )
    for i, value in enumerate(block):
        x = i - 2
        what = "scale, fp16" if i < 2 else f"weights {x} and {x + 16}"
        _cell(figure, x, 2, f"{value:02x}", "#DDDDDD", f"byte {i}: 0x{value:02x}, {what}")
    figure.add_annotation(x=-2.7, y=2, text="byte", showarrow=False, xanchor="right", row=1, col=1)
    figure.add_annotation(
        x=-1.5, y=1.25, text=f"scale<br>{scale:.6g}", showarrow=False, yanchor="top", row=1, col=1
    )
    figure.add_bar(
        x=list(range(BLOCK_WEIGHTS)),
        y=[float(w) for w in weights],
        marker_color=shades,
        hovertemplate="weight %{x}: %{y:.6g}<extra></extra>",
        row=2,
        col=1,
    )
    figure.update_xaxes(visible=False, range=[-4.6, 15.6], row=1, col=1)
    figure.update_yaxes(visible=False, range=[-0.6, 2.6], row=1, col=1)
    figure.update_xaxes(title_text="weight", dtick=4, showgrid=False, zeroline=False, row=2, col=1)
    figure.update_layout(showlegend=False, bargap=0.15)
    return styled(figure, "One Q4_0 block", height=460)


def _cell(figure: go.Figure, x: float, y: float, text: str, colour: str, hover: str) -> None:
    """A filled square with a text in it, in the first subplot."""
    figure.add_scatter(
        x=[x],
        y=[y],
        mode="markers+text",
        marker={"symbol": "square", "size": 32, "color": colour},
        text=[text],
        textfont={"family": MONOSPACE, "size": 13, "color": _text_on(colour)},
        hovertext=[hover],
        hoverinfo="text",
        row=1,
        col=1,
    )


# ---- memory ----


def source_heat(
    source: str, lines: Sequence[LineTraffic], title: str, kind: str = "load"
) -> go.Figure:
    """A kernel's source with two columns beside it: sectors a request, as a colour, and the line's share of sectors.

    `lines`: the traffic of a trace of this source; global memory only. Dark blue is the least a request can cost (1
    sector), yellow the most that 32 lanes of up to 32 bytes cost (32). Leading comments of the file are left out.
    """
    traffic = {row.line: row for row in lines if row.kind == kind and row.space == "global"}
    total = sum(row.sectors for row in traffic.values()) or 1
    text = source.splitlines()
    first = next((i for i, line in enumerate(text) if line and not line.startswith("//")), 0)
    figure = go.Figure()
    colours = "Cividis"
    for number in range(first + 1, len(text) + 1):
        code = text[number - 1].replace("&", "&amp;").replace("<", "&lt;").replace(" ", "\u00a0")
        figure.add_annotation(
            x=2.45, y=number, text=code or "\u00a0", xanchor="left", showarrow=False, align="left",
            font={"family": MONOSPACE, "size": 11, "color": TEXT},
        )  # fmt: skip
        row = traffic.get(number)
        if row is None:
            continue
        share = (row.sectors_per_request - 1) / (WORST_SECTORS - 1)
        colour = sample_colorscale(colours, [min(1.0, share)])[0]
        hover = (
            f"line {number}: {row.requests:,} requests, {row.sectors:,} sectors"
            f"<br>{row.bytes_wanted:,} bytes wanted, {row.sectors * SECTOR_BYTES:,} bytes moved"
            f"<br>{row.lanes:.1f} lanes a request"
        )
        for x, cell in ((1, f"{row.sectors_per_request:.2f}"), (2, f"{row.sectors / total:.1%}")):
            figure.add_scatter(
                x=[x], y=[number], mode="markers+text", text=[cell],
                marker={"symbol": "square", "size": 1, "color": colour},
                textfont={"color": _text_on(colour) if x == 1 else TEXT, "family": MONOSPACE},
                hovertext=[hover], hoverinfo="text",
            )  # fmt: skip
        figure.add_shape(
            type="rect", x0=0.5, x1=1.5, y0=number - 0.5, y1=number + 0.5, fillcolor=colour,
            line_width=0, layer="below",
        )  # fmt: skip
    count = len(text) - first
    for x, head in ((1, "sectors a<br>request"), (2, f"of all<br>{kind} sectors")):
        figure.add_annotation(x=x, y=1, yref="paper", text=head, showarrow=False, yanchor="bottom")
    figure.update_xaxes(visible=False, range=[0.4, 13])
    figure.update_yaxes(
        range=[len(text) + 0.6, first + 0.4], tickmode="array", showgrid=False, zeroline=False,
        tickvals=list(range(first + 1, len(text) + 1)), tickfont={"family": MONOSPACE, "size": 10},
    )  # fmt: skip
    figure.update_layout(showlegend=False)
    figure = styled(figure, title, height=110 + 19 * count)
    return figure.update_layout(margin={"t": 100, "b": 10, "l": 40, "r": 5})


def warp_addresses(requests: Mapping[str, Sequence[Access]], title: str) -> go.Figure:
    """What one request of a warp touches: a row is a line of 128 bytes, a box a sector of 32, a mark a lane's bytes.

    `requests`: label -> the accesses of one request, which are to one array each; drawn side by side. Filled boxes
    are the sectors that memory moves; lines in between that no lane touches are left out. The label gets the counts.
    """
    panels = {}
    for label, accesses in requests.items():
        touched = sorted({s for a in accesses for s in _sectors_of(a)})
        wanted = len({a.offset + i for a in accesses for i in range(a.size)})
        moved = len(touched) * SECTOR_BYTES
        name = f"{label}<br>{_count(len(touched), 'sector')}: {moved:,} bytes moved for {wanted:,} wanted"
        panels[name] = (accesses, touched)
    most_lines = max(len(_lines_of(touched)) for _, touched in panels.values())
    figure = make_subplots(cols=len(panels), subplot_titles=list(panels), horizontal_spacing=0.1)
    for col, (accesses, touched) in enumerate(panels.values(), 1):
        _draw_request(figure, col, accesses, touched, most_lines)
    figure = styled(figure, title, height=180 + 20 * max(4, most_lines))
    return figure.update_layout(showlegend=False, margin={"t": 110, "l": 95})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _sectors_of(access: Access) -> range:
    return range(
        access.offset // SECTOR_BYTES, (access.offset + access.size - 1) // SECTOR_BYTES + 1
    )


def _lines_of(sectors: Sequence[int]) -> list[int]:
    return sorted({s * SECTOR_BYTES // LINE_BYTES for s in sectors})


def _draw_request(
    figure: go.Figure, col: int, accesses: Sequence[Access], touched: Sequence[int], rows: int
) -> None:
    lines = _lines_of(touched)
    row_of = {line: i for i, line in enumerate(lines)}
    boxes, marks = [], []
    for line, row in row_of.items():
        for byte in range(0, LINE_BYTES, SECTOR_BYTES):
            moved = (line * LINE_BYTES + byte) // SECTOR_BYTES in touched
            boxes.append(go.layout.Shape(
                type="rect", x0=byte, x1=byte + SECTOR_BYTES, y0=row - 0.42, y1=row + 0.42,
                line={"color": FAINT, "width": 1}, layer="below",
                fillcolor="rgba(213,94,0,0.30)" if moved else "rgba(0,0,0,0)",
                xref=f"x{col if col > 1 else ''}", yref=f"y{col if col > 1 else ''}",
            ))  # fmt: skip
    # Lanes that read the same bytes share a mark; a lane that crosses into the next line has two.
    places: dict[tuple[int, int], list[int]] = {}
    for access in accesses:
        places.setdefault((access.offset, access.size), []).append(access.lane)
    for (offset, size), lanes in places.items():
        start = offset
        while start < offset + size:
            line = start // LINE_BYTES
            end = min(offset + size, (line + 1) * LINE_BYTES)
            x0, x1, y = start % LINE_BYTES, end - line * LINE_BYTES, row_of[line]
            who = f"lane {lanes[0]}" if len(lanes) == 1 else f"lanes {', '.join(map(str, lanes))}"
            marks.append(go.Scatter(
                x=[x0 + 0.15, x1 - 0.15, x1 - 0.15, x0 + 0.15], y=[y - 0.3, y - 0.3, y + 0.3, y + 0.3],
                fill="toself", fillcolor=BLUE, mode="lines", line_width=0, hoveron="fills", hoverinfo="text",
                text=f"{who}: {size} bytes at {accesses[0].array} + {offset:,}",
            ))  # fmt: skip
            start = end
    # All at once: Plotly copies the whole figure at every single addition.
    figure.add_traces(marks, rows=1, cols=col)
    figure.layout.shapes += tuple(boxes)
    figure.update_xaxes(
        title_text="byte of the line", range=[-2, LINE_BYTES + 2], dtick=SECTOR_BYTES, showgrid=False,
        zeroline=False, row=1, col=col,
    )  # fmt: skip
    every = 1 if len(lines) <= 8 else 4
    figure.update_yaxes(
        title_text=f"byte of {accesses[0].array}" if col == 1 else None, title_standoff=14,
        range=[max(4, rows) - 0.4, -0.6],
        tickvals=list(range(0, len(lines), every)), showgrid=False, zeroline=False,
        ticktext=[f"{line * LINE_BYTES:,}" for line in lines[::every]], row=1, col=col,
    )  # fmt: skip


# ---- speeds ----


def ladder(columns: Mapping[str, Mapping[str, float]], title: str = "The ladder") -> go.Figure:
    """Tokens a second of each phase: a panel a machine, each with a scale of its own.

    `columns`: what the figures are and where they come from ("H200, recorded 2026-11-30") -> phase -> tok/s. Panels
    never share a scale: a CPU that imitates a GPU and a GPU are not to be compared, and what a panel shows is how
    much a phase gained on the one before it.
    """
    phases = list(dict.fromkeys(phase for values in columns.values() for phase in values))
    figure = make_subplots(
        cols=len(columns), subplot_titles=list(columns), shared_yaxes=True, horizontal_spacing=0.05
    )
    for col, (values, colour) in enumerate(
        zip(columns.values(), SERIES * len(columns), strict=False), 1
    ):
        figure.add_bar(
            y=list(values), x=list(values.values()), orientation="h", marker_color=colour,
            text=[_rate(value) for value in values.values()], textposition="auto",
            hovertemplate="%{y}: %{x:.4g} tok/s<extra></extra>", row=1, col=col,
        )  # fmt: skip
        figure.update_xaxes(
            title_text="tok/s", range=[0, 1.15 * max(values.values())], row=1, col=col
        )
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=phases[::-1], showgrid=False
    )
    figure.update_layout(showlegend=False, bargap=0.3)
    figure = styled(figure, title, height=160 + 34 * len(phases))
    return figure.update_layout(margin={"l": 190, "t": 100})


def _rate(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def grouped_bars(groups: Mapping[str, Mapping[str, float]], unit: str, title: str) -> go.Figure:
    """Bars side by side: `groups` is series -> category -> value, all in `unit` and on one scale."""
    figure = go.Figure()
    for (series, values), colour in zip(groups.items(), SERIES * len(groups), strict=False):
        figure.add_bar(
            name=series, x=list(values), y=list(values.values()), marker_color=colour,
            text=[f"{value:.1f}" for value in values.values()], textposition="outside", cliponaxis=False,
            hovertemplate=f"{series}, %{{x}}: %{{y:.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(
        barmode="group", legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom"}
    )
    figure.update_yaxes(title_text=unit)
    figure.update_xaxes(type="category", showgrid=False)
    return styled(figure, title, height=380)
