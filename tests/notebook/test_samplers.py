"""The host samplers of chapter 04: what they keep, when the filter differs, and what passes between host and device."""

import numpy as np
import pytest

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine import Engine
from sovereign_lab.engine.sampling import Sampling, candidates, penalised
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.ladder import LadderRun, Rung
from sovereign_lab.models.catalog import resolve
from sovereign_lab.models.model import load_model
from sovereign_lab.notebook import samplers
from sovereign_lab.notebook.runs import recorded_ladder
from sovereign_lab.notebook.samplers import (
    UNLIKELY,
    DrawTimes,
    filtered,
    full_sort,
    softmax,
)
from sovereign_lab.notebook.sampling_plots import time_by_candidates


def random_case(seed: int) -> tuple[np.ndarray, float, float]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, rng.choice([0.0, 0.5, 3, 6]), int(rng.choice([1, 9, 500, 20_000])))
    temperature, top_p = float(rng.choice([0.3, 0.8, 1.7])), float(rng.choice([0, 0.5, 0.95, 1]))
    return logits.astype(np.float32), temperature, top_p


@pytest.mark.parametrize("seed", range(40))
def test_full_sort_gives_the_candidates_of_the_engine(seed: int) -> None:
    logits, temperature, top_p = random_case(seed)
    sampling = Sampling(temperature=temperature, top_p=top_p)
    ids, probabilities = candidates(penalised(logits, [], sampling), sampling)
    found = full_sort(logits, temperature, top_p)
    order = np.argsort(found[0]) if top_p == 1 else slice(None)  # the engine sorts nothing then
    assert np.array_equal(found[0][order], ids)
    np.testing.assert_allclose(found[1][order], probabilities, rtol=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_filter_differs_exactly_where_the_likely_do_not_reach_top_p(seed: int) -> None:
    logits, temperature, top_p = random_case(seed)
    full, cut = full_sort(logits, temperature, top_p), filtered(logits, temperature, top_p)
    probabilities = softmax(logits)
    likely = np.flatnonzero(probabilities >= min(UNLIKELY, probabilities.max()))
    in_order = np.sort(probabilities[likely])[::-1]
    # Every token is likely, or the likely ones alone reach top_p, summed as the sort sums them.
    enough = likely.size == logits.size or (top_p < 1 and np.cumsum(in_order)[-1] >= top_p)
    assert np.array_equal(full[0], cut[0]) == enough
    if enough:
        assert np.array_equal(full[1], cut[1])
    else:
        assert set(cut[0]) == set(likely), "all that is likely stays, and the tail is lost"
    assert set(cut[0]) <= set(full[0])
    assert cut[1].sum() == pytest.approx(1)


@pytest.mark.parametrize("sampler", [full_sort, filtered])
def test_draws_from_the_candidates_follow_the_engines(sampler: samplers.Sampler) -> None:
    logits = np.random.default_rng(3).normal(0, 2, 60).astype(np.float32)
    ids, probabilities = sampler(logits, 0.8, 0.9)
    draws = 20_000
    counts = np.bincount(np.random.default_rng(0).choice(ids, draws, p=probabilities), minlength=60)
    sampling = Sampling(temperature=0.8, top_p=0.9)
    due = dict(
        zip(*(a.tolist() for a in candidates(logits.astype(np.float64), sampling)), strict=True)
    )
    assert set(np.flatnonzero(counts)) <= due.keys()
    chi_square = sum((counts[i] - draws * p) ** 2 / (draws * p) for i, p in due.items())
    assert chi_square < len(due) + 6 * np.sqrt(2 * len(due))


def test_copies_and_waits_are_counted_and_the_device_is_left_as_it_was(simt: SimtDevice) -> None:
    engine = Engine(load_model(resolve("synthetic:tiny")), simt)
    vocab = engine.model.config.vocab
    choice = Sampling(temperature=0.8, top_p=0.9)
    before = simt.to_host, simt.update
    by_host = samplers.loop_traffic(engine, samplers.on_host(choice, vocab), 16)
    by_device = samplers.loop_traffic(engine, choice, 16)
    assert by_host == samplers.Traffic(waits=16, to_host=16 * 4 * vocab, to_device=16 * 4)
    assert by_device == samplers.Traffic(waits=2, to_host=2 * 16 * 4, to_device=0)
    assert (simt.to_host, simt.update) == before
    table = samplers.traffic_table({"host": by_host, "device": by_device}, 16, vocab)
    assert table.rows[0][1:] == ["1", f"{4 * vocab:,}", "4", "128,000"]
    assert table.rows[1][1:] == ["0.125", "8", "0", "8"]


def test_draws_of_both_variants_and_of_a_text_are_the_same(simt: SimtDevice) -> None:
    args = samplers.sample_args(3 * np.random.default_rng(0).standard_normal(300), 0.8, 0.9)
    tokens = [
        samplers.draws(simt, source, args, range(10)).tolist()
        for v in op("sample").variants.values()
        for source in (v, v.source)
    ]
    assert tokens.count(tokens[0]) == 4 and len(set(tokens[0])) > 1
    shares = samplers.frequencies(np.array([3, 3, 5, 9]), np.array([3, 5, 7, 9]))
    assert shares.tolist() == [0.5, 0.25, 0, 0.25]
    with pytest.raises(LabError, match="Token 9 was drawn"):
        samplers.frequencies(np.array([3, 9]), np.array([3, 5]))


def test_excerpts_are_whole_functions() -> None:
    text = str(samplers.excerpt("sampling.cuh", "keep_top_p", "point_in").data)
    assert "// The fewest likeliest tokens" in text and "return kept;\n}" in text
    assert text.index("point_in(Mass total") > text.index("keep_top_p(")
    assert "draw_kept(" not in text
    assert "#pragma once" in str(samplers.excerpt("random.cuh").data)


def test_a_recorded_ladder_is_shown_beside_the_seeds_figures(simt: SimtDevice) -> None:
    here = {"0": 1.0, "2": 2.0}
    with pytest.raises(LabError, match=r"data/runs/no-such-ladder\.json is not there"):
        recorded_ladder("no-such-ladder")
    rungs = [
        Rung(phase, "", context, ms, (ms,), None, None)
        for context in (16, 512)
        for phase, ms in (("0", 8.0), ("2", 6.0))
    ]
    run = LadderRun(
        {"device": "GPU", "date": "today"}, "m", Sampling(temperature=0.8), tuple(rungs)
    )
    expected = ["16", "8.000 ms", "6.000 ms", "2,000 us", "1.33 times as fast"]
    assert samplers.recorded_table(run).rows[0] == expected
    columns = samplers.sampled_columns(run, here, "storyteller", simt.properties)
    assert [row[2] for row in columns.rows] == [
        "m", "125.00 tok/s", "8.00 ms", "166.67 tok/s", "6.00 ms", "1.33 times as fast"
    ]  # fmt: skip
    assert [row[1] for row in columns.rows] == [
        "TinyLlama-1.1B", "53.67 tok/s", "18.63 ms", "60.58 tok/s", "16.51 ms", "1.13 times as fast"
    ]  # fmt: skip


def test_a_draws_times_are_those_of_the_records() -> None:
    story = [
        DrawTimes(0, 1, {"bisect": 30.0, "gather": 4.0}),
        DrawTimes(1, 1, {"bisect": 31.0, "gather": 5.0}),
        DrawTimes(2, 300, {"bisect": 35.0, "gather": 60.0}),
    ]
    assert samplers.draw_table(story).rows[1:] == [
        ["the storyteller, 2,048 tokens: the median position", "31.0 us", "5.0 us"],
        ["the mean of its positions", "32.0 us", "23.0 us"],
        ["where 300 tokens are likely enough", "35.0 us", "60.0 us"],
    ]
    bisect, gather = time_by_candidates(story, "a title").data
    assert list(gather.x) == [1, 1, 300] and list(gather.y) == [4.0, 5.0, 60.0]
    assert (bisect.name, list(bisect.y)) == ("bisect", [30.0, 31.0, 35.0])
