"""What chapter 13 says in its prose, held to the recorded runs; and its figures, held to what they are given."""

import json
import statistics
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from sovereign_lab.engine import PHASES
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.errors import LabError
from sovereign_lab.measure.ladder import LadderRun, Rung
from sovereign_lab.measure.roofline import find_gpu, floor, token_bytes
from sovereign_lab.measure.stability import PromptSpeed, StabilityRun
from sovereign_lab.notebook import gap, plots, scoreboard, scoreboard_plots
from sovereign_lab.notebook.runs import GREEDY_LADDER, recorded_ladder, recorded_run
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA
from sovereign_lab.notebook.streams import recorded_streams

RUN = recorded_ladder()
GREEDY = recorded_ladder(GREEDY_LADDER)
OVER_PROMPTS = scoreboard.recorded_stability()
BENCH = recorded_run(scoreboard.BENCH)
GAP = gap.gap(BENCH)
PARTS = {part.name: part for part in GAP.parts}
LLAMA = gap.peer()
SMALL = PARTS["small ops"]
Q4_0 = PARTS["Q4_0 products, above their bytes"]


# ---- the ladder ----


def test_the_recorded_runs_are_an_h200s() -> None:
    for run in (RUN, GREEDY, OVER_PROMPTS):
        assert run.environment["device"] == "NVIDIA H200"
    assert (RUN.sampling, GREEDY.sampling) == (scoreboard.SAMPLING, Sampling())
    for phase in PHASES.measured():
        contexts = [r.context for r in RUN.rungs if r.phase == phase]
        assert contexts == [16, 256, 512, 1024, 2048, 4000, 4080]
        assert [r.context for r in GREEDY.rungs if r.phase == phase] == contexts[:2]
    assert 4080 + scoreboard.LADDER_TOKENS == 4096


def test_one_gpu_two_ladders() -> None:
    drawn, greedy = (scoreboard.over_first(scoreboard.rates(run)) for run in (RUN, GREEDY))
    assert [f"{of['8c']:.2f}" for of in (drawn, greedy)] == ["5.17", "3.40"]
    assert [f"{of['2']:.2f}" for of in (drawn, greedy)] == ["1.69", "1.00"]
    speeds = [scoreboard.rates(run)["8c"] for run in (RUN, GREEDY)]
    assert [f"{speed:.1f}" for speed in speeds] == ["512.8", "600.7"]
    seed = scoreboard.seed_rates()
    over_2 = [of["8b"] / of["2"] for of in (drawn, seed, greedy)]
    assert [f"{ratio:.2f}" for ratio in over_2] == ["2.41", "2.50", "2.59"]


def test_what_a_draw_costs() -> None:
    costs = scoreboard.choosing_us(RUN, GREEDY)
    ms = [1e3 / scoreboard.rates(RUN)[phase] for phase in ("0", "8c")]
    assert (f"{costs['0'] / 1e3:.1f}", f"{ms[0]:.1f}") == ("4.4", "10.1")
    later = [us for phase, us in costs.items() if phase != "0"]
    assert 280 <= min(later) <= max(later) < 290  # "0.28 ms"
    assert f"{costs['8c'] / 1e3 / ms[1]:.0%}" == "15%"
    gather = recorded_run(scoreboard.DRAWS).value("  sample:gather, at position 16")
    assert 0.95 * min(later) < gather < min(later)  # "nearly all of it"
    rows = {row[0]: row for row in scoreboard.choosing_table(RUN, GREEDY).rows}
    assert rows["0"][-1] == "the host"
    assert {row[-1] for phase, row in rows.items() if phase != "0"} == {"the GPU"}


def test_the_draw_is_far_cheaper_on_a_storys_logits() -> None:
    told = recorded_run(scoreboard.STORY_DRAWS).figures
    figures = [told[f"sample:{n}, over the 40 positions of a story"] for n in ("bisect", "gather")]
    assert [f"{figure.value:.0f}" for figure in figures] == ["29", "4"]


