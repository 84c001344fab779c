"""What chapter 01 says of bytes, of the seed and of the recorded run is what is counted and recorded."""

import csv
from pathlib import Path

import pytest

from sovereign_lab.measure import prelude as measured
from sovereign_lab.models import smollm2
from sovereign_lab.models.model import MATRICES, load_model
from sovereign_lab.notebook import cpu_steps
from sovereign_lab.notebook.runs import recorded_run
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.prelude import STEPS, step
from sovereign_lab.prelude.bandwidth import floor_ms
from sovereign_lab.prelude.steps import layer_weights, token_bytes

RUN = recorded_run("2026-11-30-cpu-smollm2-135m")


def test_the_seed_went_from_5_to_33_6(repository: Path) -> None:
    with (repository / "data" / "seed_results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "cpu"]
    assert [row["tokens_per_second"] for row in rows] == ["5", "33.6"]
    assert rows[0]["note"] == "about"
    assert round(1e3 / 33.6, 1) == 29.8
    assert 6.5 < 33.6 / 5 < 7  # "nearly seven times"


def test_bytes_are_as_the_chapter_says() -> None:
    mb = {s.id: token_bytes(cpu_steps.SMOLLM2, s) / 1e6 for s in STEPS}
    assert (round(mb["c"]), round(mb["b"])) == (173, 538)
    assert round(layer_weights(cpu_steps.SMOLLM2) / 1e6) == 106
    assert round(cpu_steps.SMOLLM2.vocab * cpu_steps.SMOLLM2.dim / 1e6) == 28
    storyteller = load_model().config
    assert round(token_bytes(storyteller, step("c")) / 1e6, 1) == 4.6
    assert round(token_bytes(storyteller, step("b")) / 1e6) == 20
    tiny = {s.id: token_bytes(TINYLLAMA, s) for s in STEPS}
    assert tiny["c"] < tiny["b"] / 4
    head = 4 * TINYLLAMA.vocab * TINYLLAMA.dim
    assert 0.32 < head / tiny["c"] < 0.34
    assert round(step("a").bytes_per_weight / step("c").bytes_per_weight) == 15


def test_the_shape_written_down_is_the_models() -> None:
    path = smollm2.present()
    if path is None:
        pytest.skip("smollm2-135m has not been made on this machine")
    made = load_model(path).config
    for name in ("layers", "dim", "ffn_dim", "heads", "kv_heads", "head_dim", "vocab", "context"):
        assert getattr(made, name) == getattr(cpu_steps.SMOLLM2, name), name


def test_the_run_has_every_step_and_its_floor() -> None:
    assert RUN.model == "smollm2-135m"
    memory = RUN.figures[measured.MEMORY].high
    for chosen in STEPS:
        assert RUN.figures[measured.decode(chosen)].unit == "tok/s"
        least = floor_ms(token_bytes(cpu_steps.SMOLLM2, chosen), memory)
        assert RUN.value(measured.floor(chosen)) == pytest.approx(least)
    rows = cpu_steps.steps_table(RUN.figures).rows
    assert [row[0][0] for row in rows] == ["a", "b", "c", "d", "e"]


def test_the_run_shows_what_the_chapter_reads_from_it() -> None:
    assert float(RUN.environment["load_before"]) < 0.3  # a quiet machine
    rate = {s.id: RUN.figures[measured.decode(s)] for s in STEPS}
    assert round(rate["b"].value / rate["a"].value, 1) == 7.0
    assert round(rate["c"].value / rate["a"].value, 1) == 4.1
    assert round(rate["c"].value / rate["b"].value, 2) == 0.59
    mb = {s.id: token_bytes(cpu_steps.SMOLLM2, s) for s in STEPS}
    assert round(mb["b"] / mb["c"], 1) == 3.1
    assert 1e3 / rate["b"].high < RUN.value(measured.floor(step("b")))
    assert round(1e3 / rate["c"].high / RUN.value(measured.floor(step("c"))), 1) == 3.3
    assert len(MATRICES) * cpu_steps.SMOLLM2.layers + 1 == 211
    best = sorted(round(RUN.figures[measured.products(step(id))].low) for id in "cde")
    assert (best[0], best[-1]) == (40, 45)
    assert min("cde", key=lambda id: rate[id].value) == "e"
    assert rate["d"].value < 1.01 * rate["c"].value
    assert max(rate, key=lambda id: rate[id].value) == "b"


def test_layers_packed_and_as_floats() -> None:
    weights = layer_weights(cpu_steps.SMOLLM2)
    assert round(weights * step("c").bytes_per_weight / 1e6) == 60
    assert round(weights * step("b").bytes_per_weight / 1e6) == 425
