"""A text ends before its first stop string, however tokens cut it, and nothing waits without need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine
from sovereign_lab.engine.stops import StopStrings
from sovereign_lab.errors import LabError
from sovereign_lab.models.catalog import resolve
from sovereign_lab.models.model import load_model


def shown(stops: StopStrings, pieces: list[str]) -> list[str]:
    """What is shown for each piece, and at the end."""
    out = []
    for piece in pieces:
        out.append(stops.push(piece))
        if stops.found is not None:
            return out
    return [*out, stops.finish()]


@given(
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_text_is_the_same_in_whatever_pieces_it_comes(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    places = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    expected = text[: min(places)[1]] if places else text
    for cut in (pieces, [text], list(text)):
        matcher = StopStrings(stops)
        assert "".join(shown(matcher, cut)) == expected
        assert (matcher.found is None) == (not places)


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_only_what_could_become_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    matcher, so_far = StopStrings(stops), ""
    for i, char in enumerate(text, start=1):
        so_far += matcher.push(char)
        if matcher.found is not None:
            break
        held = text[len(so_far) : i]
        assert so_far + held == text[:i]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_pieces_are_held_and_let_go() -> None:
    assert shown(StopStrings("</end>"), ["a <", "/e", "m> b", "<"]) == [
        "a ",
        "",
        "</em> b",
        "",
        "<",
    ]
    assert shown(StopStrings(["\n\n", "User:"]), ["one\n", "two Us", "er: x"]) == [
        "one",
        "\ntwo ",
        "",
    ]
    # Found in the middle of a false start.
    assert shown(StopStrings("aab"), ["a", "a", "a", "b"]) == ["", "", "a", ""]
    # Of two that end together the longer; else the one that is whole first.
    both = StopStrings(["b", "ab"])
    assert shown(both, ["xab"]) == ["x"] and both.found == "ab"
    assert shown(StopStrings(["abcd", "bc"]), ["xabcd"]) == ["xa"]
    with pytest.raises(LabError, match="at least one character"):
        StopStrings(["x", ""])


def test_engine_stops_at_a_string_that_spans_tokens(any_device: Device) -> None:
    model = load_model(resolve("synthetic:tiny"))
    engine = Engine(model, any_device)
    free = engine.stream("once", max_tokens=24, temperature=2.0, seed=1)
    pieces = list(free)
    # The end of one piece and the start of the next.
    cut = next(i for i in range(2, len(pieces)) if len(pieces[i - 1] + pieces[i]) >= 2)
    stop = pieces[cut - 1][-1] + pieces[cut][0]
    text = free.result.text
    for options in ({"stop": stop}, {"stop": ["never there", stop]}):
        stream = engine.stream("once", 24, temperature=2.0, seed=1, **options)
        assert "".join(stream) == stream.result.text == text[: text.index(stop)]
        assert (stream.result.finish_reason, stream.result.stop) == ("stop", stop)
        assert stream.result.token_ids == free.result.token_ids[: len(stream.result.token_ids)]
        assert len(stream.result.token_ids) == len(stream.result.argmax_ids) < 24
    # A stop string that never comes whole: all the text, its held-back end too.
    almost = engine.generate("once", 24, temperature=2.0, seed=1, stop=text[-1] + "never there")
    assert (almost.text, almost.finish_reason, almost.stop) == (text, "length", None)