def test_the_seeds_host_took_1_7_ms_of_a_token() -> None:
    token_ms = 1e3 / scoreboard.seed_rates()["0"]
    assert (f"{token_ms:.1f}", f"{token_ms - 16.91:.1f}") == ("18.6", "1.7")


def test_streams_say_why_the_sign_of_phase_4_differs() -> None:
    figures = recorded_run("2026-11-30-sm_90-streams")
    passes = [
        figures.value(f"phase 3, a pass in a graph, {which}")
        for which in ("all launches", "without WK and WV")
    ]
    assert f"{1e3 * (passes[0] - passes[1]):.0f}" == "306"
    forks = [
        figures.value(f"an empty kernel, then three {how}, launched one by one")
        for how in ("side by side", "in turn")
    ]
    assert f"{forks[0] - forks[1]:.0f}" == "15"
    streams = recorded_streams()
    graph, loose = (streams.comparison(m) for m in ("in a graph", "launched one by one"))
    won_ms = statistics.median(graph.base_ms) - statistics.median(graph.change_ms)
    assert f"{1e3 * won_ms:.0f}" == "188"
    assert (f"{loose.speedup:.2f}", loose.verdict) == ("0.93", "revert")


def test_a_step_whose_sign_differs_has_what_was_measured_beside_it() -> None:
    differing = [s.phase for s in scoreboard.steps(RUN) if s.agrees is False]
    assert differing == list(scoreboard.WHY) == ["4", "8a", "8c"]


def test_every_step_names_a_chapter_that_is_there(repository: Path) -> None:
    for step in scoreboard.steps(RUN):
        assert list((repository / "notebooks").glob(f"{scoreboard.CHAPTERS[step.phase]}_*.ipynb"))


def test_signs() -> None:
    assert [scoreboard.word(r) for r in (None, 1.2, 0.9, 1.009, 0.995)] == [
        "not measured",
        "faster",
        "slower",
        "no difference",
        "no difference",
    ]


def test_the_seeds_signs() -> None:
    words = {s.phase: s.seed_word for s in scoreboard.steps(RUN)}
    assert [p for p, w in words.items() if w == "slower"] == ["4", "8a"]
    assert [p for p, w in words.items() if w == "no difference"] == ["8c"]


def test_steps_to_7_are_worth_a_tenth_where_the_context_is_long() -> None:
    short, long = (scoreboard.rates(RUN, at) for at in (16, 4000))
    assert short["7"] / short["3"] > 2
    assert 1.05 < long["7"] / long["3"] < 1.15
    assert long["8c"] / long["7"] > 2 > 1.5 > short["8c"] / short["7"]
    for phase in ("3", "5", "6", "7"):  # what grew with the position is attention's
        assert 1 - long[phase] / short[phase] > 0.8


def test_the_hosts_sampler_costs_about_the_same_at_every_position() -> None:
    short, long = (scoreboard.rates(RUN, at) for at in (16, 4000))
    assert [f"{1e3 / at['0'] - 1e3 / at['2']:.1f}" for at in (short, long)] == ["4.1", "4.6"]
    assert [f"{at['2'] / at['0']:.2f}" for at in (short, long)] == ["1.69", "1.14"]


def test_every_step_of_attention_gained_at_every_position() -> None:
    for phase in ("8a", "8b"):
        assert all(r.gain and r.gain > 1.01 for r in RUN.rungs if r.phase == phase)


def test_logits_were_worth_more_on_the_seeds_gpu() -> None:
    step = next(s for s in scoreboard.steps(RUN) if s.phase == "7")
    assert (f"{step.seed:.2f}", f"{step.recorded:.2f}") == ("1.28", "1.09")


def test_unmeasured_phases_are_said_to_be_so() -> None:
    only_first = {"a GPU": {"0": 2.0}}
    rows = {row[0]: row[2:] for row in scoreboard.ladder_table(only_first).rows}
    assert rows["0"] == ["2.0 tok/s", "1.00"]
    assert rows["8c"] == ["not measured", ""]
    seed = scoreboard.ladder_table({f"{GPU_NAME}, the seed's log": scoreboard.seed_rates()}).rows
    assert seed[-1][2:] == ["no figure", ""]


