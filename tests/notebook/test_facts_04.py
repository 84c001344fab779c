"""What chapter 04 says of the seed, of counts and of distributions is so."""

import csv
from pathlib import Path

import numpy as np
import pytest
from edited_cells import counts

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.engine.stream import RUN_AHEAD
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.ladder import LadderRun, Rung
from sovereign_lab.measure.workload import config_of, workload
from sovereign_lab.models.catalog import resolve
from sovereign_lab.models.model import load_model
from sovereign_lab.notebook import samplers
from sovereign_lab.notebook.runs import GREEDY_LADDER, SAMPLED_LADDER, recorded_ladder, recorded_run
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.notebook.threads import meetings


def test_the_seeds_figures(repository: Path) -> None:
    with (repository / "data" / "seed_results.csv").open() as file:
        rows = {r["phase"]: r for r in csv.DictReader(file)}
    before, after = (1e3 / float(rows[p]["tokens_per_second"]) for p in "02")
    assert (round(before, 2), round(after, 2)) == (18.63, 16.51)
    assert round(before - after, 2) == 2.13
    assert round(before - float(rows["0"]["ms_per_forward"]), 2) == 1.72
    assert round(before / after, 2) == 1.13


def test_what_the_filter_does_to_made_distributions() -> None:
    rows = {row[0]: row[1:] for row in samplers.filter_table(samplers.made_logits(), 0.95).rows}
    assert {name: row[-1] for name, row in rows.items()} == {
        "sure: 1 / rank^3": "yes", "like word counts: 1 / rank": "no", "nearly flat": "no"
    }  # fmt: skip
    assert rows["like word counts: 1 / rank"][2] == "67.5%"  # a third of the mass lies below
    assert rows["nearly flat"][1] == "0" and rows["nearly flat"][4] == "1"
    assert rows["nearly flat"][3] == "30,039"


def test_a_host_in_the_loop() -> None:
    assert RUN_AHEAD == 16
    assert 4 * TINYLLAMA.vocab == 128_000


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    """The storyteller's, where it makes up a name."""
    model = load_model(resolve("storyteller"))
    engine = Engine(model, SimtDevice())
    return engine.logits(model.tokenizer.encode("Once upon a time, a little pig named"))[-1]


def test_how_often_the_variants_read_a_logit(logits: np.ndarray) -> None:
    bisect, gather = (op("sample").variant(name) for name in ("bisect", "gather"))
    assert len(samplers.full_sort(logits, 0.8, 0.95)[0]) == 236
    by_variant = [samplers.sample_trace(v, logits) for v in (bisect, gather)]
    assert [np.median(samplers.reads(t)) for t in by_variant] == [35, 1]
    assert meetings(by_variant[0]) > 20 * meetings(by_variant[1])


def test_gather_falls_back_on_the_made_up_weights_of_the_recorded_run() -> None:
    for seed in range(3):
        logits = 3 * np.random.default_rng(seed).standard_normal(TINYLLAMA.vocab)
        assert np.count_nonzero(logits >= logits.max() + np.log(1e-4)) > 2000
    model = load_model(resolve("synthetic:tiny"))
    spread = Engine(model, SimtDevice()).logits([1, 2, 3]).std(axis=1)
    assert (abs(spread - 3) < 0.5).all()


def test_what_the_recorded_ladders_say_of_a_draw() -> None:
    sampled, greedy = (recorded_ladder(name) for name in (SAMPLED_LADDER, GREEDY_LADDER))
    choice = sampled.sampling
    assert (choice.temperature, choice.top_p, choice.top_k) == (0.8, 0.95, 0)
    assert greedy.sampling.temperature == 0
    assert sampled.environment["device"] == greedy.environment["device"] == "NVIDIA H200"

    def rung(run: LadderRun, phase: str, context: int = 16) -> Rung:
        found = run.rung(phase, context)
        assert found is not None
        return found

    before, after = (rung(sampled, phase) for phase in "02")
    assert [round(r.tokens_per_second, 1) for r in (before, after)] == [99.2, 168.0]
    assert round(after.tokens_per_second / before.tokens_per_second, 2) == 1.69
    contexts = sorted({r.context for r in sampled.rungs})
    times = {c: [rung(sampled, p, c).ms_per_forward for p in "02"] for c in contexts}
    saved = [a - b for a, b in times.values()]
    assert (round(min(saved), 1), round(max(saved), 1), saved[0]) == (4.1, 4.9, min(saved))
    ratios = [a / b for a, b in times.values()]
    assert ratios == sorted(ratios, reverse=True)

    alone = [rung(greedy, p) for p in "02"]
    assert [round(r.tokens_per_second, 1) for r in alone] == [176.5, 176.3]
    drawing = [
        with_draw.ms_per_forward - without.ms_per_forward
        for with_draw, without in zip((before, after), alone, strict=True)
    ]
    assert [round(ms, 2) for ms in drawing] == [4.41, 0.28]
    assert 0.75 < drawing[0] / alone[0].ms_per_forward < 0.8, "the draw, as part of a pass"


def test_what_a_draw_takes_on_an_h200() -> None:
    made_up, story = recorded_run(samplers.MADE_UP), samplers.story_draws()
    assert recorded_run(samplers.STORY).device == made_up.device == "NVIDIA H200"
    bisect, gather = (made_up.value(f"  sample:{v}, at position 16") for v in ("bisect", "gather"))
    assert round(gather / bisect, 2) == 1.26
    assert len(story) == 40
    us = {v: np.array([p.us[v] for p in story]) for v in ("bisect", "gather")}
    assert (round(us["bisect"].min()), round(us["bisect"].max())) == (28, 32)
    assert round(np.median(us["bisect"]) / np.median(us["gather"]), 1) == 7.2
    assert round(us["bisect"].mean() / us["gather"].mean(), 1) == 4.0
    slower = [p.candidates for p in story if p.us["gather"] > p.us["bisect"]]
    assert sorted(slower) == [262, 474]
    assert max(p.candidates for p in story) == 474
    assert max(p.candidates for p in story if p.us["gather"] < p.us["bisect"]) == 149


def test_phase_2_draws_by_gather() -> None:
    assert PHASES["2"].change == {"sample": "gather"}
    assert PHASES["2"].verdict == "keep" and PHASES["3"].base == "2"


def test_more_room_trades_loads_for_comparisons() -> None:
    figures = counts("04")
    assert figures["load requests"] == (2466, 256)
    warps = 1024 / 32
    assert [count / warps for count in figures["barriers"]] == [72, 5]
    assert figures["shared-memory wavefronts"] == (31_040, 99_391)
    logits = workload(op("sample"), config_of())["logits"]
    assert len(logits) == 2048
    assert np.count_nonzero(logits >= logits.max() + np.log(1e-4)) == 722
