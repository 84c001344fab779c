"""Every figure can be drawn, shows the facts it was given, and fits both themes."""

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import Access, LineTraffic
from sovereign_lab.models.quants import quantise_q4_0, unpack_q4_0
from sovereign_lab.notebook import plots

STRIDED = [Access(lane, "x", lane * 128, 4) for lane in range(32)]
NEIGHBOURS = [Access(lane, "x", lane * 4, 4) for lane in range(32)]


def block() -> np.ndarray:
    weights = np.random.default_rng(0).standard_normal((1, 32), np.float32)
    return quantise_q4_0(weights)[0]


def heat() -> go.Figure:
    source = op("gemv_q4_0").variant("coalesced").source
    number = next(i for i, line in enumerate(source.splitlines(), 1) if "x[b * 32" in line)
    line = LineTraffic(number, "", "load", "global", 10, 40, 1280, 32.0)
    return plots.source_heat(source, [line], "a kernel")


FIGURES = {
    "q4_0_block": lambda: plots.q4_0_block(block()),
    "source_heat": heat,
    "warp_addresses": lambda: plots.warp_addresses({"a": STRIDED, "b": NEIGHBOURS}, "x"),
    "ladder": lambda: plots.ladder({"a GPU": {"3": 66.29, "5": 109.24}, "another": {"5": 1.1}}),
    "grouped_bars": lambda: plots.grouped_bars(
        {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 3.0}}, "us", "t"
    ),
}
every_figure = pytest.mark.parametrize("name", FIGURES)


def texts(figure: go.Figure) -> list[str]:
    """Everything that a figure writes: titles, annotations, labels in cells."""
    labels = [t for trace in figure.data for t in np.atleast_1d(trace.text) if t]
    return [*(a.text for a in figure.layout.annotations), *map(str, labels)]


@every_figure
def test_background_is_transparent_and_text_is_neither_black_nor_white(name: str) -> None:
    layout = FIGURES[name]().layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert layout.font.color == plots.TEXT
    assert layout.title.text


@every_figure
def test_the_same_facts_give_the_same_figure(name: str) -> None:
    # nbval compares figures as text.
    assert FIGURES[name]().to_json() == FIGURES[name]().to_json()
    assert len(json.dumps(FIGURES[name]().to_dict(), default=str)) < 100_000


def test_block_shows_its_bytes_nibbles_and_weights() -> None:
    bytes_ = block()
    figure = plots.q4_0_block(bytes_)
    labels = texts(figure)
    for byte in bytes_:
        assert f"{byte:02x}" in labels
    bars = next(trace for trace in figure.data if trace.type == "bar")
    assert np.allclose(bars.y, unpack_q4_0(bytes_))


def test_a_block_of_zeros_can_be_drawn() -> None:
    bars = plots.q4_0_block(np.zeros(18, np.uint8)).data[-1]
    assert not np.any(bars.y)


def test_requests_are_counted_in_sectors_and_bytes() -> None:
    labels = texts(plots.warp_addresses({"a": STRIDED, "b": NEIGHBOURS}, "x"))
    assert "a<br>32 sectors: 1,024 bytes moved for 128 wanted" in labels
    assert "b<br>4 sectors: 128 bytes moved for 128 wanted" in labels


def test_an_access_across_two_lines_touches_both() -> None:
    figure = plots.warp_addresses({"a": [Access(0, "W", 120, 16)]}, "W")
    assert "a<br>2 sectors: 64 bytes moved for 16 wanted" in texts(figure)
    assert len(figure.data) == 2


def test_heat_shows_every_line_of_code_and_its_sectors() -> None:
    labels = texts(heat())
    assert "4.00" in labels
    assert "100.0%" in labels
    assert any("__shfl_sync" in label for label in labels)


def test_panels_of_the_ladder_have_scales_of_their_own() -> None:
    figure = plots.ladder({"a GPU": {"3": 100.0}, "this machine": {"3": 1.0}})
    assert figure.layout.xaxis.range[1] == pytest.approx(115)
    assert figure.layout.xaxis2.range[1] == pytest.approx(1.15)
