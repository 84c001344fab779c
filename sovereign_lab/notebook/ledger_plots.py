"""The ledger as a picture: what each experiment did to tokens a second."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sovereign_lab.errors import LabError
from sovereign_lab.measure.ledger import Entry, Ledger, rate
from sovereign_lab.notebook.plots import BLUE, FAINT, GREEN, TEXT, VERMILLION, styled

# Colour and mark of each verdict: told apart without colour, too.
MARKS = {
    "keep": (GREEN, "triangle-up"),
    "revert": (VERMILLION, "triangle-down"),
    "no difference": (BLUE, "diamond"),
}


def ledger_speeds(found: Ledger, title: str = "Experiments") -> go.Figure:
    """Tokens a second before and after each measured experiment, by its number; a panel a model and machine.

    Panels have scales of their own: a CPU that imitates a GPU is not to be compared with one. Raises LabError for a
    ledger without a measured experiment.
    """
    panels: dict[str, list[Entry]] = {}
    for entry in found.entries:
        if entry.tokens_per_second is not None:
            where = f"{entry.setup.model}, {entry.setup.environment.get('device', '')}"
            panels.setdefault(where, []).append(entry)
    if not panels:
        raise LabError(f"The ledger {found.path} has no measured experiment to draw yet.")
    figure = make_subplots(
        rows=len(panels), subplot_titles=list(panels), vertical_spacing=0.3 / len(panels)
    )
    shown: set[str] = set()
    for row, entries in enumerate(panels.values(), 1):
        for entry in entries:
            _draw(figure, row, entry, shown)
        figure.update_yaxes(title_text="tok/s", rangemode="tozero", row=row, col=1)
        figure.update_xaxes(type="category", showgrid=False, row=row, col=1)
    figure.update_xaxes(title_text="experiment", row=len(panels), col=1)
    figure = styled(figure, title, height=120 + 260 * len(panels))
    return figure.update_layout(margin={"t": 110})


def _draw(figure: go.Figure, row: int, entry: Entry, shown: set[str]) -> None:
    assert entry.tokens_per_second is not None and entry.verdict is not None
    before, after = entry.tokens_per_second
    number, verdict = str(entry.id), entry.verdict
    colour, symbol = MARKS[verdict]
    hover = (
        f"{number}: {_plain(entry.setup.title)}<br>{_plain(entry.setup.change)}"
        f"<br>{rate(before)} -> {rate(after)} tok/s, {entry.measured} times as fast"
        f"<br>predicted {entry.setup.predicted:g}; {verdict}; decided: {entry.decision or 'not yet'}"
    )
    figure.add_scatter(
        x=[number, number], y=[before, after], mode="lines", line={"color": FAINT, "width": 2},
        hoverinfo="skip", showlegend=False, row=row, col=1,
    )  # fmt: skip
    for name, y, marker in (
        ("before", before, {"color": TEXT, "symbol": "circle-open", "size": 9}),
        (verdict, after, {"color": colour, "symbol": symbol, "size": 11}),
    ):
        figure.add_scatter(
            x=[number], y=[y], mode="markers", name=name, marker=marker, legendgroup=name,
            showlegend=name not in shown, hovertext=[hover], hoverinfo="text", row=row, col=1,
        )  # fmt: skip
        shown.add(name)


def _plain(text: str) -> str:
    """Plotly reads some HTML in texts, and a title may hold anything."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
