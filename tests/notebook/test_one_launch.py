"""The views of chapters 21 and 22: figures of a run are shown as they are, and one that is missing is told."""

import json
from pathlib import Path

import plotly.graph_objects as go
import pytest

from sovereign_lab.measure.decode import DecodeRun, Stages, Times
from sovereign_lab.notebook import one_launch
from sovereign_lab.notebook.decode_times import NOT_YET

STAGES = {
    "QKV: take x": (1.0, 3.0, 2.0),
    "QKV: product": (4.0, 4.0, 4.0),
    "QKV: barrier": (0.5, 0.5, 0.5),
    "QKV: sums and messages": (0.5, 0.5, 0.5),
    "attention": (3.0, 3.0, 3.0),
}


def run() -> DecodeRun:
    times = [
        Times(name, context, (base + add, base + add + 2, base + add + 4))
        for name, base, slope in (("12", 500.0, 0.01), ("13c", 300.0, 0.02))
        for context in (16, 128, 2048)
        for add in (context * slope,)
    ]
    stages = Stages("13c", 128, 16, 5, 132, 1980.0, 7, STAGES, 1.0, 20.0, 5.0, 61.0)
    facts = {"device": "NVIDIA H200", "date": "2026-12-01"}
    return DecodeRun(
        facts, "", "synthetic:tinyllama-1.1b", 16, 10**8, 1000, {"12": 10**7, "13c": 10**7},
        tuple(times), stages=(stages,),
    )  # fmt: skip


def test_what_a_context_adds() -> None:
    table = one_launch.added(run(), ("12", "13c", "11"))
    assert table.rows == [
        ["phase 12", "+19 us"],
        ["phase 13c", "+38 us"],
        ["phase 11", "no figure"],
    ]
    assert one_launch.added_or_none(run(), "13c", 2048) == pytest.approx(38.4)
    assert one_launch.us_or_none(run(), "13c", 128) == pytest.approx(304.56)
    assert one_launch.us_or_none(run(), "13a", 128) is None


def test_stages_and_their_share() -> None:
    rows = {row[0]: row[1] for row in one_launch.stage_table(run()).rows}
    assert rows["QKV: take x"] == "2.00 us"
    assert rows["a layer, the mean"] == "10.00 us"
    assert rows["all stages of a token"] == "56.0 us"
    assert one_launch.multiplying_share(run()) == pytest.approx(0.4)
    assert isinstance(one_launch.stage_picture(run(), 5), go.Figure)
    assert "110 MB a token take 26 us" in one_launch.bytes_line(run(), "13c", 16)


def test_attempts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        ("first", 1000.0, 128), ("hung", None, None), ("worse", 1100, 128), ("long", 900.0, 2048), ("best", 500.0, 128),
    ]  # fmt: skip
    facts = [
        {"attempt": i, "what": n, "prediction": "", "us_per_token": us, "context": c, "what_was_learnt": f"{n}!"}
        for i, (n, us, c) in enumerate(rows, 1)
    ]  # fmt: skip
    kept = tmp_path / "attempts.json"
    kept.write_text(json.dumps({"attempts": facts}))
    monkeypatch.setattr(one_launch, "in_checkout", lambda place: kept)
    attempts = one_launch.recorded_attempts()
    assert [row[3] for row in one_launch.attempts_table(attempts).rows] == [
        "1,000 us", "no figure", "1,100 us", "900 us", "500 us",
    ]  # fmt: skip
    picture = one_launch.attempts_picture(attempts)
    assert isinstance(picture, go.Figure)
    bar = picture.data[0]
    assert list(bar.x) == ["1", "3", "5"]
    assert bar.marker.color[0] == bar.marker.color[2] != bar.marker.color[1]


def test_what_is_not_recorded_is_told() -> None:
    for view in (
        one_launch.added(None, ("12",)), one_launch.stage_picture(None, 5), one_launch.stage_table(None),
        one_launch.kinds_table(None), one_launch.attempts_table(()), one_launch.attempts_picture(()),
        one_launch.bytes_line(None, "12", 128), one_launch.judged({"x": 1.0}, {"x": None}),
    ):  # fmt: skip
        assert NOT_YET in repr(view)


def test_predictions_are_judged_where_there_is_a_figure() -> None:
    table = one_launch.judged({"a": 2.0, "b": None}, {"a": 2.0, "b": None})
    assert table.rows[0][-1] == "exact"
    assert table.rows[1] == ["b", "", "", NOT_YET]
