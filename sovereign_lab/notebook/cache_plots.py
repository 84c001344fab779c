"""Pictures of a KV cache that goes wrong: which slot each position writes, and how far off its logits are."""

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sovereign_lab.notebook.plots import BLUE, SERIES, TEXT, VERMILLION, styled

READ = "rgba(127,127,127,0.22)"
SYMBOLS = ("x", "circle", "diamond")


def cache_map(panels: Mapping[str, Sequence[Sequence[int]]], title: str) -> go.Figure:
    """`panels`: label -> for each position, the slots that it wrote; drawn side by side on one scale.

    Grey is what attention reads: at position p, slots 0 to p. Blue squares are writes to the position's own slot,
    orange crosses writes to another.
    """
    positions = max(len(writes) for writes in panels.values())
    top = max((slot for writes in panels.values() for slots in writes for slot in slots), default=0)
    top = max(top, positions - 1)
    figure = make_subplots(
        cols=len(panels), subplot_titles=list(panels), shared_yaxes=True, horizontal_spacing=0.06
    )
    for col, writes in enumerate(panels.values(), 1):
        x, y = [-0.5], [-0.5]
        for position in range(len(writes)):
            x += [position - 0.5, position + 0.5]
            y += [position + 0.5] * 2
        figure.add_scatter(
            x=[*x, len(writes) - 0.5], y=[*y, -0.5], fill="toself", fillcolor=READ, mode="lines", line_width=0,
            hoverinfo="skip", name="slots that attention reads", legendgroup="read", showlegend=col == 1,
            row=1, col=col,
        )  # fmt: skip
        for own, name, colour, symbol in (
            (True, "written to the position's own slot", BLUE, "square"),
            (False, "written elsewhere", VERMILLION, "x"),
        ):
            chosen = [
                (p, slot) for p, slots in enumerate(writes) for slot in slots if (p == slot) == own
            ]
            # The legend names what no write may have done, too: it says what was looked for.
            x_marks: list[int | None] = [p for p, _ in chosen] or [None]
            y_marks: list[int | None] = [slot for _, slot in chosen] or [None]
            figure.add_scatter(
                x=x_marks, y=y_marks, mode="markers",
                name=name, legendgroup=name, showlegend=col == 1,
                marker={"color": colour, "symbol": symbol, "size": 10},
                hovertemplate="position %{x} writes slot %{y}<extra></extra>", row=1, col=col,
            )  # fmt: skip
        figure.update_xaxes(
            title_text="position", range=[-0.8, positions - 0.2], dtick=2, zeroline=False,
            row=1, col=col,
        )  # fmt: skip
    figure.update_yaxes(range=[-1, top + 1], dtick=2, zeroline=False)
    figure.update_yaxes(title_text="slot of the cache", row=1, col=1)
    figure.update_layout(legend={"orientation": "h", "y": -0.14, "x": 0, "yanchor": "top"})
    figure = styled(figure, title, height=200 + 13 * (top + 1))
    return figure.update_layout(margin={"t": 80, "b": 90})


def logit_errors(series: Mapping[str, Sequence[float]], tolerance: float, title: str) -> go.Figure:
    """`series`: label -> the error at each position, as a share of the largest logit; a dashed line at `tolerance`."""
    figure = go.Figure()
    for (name, errors), colour, symbol in zip(series.items(), SERIES, SYMBOLS, strict=False):
        figure.add_scatter(
            x=list(range(len(errors))), y=list(errors), name=name, mode="lines+markers",
            line={"color": colour, "width": 1}, marker={"color": colour, "symbol": symbol, "size": 9},
            hovertemplate=f"{name}, position %{{x}}: %{{y:.2g}}<extra></extra>",
        )  # fmt: skip
    figure.add_hline(y=tolerance, line={"color": TEXT, "dash": "dash", "width": 1})
    # On a logarithmic axis a shape takes the value, and an annotation its logarithm.
    figure.add_annotation(
        x=1, xref="paper", xanchor="right", y=math.log10(tolerance), yanchor="top",
        text=f"tolerance, {tolerance:g}", showarrow=False,
    )  # fmt: skip
    figure.update_xaxes(title_text="position", dtick=1, zeroline=False)
    figure.update_yaxes(
        title_text="largest error of a logit", type="log", dtick=1, exponentformat="power"
    )
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom"})
    return styled(figure, title, height=380).update_layout(margin={"t": 90})
