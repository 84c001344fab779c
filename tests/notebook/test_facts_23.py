"""What chapter 23 says in its prose, held to the recorded run; its tables and pictures, held to what they are given."""

import dataclasses

import pytest

from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.decode import LLAMA_CPP, DecodeRun, Stages, Times
from sovereign_lab.measure.decode.turns import EARLY, EARLY_CONTEXT
from sovereign_lab.notebook import card_estimate, decode_board, decode_plots

US = {
    "QKV: take x": (1.0, 2.0, 3.0),
    "QKV: product": (1.0, 1.0, 1.0),
    "attention": (0.0, 0.0, 3.0),
    "down: barrier": (0.5, 0.5, 0.5),
}


def made(**change: object) -> DecodeRun:
    """A small run: 12 gains at a long context alone, 9a loses, llama.cpp is slower than the last."""
    us = {
        "8b": (1000.0, 3000.0), "8c": (900.0, 2900.0), "9a": (1200.0, 3200.0), "9b": (880.0, 2899.0),
        "10": (400.0, 2500.0), "12": (401.0, 500.0), LLAMA_CPP: (600.0, 650.0),
    }  # fmt: skip
    times = [
        Times(name, context, tuple(us * (1 + 0.001 * i) for i in range(5)))
        for name, both in us.items()
        for context, us in zip((128, 2048), both, strict=True)
    ]
    stages = Stages("12", 128, 16, 5, 132, 2000.0, 7, US, 0.5, 20.0, 1.5, 40.0)
    run = DecodeRun(
        {"device": "NVIDIA H200", "date": "2026-12-01"}, "GPU time", "m", 16, 545_000_000, 22_528,
        {name: 262_000_000 if name in ("8b", "8c", "9a", "9b") else 69_600_000 for name in us},
        tuple(times), refused={"13c": "needs sm_90"}, stages=(stages,),
    )  # fmt: skip
    return dataclasses.replace(run, **change)  # type: ignore[arg-type]


# ---- tables, sentences, pictures ----


def test_a_step_stands_over_the_nearest_one_that_was_measured() -> None:
    run = made()
    assert decode_board.ladder(run) == ["8b", "8c", "9a", "9b", "10", "12"]
    bases = {name: decode_board.base_of(run, name) for name in decode_board.ladder(run)}
    assert bases == {"8b": None, "8c": "8b", "9a": "8c", "9b": "8c", "10": "9b", "12": "10"}
    rows = {row[0]: row for row in decode_board.ladder_table(run).rows}
    assert rows["10"][4:8] == ["2.200 over 9b", "2.200 to 2.200", "2.50", "1.50"]
    assert rows["13c"][2:4] == ["did not run", "needs sm_90"]
    assert set(decode_board.CHAPTERS) == set(PHASES.timed()) - {"0", "9c"}


def test_grounds_of_a_decision_are_the_figures() -> None:
    rows = {row[0].split()[0]: row[2:] for row in decode_board.kept_table(made()).rows}
    assert rows["9a"] == ["0.750, revert", "0.906, revert", "revert", "by its own figure"]
    assert rows["12"] == ["0.998, no difference", "5.000, keep", "keep", "by the figure at 2,048"]
    assert rows["9b"][0] == "1.023, keep"
    slow = Times("12", 2048, (2600.0,) * 5)
    times = [slow if (t.name, t.context) == ("12", 2048) else t for t in made().times]
    rows = {
        row[0].split()[0]: row for row in decode_board.kept_table(made(times=tuple(times))).rows
    }
    assert rows["12"][-1].endswith("this run alone would not keep it")


def test_sentences_follow_the_figures() -> None:
    run = made()
    assert "Our fastest phase is ahead of llama.cpp at every measured context: 1.30 to 1.50" in (
        decode_board.summary(run)
    )
    slow = [dataclasses.replace(t, us=tuple(9e3 for _ in t.us)) if (t.name, t.context) == ("12", 2048) else t
            for t in run.times]  # fmt: skip
    behind = decode_board.summary(made(times=tuple(slow)))
    assert "ahead of llama.cpp at 1 of 2 contexts: 0.26 to 1.50" in behind
    assert "context 128 the step that saves the most is 10" in decode_board.steps_sentence(run, 128)
    assert "12 (1 us slower), 9a (301 us slower)" in decode_board.steps_sentence(run, 128)
    assert "2,048 the step that saves the most is 12" in decode_board.steps_sentence(run, 2048)
    assert decode_board.held_back(made(stages=(), stages_reason="no kernel")) == (
        "No stages were recorded: no kernel"
    )
    assert "Multiplying takes 3 us of 36" in decode_board.held_back(run)


def test_aims_are_reached_or_not() -> None:
    rows = decode_board.aims_table(made()).rows
    assert [row[1:] for row in rows] == [
        ["400 us", "401.8 us", "NO"], ["250 us", "401.8 us", "NO"], ["40 us", "99.2 us", "NO"]
    ]  # fmt: skip


def test_every_stage_has_a_kind_and_all_add_up() -> None:
    stages = made().stages[0]
    parts = decode_board.by_kind(stages)
    assert sum(parts.values()) == pytest.approx(stages.token_us)
    assert (
        parts["waiting for messages, norm, int8"] == 6
        and parts["attention, its messages included"] == 3
    )
    assert set(parts) == set(decode_plots.KIND_LOOKS)
    assert decode_board.kinds_table(made()).rows[-1][1] == f"{stages.token_us:,.1f} us"


def test_without_llama_cpp_tables_say_why() -> None:
    ours = tuple(t for t in made().times if t.name != LLAMA_CPP)
    run = made(times=ours, peer_reason="none was given")
    assert decode_board.peer_table(run).rows == [["did not run: none was given"]]
    assert decode_board.ladder_table(run).rows[0][7] == "not measured"
    assert "llama.cpp" not in decode_board.summary(run)