# ---- the roof ----


def test_operations_and_bytes_of_a_token() -> None:
    done, nbytes = scoreboard.operations(TINYLLAMA, 16), token_bytes(TINYLLAMA).at(16)
    assert (f"{done / 1e9:.2f}", f"{nbytes / 1e6:.0f}", f"{done / nbytes:.1f}") == (
        "2.07", "808", "2.6",
    )  # fmt: skip
    more = scoreboard.operations(TINYLLAMA, 17) - done
    assert (
        more == 4 * 22 * 32 * 64
    )  # a key and a value: a multiplication and an addition a dimension


def test_roofs_are_lanes_by_clock() -> None:
    assert f"{scoreboard.roof('NVIDIA H200').tflops:.0f}" == "67"
    assert f"{scoreboard.roof(GPU_NAME).tflops:.0f}" == "24"
    with pytest.raises(LabError, match="RTX 4090 was asked for"):
        scoreboard.roof("RTX 4090")


def test_dots_lie_under_the_slope_and_far_from_the_flat_part() -> None:
    for roof, dots in scoreboard.roofs(RUN, LLAMA).values():
        for dot in dots:
            assert dot.tflops < dot.intensity * roof.gpu.bandwidth / 1e3
            assert dot.tflops < 0.04 * roof.tflops
    assert f"{scoreboard.peer_dot(LLAMA).tflops / scoreboard.roof('H200').tflops:.0%}" == "3%"


def test_shares_of_the_floor() -> None:
    seed, h200 = find_gpu(GPU_NAME), find_gpu("H200")
    assert seed is not None and h200 is not None
    nbytes = token_bytes(TINYLLAMA)
    seeds = floor(nbytes.at(16), seed).ms * 151.48 / 1e3
    ours = RUN.rung("8c", 16)
    assert ours is not None
    theirs = floor(token_bytes(TINYLLAMA, gap.PEER_HEAD).at(64), h200).ms / LLAMA.us() * 1e3
    assert f"{theirs:.0%}" == "13%"
    assert seeds > theirs > floor(nbytes.at(16), h200).ms / ours.ms_per_forward


# ---- prompts ----


def test_the_seeds_range() -> None:
    rows = scoreboard.stability_table({"seed": scoreboard.seed_prompts()}).rows
    assert rows == [["seed", "4", "147.9 to 152.0 tok/s", "2.7%", "run once"]]


def test_the_h200s_range_is_twice_as_wide_and_its_repeats_are_not() -> None:
    assert OVER_PROMPTS.phase == "8b"
    assert (len(OVER_PROMPTS.speeds), {s.tokens for s in OVER_PROMPTS.speeds}) == (5, {200})
    assert f"{OVER_PROMPTS.width:.1%}" == "5.9%"
    assert f"{OVER_PROMPTS.widest_repeats:.1%}" == "0.3%"


def test_the_position_explains_the_width() -> None:
    rows = scoreboard.by_position_table(OVER_PROMPTS, RUN).rows
    assert rows[-1] == ["width", "", "", "5.9%", "5.8%"]
    speeds = [[float(row[i].split()[0]) for row in rows[:-1]] for i in (3, 4)]
    assert all(column == sorted(column, reverse=True) for column in speeds)
    shares = [measured / at for measured, at in zip(*speeds, strict=True)]
    behind = [1 - share for share in shares]
    assert (f"{min(behind):.1%}", f"{max(behind):.1%}") == ("0.5%", "0.7%")


def test_a_ladders_time_between_its_rungs() -> None:
    first, second = (RUN.rung("8b", at) for at in (16, 256))
    assert first is not None and second is not None
    middle = (first.ms_per_forward + second.ms_per_forward) / 2
    assert scoreboard.ladder_ms(RUN, "8b", 136 + 7.5) == pytest.approx(middle)
    with pytest.raises(LabError, match=r"Positions 16 to 4087\.5 were recorded; 5000"):
        scoreboard.ladder_ms(RUN, "8b", 5000)


