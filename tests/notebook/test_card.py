"""The card says the same as text and as HTML, escapes what a learner wrote, and brings no style sheet."""

import re
from html import unescape

import pytest

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.mine import edit
from sovereign_lab.measure.trial import trial
from sovereign_lab.measure.trial.card import Card, Count, Remark, Stage
from sovereign_lab.measure.trial.times import Alone, InEngine
from sovereign_lab.notebook.card import CardView

REST = tuple(Stage(q, "unknown", "not tried.") for q in ("safe", "right", "faster"))
BAD = Card(
    edit("gemv_q4_0", ""),
    "SIMT device on 2 CPU cores",
    "128 threads a block",
    (Stage("compiles", "no", "line 4: no `<`.", (Remark("no `<`.", 4, "if (a < b) <script>"), Remark("b\nc"))), *REST),
)  # fmt: skip


def comparison(base: float, change: float) -> Comparison:
    return Comparison("float4", "mine", "H200", (base,) * 5, (change,) * 5, base / change, 1.9, 2.1)


GOOD = Card(
    edit("gemv_q4_0", "", "float4"),
    "NVIDIA H200",
    "128 threads a block",
    tuple(Stage(q, "yes", f"because of {q}.") for q in ("compiles", "safe", "right", "faster")),
    counts=(Count("load sectors", 86912, 13184), Count("sectors a load request", 6.928, 2.0)),
    counted="at the size of Storyteller, all 64 blocks",
    alone=Alone(comparison(0.004, 0.002), "Storyteller", 4_000_000, 1.0),
    engine=InEngine(comparison(2.0, 1.0), "Storyteller", "8b", 2e-7, 15, 16, 0.8),
)


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


@pytest.mark.parametrize("card", [BAD, GOOD])
def test_text_and_html_say_the_same(card: Card) -> None:
    view = CardView(card, "Kept as gemv_q4_0:mine.")
    html, text = words(view._repr_html_()), " ".join(repr(view).split())
    for stage in card.stages:
        for said in (
            stage.question,
            stage.says,
            *(" ".join(r.says.split()) for r in stage.remarks),
        ):
            assert said in html
            assert said in text
    for said in (card.verdict, card.launch, card.device, "Kept as gemv_q4_0:mine."):
        assert said in html
        assert said in text
    for row in (
        "86,912 13,184",
        "6.93 2",
        "us a launch 4 2",
        "25.0% 50.0%",
        "tokens/s 500 1000",
        "15 of 16",
    ):
        assert (row in html) == (row in text) == (card is GOOD)


def test_the_line_is_shown_and_escaped() -> None:
    html = CardView(BAD)._repr_html_()
    assert "   4 | if (a &lt; b) &lt;script&gt;" in html
    assert "<script" not in html
    assert "   4 | if (a < b) <script>" in repr(CardView(BAD))


def test_html_needs_no_style_sheet_and_leaves_the_text_its_colour() -> None:
    html = CardView(GOOD)._repr_html_() + CardView(BAD)._repr_html_()
    assert "<style" not in html
    assert not re.search(r"(?<!-)\bcolor:", html)
    assert "#fff" not in html


def test_a_card_of_a_worker_that_ended_names_no_device() -> None:
    text = repr(CardView(Card(BAD.edit, "", BAD.launch, BAD.stages)))
    assert text.startswith("gemv_q4_0:mine, edited from coalesced: 128 threads a block\n")


def test_the_compilers_words_are_shown_once(simt: SimtDevice) -> None:
    source = 'extern "C" __global__ void add(float* x, const float* y, int n) { x[0] = z; }'
    text = repr(CardView(trial("add", source, device=simt)))
    assert (
        sum("‘z’" in line or "'z'" in line for line in text.splitlines()) == 2
    )  # and in the verdict