def test_pictures_draw_what_they_are_given() -> None:
    run = made()
    bars = decode_plots.by_phase(run, 128, first="9b").data[0]
    assert list(bars.x) == ["9b", "10", "12"] and list(bars.y) == [run.us(n, 128) for n in bars.x]
    lines = decode_plots.by_context(run, ["8b", "13c", "12"]).data
    assert [line.name for line in lines] == [
        "phase 8b",
        "phase 12",
        "llama.cpp",
        "the bytes of 12 alone",
    ]
    stages = decode_plots.layer_stages(run.stages[0], "a layer").data
    assert [bar.x[0] for bar in stages] == [run.stages[0].median(s) for s in US]
    assert [bar.base[0] for bar in stages] == [0.0, 2.0, 3.0, 3.0]
    assert decode_plots.kinds(run).data[-1].name == "its bytes alone"


def test_estimates_take_the_products_for_bytes_and_the_rest_for_waits() -> None:
    run = made()
    assert card_estimate.waits(run.stages[0]) == pytest.approx((10.5 / 3, 2.0))
    gpu, bytes_us, (during, turns) = card_estimate.estimates(run, 128)["H200"]
    nbytes = 545_000_000 + 69_600_000 + 128 * 22_528
    assert bytes_us == pytest.approx(nbytes / gpu.bandwidth / 1e3) == during
    assert turns == pytest.approx(bytes_us + 10.5 + 2.0)
    rows = {row[0]: row[-1] for row in card_estimate.estimates_table(run, 128).rows}
    assert rows["H200"] == "402 us"
    assert {rows[name] for name in rows if name != "H200"} == {"not measured"}


# ---- prose ----


def test_what_the_seed_saw() -> None:
    assert [PHASES[p].seed_tokens_per_second for p in ("0", "8b")] == [53.67, 151.48]
    assert 0.49 < 151.48 / 305 < 151.48 / 294 < 0.52  # half as fast
    ids = list(PHASES)
    assert len(ids[ids.index("8b") + 1 :]) == 10


def test_what_needs_which_card() -> None:
    arch = {name: v.arch for name, v in op("persistent").variants.items()}
    assert arch == {"grid_barriers": 75, "messages": 75, "bulk": 90}
    tiles = ("gemv_tiles", "ffn_tiles", "logits_q8_0", "norm_qkv", "attention_split")
    assert all(v.arch <= 75 for name in tiles for v in op(name).variants.values())


@pytest.fixture(scope="module")
def recorded() -> DecodeRun:
    try:
        return decode_board.recorded_decode()
    except LabError:
        pytest.skip(f"data/runs/{decode_board.RECORDED}.json is not recorded yet")


def test_the_recorded_run_is_an_h200s_with_all_phases_and_llama_cpp(recorded: DecodeRun) -> None:
    assert recorded.environment["device"] == "NVIDIA H200"
    assert decode_board.ladder(recorded) == [p for p in PHASES.timed() if p != "9c"]
    assert not recorded.refused and recorded.peer is not None and recorded.peer.on == "the GPU"
    assert recorded.contexts == [16, 128, 256, 2048, 4000]
    late = {t.name for t in recorded.times if t.context > EARLY_CONTEXT}
    assert not late & set(EARLY)
    assert {t.name for t in recorded.times} - late == set(EARLY)


def test_the_head_gets_smaller_at_phase_10(recorded: DecodeRun) -> None:
    heads = recorded.heads
    order = decode_board.ladder(recorded)
    at = order.index("10")
    assert {heads[p] for p in order[:at]} == {32000 * 2048 * 4}
    assert {heads[p] for p in order[at:]} == {32000 * 2048 // 32 * 34}
    assert round(heads["9b"] / heads["10"], 1) == 3.8


def test_texts_are_the_same_model(recorded: DecodeRun) -> None:
    assert {t.tokens for t in recorded.texts} == {64}
    of = {t.name: t for t in recorded.texts if t.model == recorded.texts[0].model}
    assert set(of) == set(decode_board.ladder(recorded))
    for name in ("10", "11", "12", "13a", "13b", "13c"):
        assert of[name].to_reference > 100 * of["8b"].to_reference
        assert 2 / 3 < of[name].to_rounded / of[name].to_reference < 1.5
        assert of[name].to_reference < 0.05
    assert all(t.ok for t in recorded.texts), str(recorded)


def test_stages_of_a_block_without_attention_and_of_one_with(recorded: DecodeRun) -> None:
    assert [(s.name, s.block, s.context) for s in recorded.stages] == [
        ("13c", 5, 128), ("13c", 5, 2048), ("13c", 0, 128), ("13c", 0, 2048)
    ]  # fmt: skip
    without, with_it = (s for s in recorded.stages if s.context == 128)
    assert without.median("attention") < with_it.median("attention")
    assert without.blocks == 132


def test_one_launch_by_itself_is_slower_and_with_messages_pays(recorded: DecodeRun) -> None:
    assert decode_board.base_of(recorded, "13b") == "12" and PHASES["13a"].verdict == "revert"
    for context in recorded.contexts:
        barriers, messages = (
            decode_board.comparison(recorded, name, "12", context) for name in ("13a", "13b")
        )
        assert (barriers.verdict, messages.verdict) == ("revert", "keep")


def test_what_the_run_does_not_have(recorded: DecodeRun) -> None:
    assert {t.model for t in recorded.texts} == {"Storyteller"}
    assert all(s.token_us < 0.95 * s.timed_us for s in recorded.stages)  # the two clocks differ