def test_range_and_repeats_of_a_run() -> None:
    rows = scoreboard.stability_table({"a": {"x": [99.0, 100.0, 102.0], "y": [110.0] * 3}}).rows
    assert rows == [["a", "2", "100.0 to 110.0 tok/s", "9.5%", "up to 2.9%, 3 each"]]


# ---- the gap ----


def test_parts_and_floor_make_our_time() -> None:
    assert GAP.floor_us + sum(p.us for p in GAP.parts) == pytest.approx(GAP.ours_us)
    assert GAP.floor_us + GAP.peer_above_us == pytest.approx(GAP.peer_us)
    assert sum(p.us for p in GAP.parts) - GAP.peer_above_us == pytest.approx(GAP.us)


def test_figures_of_the_gap() -> None:
    assert [f"{us:,.0f}" for us in (GAP.ours_us, GAP.peer_us, GAP.us, GAP.floor_us)] == [
        "1,720", "1,080", "640", "140",
    ]  # fmt: skip
    assert f"{GAP.peer_above_us:.0f}" == "940"
    assert [f"{p.us:.0f}" for p in GAP.parts] == ["49", "4", "998", "66", "110", "257", "96"]
    assert [p.launches for p in (SMALL, Q4_0)] == [114, 132]
    assert f"{SMALL.launches * gap.NODE_US:.0f}" == "62"
    assert "208 MB more than as Q6_K" in PARTS["the head in FP32"].evidence


def test_bounds_of_the_parts() -> None:
    head = PARTS["the head in FP32"]
    assert GAP.bounds(head) == (head.us, head.us)
    assert f"{GAP.bounds(Q4_0)[0]:.0f}" == "58"
    assert GAP.bounds(Q4_0)[1] > GAP.us
    rows = {row[0]: row[3:5] for row in gap.parts_table(GAP).rows}
    assert rows["Q4_0 products, above their bytes"] == ["58 us", "640 us"]
    assert rows["small ops"] == ["0 us", "257 us"]


def test_arithmetic_at_the_roof_takes_31_us() -> None:
    us = scoreboard.operations(TINYLLAMA, 16) / scoreboard.roof("H200").tflops / 1e6
    assert f"{us:.0f}" == "31"


def test_what_grows_with_the_position() -> None:
    growth = gap.growth(BENCH)
    shares = {depth: f"{grown / gap_us:.0%}" for depth, (_, gap_us, grown) in growth.items()}
    assert shares == {0: "0%", 512: "65%", 2048: "88%", 3900: "93%"}
    assert f"{LLAMA.us(3900) - LLAMA.us():.0f}" == "80"
    assert round(growth[3900][0] - growth[0][0], -1) == 8960
    assert f"{LLAMA.rates[3900] / LLAMA.rates[0]:.0%}" == "93%"


def test_our_time_is_on_the_lines_between_the_recorded_ones() -> None:
    first, second = (BENCH.value(f"  phase 8c, at position {at}") for at in (16, 256))
    assert gap.our_us(BENCH, "8c", 16 + 15.5) == pytest.approx(1e3 * first)
    assert gap.our_us(BENCH, "8c", 16) == pytest.approx(
        1e3 * (first - 15.5 * (second - first) / 240)
    )
    assert gap.our_us(BENCH, "8c", 136 + 15.5) == pytest.approx(1e3 * (first + second) / 2)
    with pytest.raises(LabError, match=r"Positions 16 to 4015\.5 were recorded; 5000"):
        gap.our_us(BENCH, "8c", 5000)


def test_a_decode_of_128_tokens_took_about_the_time_that_the_lines_say() -> None:
    decode = 1e6 / BENCH.ladder()["8c"]
    assert decode == pytest.approx(GAP.ours_us, rel=0.02)


# ---- the profile ----


