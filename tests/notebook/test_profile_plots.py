"""The pictures of a profile draw every launch and every share that it has."""

import json
from dataclasses import replace

import pytest

from sovereign_lab.measure.profile import Launch, OpProfile, Profile
from sovereign_lab.notebook import plots
from sovereign_lab.notebook.profile_plots import op_shares, timeline


def made(scale: float = 1.0, kind: str = "cuda") -> Profile:
    launches = [("rmsnorm", 0.0, 2.0), ("gemv_q4_0", 2.0, 30.0), ("rmsnorm", 32.0, 3.0)]
    return Profile(
        model="m",
        phase="8c",
        device="a GPU",
        kind=kind,
        times="the time of a GPU",
        position=16,
        pass_us=40.0 * scale,
        pass_samples=(40.0 * scale,),
        ops=(
            OpProfile("rmsnorm", "block", 2, 4.0 * scale, (4.0,), 0.1, 100, None),
            OpProfile("gemv_q4_0", "float4", 1, 26.0 * scale, (26.0,), 0.65, 1000, None),
        ),
        timeline=tuple(Launch(n, "v", start * scale, us * scale) for n, start, us in launches),
        gpu=None,
    )


@pytest.mark.parametrize("picture", [timeline, op_shares])
def test_fits_both_themes_and_is_the_same_every_time(picture) -> None:  # type: ignore[no-untyped-def]
    figure = picture(made())
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert figure.layout.font.color == plots.TEXT
    assert "m, phase 8c, position 16, a GPU" in figure.layout.title.text
    assert figure.to_json() == picture(made()).to_json()
    json.dumps(figure.to_plotly_json(), default=list)


def test_a_row_an_op_and_a_bar_a_launch() -> None:
    norm, gemv = timeline(made()).data
    assert list(norm.y) == ["rmsnorm x 2"] * 2
    assert list(norm.base) == [0, 32]
    assert list(norm.x) == [2, 3]
    assert list(gemv.x) == [30]
    assert norm.marker.color != gemv.marker.color


def test_rows_stand_in_the_order_of_the_pass_from_above() -> None:
    assert timeline(made()).layout.yaxis.categoryarray == ("gemv_q4_0 x 1", "rmsnorm x 2")


def test_long_passes_are_drawn_in_milliseconds() -> None:
    figure = timeline(made(scale=1000))
    assert list(figure.data[0].x) == [2, 3]
    assert figure.layout.xaxis.title.text.startswith("ms")
    assert timeline(made()).layout.xaxis.title.text.startswith("us")


def test_the_title_says_what_a_bar_holds() -> None:
    assert "launch overhead is in every bar" in timeline(made()).layout.title.text
    assert "imitates a GPU" in timeline(made(kind="simt")).layout.title.text


def test_shares_are_in_percent_and_the_rest_stands_out() -> None:
    bars = op_shares(made()).data[0]
    assert dict(zip(bars.y, bars.x, strict=True)) == pytest.approx(
        {"rmsnorm x 2": 10, "gemv_q4_0 x 1": 65, "the rest": 25}
    )
    assert list(bars.customdata) == pytest.approx([4, 26, 10])
    assert bars.marker.color[-1] != bars.marker.color[0]


def test_ops_that_are_slower_alone_leave_less_than_nothing() -> None:
    profile = replace(made(), pass_us=25.0)
    assert op_shares(profile).data[0].x[-1] == pytest.approx(-20)
