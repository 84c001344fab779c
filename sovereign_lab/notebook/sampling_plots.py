"""Pictures for chapter 04: how many tokens matter along a text, how often each was drawn, what a draw takes."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from sovereign_lab.notebook.plots import BLUE, FAINT, VERMILLION, styled
from sovereign_lab.notebook.samplers import DrawTimes


def candidates_by_position(
    pieces: Sequence[str], likely: Sequence[int], kept: Sequence[int], title: str
) -> go.Figure:
    """Along a text: how many tokens had at least 1e-4 when each was chosen, and how many top-p kept.

    `pieces` [n]: the text of each token; `likely` and `kept` [n].
    """
    x = list(range(len(pieces)))
    figure = go.Figure()
    for name, counts, colour, symbol in (
        ("of at least 1e-4", likely, VERMILLION, "circle-open"),
        ("kept by top-p 0.95", kept, BLUE, "circle"),
    ):
        figure.add_scatter(
            x=x, y=list(counts), mode="markers", name=name, text=list(pieces),
            marker={"color": colour, "size": 9, "symbol": symbol, "line": {"width": 2, "color": colour}},
            hovertemplate="%{text}: %{y} tokens<extra>" + name + "</extra>",
        )  # fmt: skip
    figure.update_xaxes(
        tickvals=x, ticktext=[piece.strip() or "\u240d" for piece in pieces], tickangle=-90
    )
    figure.update_yaxes(
        type="log", title_text="tokens", tickvals=[1, 10, 100, 1000], range=[-0.15, 3.3]
    )
    figure = styled(figure, title, height=360)
    return figure.update_layout(
        margin={"b": 90}, legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.12}
    )


def drawn_against_due(
    pieces: Sequence[str], probabilities: np.ndarray, drawn: np.ndarray, title: str
) -> go.Figure:
    """Bars: the share each token is due. Dots: the share that it had among the draws. All [n], in any order."""
    x = list(range(len(pieces)))
    figure = go.Figure(
        go.Bar(
            x=x, y=probabilities.round(5).tolist(), name="its probability", text=list(pieces),
            marker_color=FAINT, textposition="none",
            hovertemplate="%{text}: %{y:.3%}<extra>probability</extra>",
        )
    )  # fmt: skip
    figure.add_scatter(
        x=x, y=drawn.round(5).tolist(), mode="markers", name="drawn", text=list(pieces),
        marker={"color": BLUE, "size": 8},
        hovertemplate="%{text}: %{y:.3%}<extra>drawn</extra>",
    )  # fmt: skip
    figure.update_xaxes(tickvals=x, ticktext=[piece.strip() for piece in pieces], tickangle=-90)
    figure.update_yaxes(title_text="share", tickformat=".0%", rangemode="tozero")
    figure = styled(figure, title, height=360)
    return figure.update_layout(
        margin={"b": 90}, legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.12}
    )


def time_by_candidates(draws: Sequence[DrawTimes], title: str) -> go.Figure:
    """What a draw takes by how many tokens are likely enough for `gather`: a dot a position, a colour a variant."""
    figure = go.Figure()
    for name, colour, symbol in (("bisect", VERMILLION, "circle-open"), ("gather", BLUE, "circle")):
        figure.add_scatter(
            x=[p.candidates for p in draws], y=[round(p.us[name], 2) for p in draws],
            mode="markers", name=name,
            marker={"color": colour, "size": 9, "symbol": symbol, "line": {"width": 2, "color": colour}},
            hovertemplate="%{x} tokens: %{y:.1f} us<extra>" + name + "</extra>",
        )  # fmt: skip
    figure.update_xaxes(
        type="log", title_text="tokens at least 1e-4 times as likely as the likeliest",
        tickvals=[1, 10, 100, 1000], range=[-0.15, 3],
    )  # fmt: skip
    figure.update_yaxes(title_text="a draw, us", rangemode="tozero")
    figure = styled(figure, title, height=360)
    return figure.update_layout(legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.12})