def test_shares_of_the_profile() -> None:
    profile = scoreboard.recorded_profile()
    assert (profile.device, profile.phase, profile.position) == ("NVIDIA H200", "8c", 16)
    shares = {row.op: row.share for row in profile.ops}
    assert f"{sum(shares[name] for name in gap.Q4_0_OPS):.0%}" == "70%"
    assert f"{shares['attention']:.0%}" == "4%"
    assert f"{profile.rest_us:.0f}" == "126"
    # Its 20 passes from position 16 on, and the other run's there.
    assert f"{profile.pass_us / gap.our_us(BENCH, '8c', 16 + 9.5) - 1:.0%}" == "2%"
    end_us = max(launch.start_us + launch.us for launch in profile.timeline)
    assert f"{end_us / profile.pass_us:.2f}" == "1.46"
    around = {"embedding", "logits", "argmax", "advance"}
    layers = [launch for launch in profile.timeline if launch.op not in around]
    assert len(layers) == 12 * TINYLLAMA.layers + 1  # and the norm before the head


# ---- figures ----


def made_up() -> LadderRun:
    rungs = [
        Rung(phase, "", context, 2.0 + i / 10 + context / 1000, (2.0,), None, None)
        for i, phase in enumerate(PHASES.measured())
        for context in (16, 4000)
    ]
    return LadderRun({"device": "NVIDIA H200", "date": "2026-01-01"}, "m", Sampling(), tuple(rungs))


def prompts() -> dict[str, list[float]]:
    speeds = (
        PromptSpeed("one", 1, 2, (1.0, 2.0), None),
        PromptSpeed("a" * 50, 3, 2, (3.0,), None),
    )
    return scoreboard.samples_of(StabilityRun({}, "m", "8c", Sampling(), speeds))


FIGURES: dict[str, Any] = {
    "bars": lambda: scoreboard_plots.ratio_bars({"a": {"0": 1.0, "8c": 3.0}, "b": {"0": 1.0}}, "t"),
    "roofline": lambda: scoreboard_plots.roofline(scoreboard.roofs(made_up(), LLAMA), "t"),
    "context": lambda: scoreboard_plots.context_speeds(made_up(), LLAMA, "t"),
    "strip": lambda: scoreboard_plots.prompt_strip({"a": prompts(), "b": {"x": [1.0]}}, "t"),
    "waterfall": lambda: scoreboard_plots.gap_waterfall(GAP, "t"),
}
every_figure = pytest.mark.parametrize("name", FIGURES)


@every_figure
def test_figures_fit_both_themes_and_are_the_same_each_time(name: str) -> None:
    figure: go.Figure = FIGURES[name]()
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert figure.layout.font.color == plots.TEXT
    assert figure.to_json() == FIGURES[name]().to_json()
    assert len(json.dumps(figure.to_dict(), default=str)) < 100_000


def test_a_bar_that_was_not_measured_is_not_drawn() -> None:
    _, second = FIGURES["bars"]().data
    assert second.y[0] == 1.0
    assert set(second.y[1:]) == {None}


def test_labels_of_an_axis_keep_apart() -> None:
    assert scoreboard_plots.apart([16, 256, 4000, 4080, 8000], 1.2) == [16, 256, 4000, 8000]
    assert scoreboard_plots.apart([], 1.2) == []


def test_every_phase_has_a_line_and_a_name() -> None:
    figure = FIGURES["context"]()
    assert len(figure.data) == len(PHASES.measured()) + 1
    names = ", ".join(a.text for a in figure.layout.annotations).split(", ")
    assert set(PHASES.measured()) <= set(names)


def test_names_of_neighbours_stand_together() -> None:
    labels = [(100.0, "a"), (200.0, "c"), (105.0, "b")]
    assert [text for _, text in scoreboard_plots.merged(labels, 1.1)] == ["a, b", "c"]


def test_the_waterfall_ends_at_both_totals() -> None:
    trace = FIGURES["waterfall"]().data[0]
    steps = dict(zip(trace.y, trace.x, strict=True))
    assert steps["ours"] == GAP.ours_us
    down = sum(x for name, x in steps.items() if name.startswith("- "))
    assert steps["ours"] + down == pytest.approx(steps["the floor of both"])
    up = steps["+ llama.cpp, not taken apart"]
    assert steps["the floor of both"] + up == pytest.approx(steps["llama.cpp"])
