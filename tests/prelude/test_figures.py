"""The figures of the steps: named, in their units, and timed around every product and nothing else."""

from pathlib import Path

import numpy as np
import pytest

from sovereign_lab.measure import prelude as measured
from sovereign_lab.models.model import load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic
from sovereign_lab.prelude import STEPS, CpuRunner
from sovereign_lab.prelude.bandwidth import floor_ms
from sovereign_lab.prelude.steps import token_bytes

SHAPE = SyntheticShape(2, 64, 96, 4, 2, 32, 400, context=64)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SHAPE, seed=3)


def test_every_step_gets_its_figures(path: Path) -> None:
    model = load_model(path)
    steps = STEPS[1:3]
    found = {
        f.what: f for f in measured.figures(model, steps, tokens=4, repeats=2, memory_bytes=4096)
    }
    assert len(found) == 1 + 3 * len(steps)
    memory = found[measured.MEMORY]
    assert memory.unit == "GB/s" and memory.repeats == 5
    for chosen in steps:
        rate, spent = found[measured.decode(chosen)], found[measured.products(chosen)]
        assert (rate.unit, rate.repeats) == ("tok/s", 2)
        assert (spent.unit, spent.repeats) == ("ms", 2)
        assert 0 < spent.low <= spent.value <= spent.high
        least = floor_ms(token_bytes(model.config, chosen), memory.high)
        assert found[measured.floor(chosen)].value == pytest.approx(least)


def test_a_timed_step_counts_every_product_and_changes_none(path: Path) -> None:
    model = load_model(path)
    seconds: list[float] = []
    runner = CpuRunner(model, measured.timed(STEPS[1], seconds))
    seconds.clear()
    logits = runner.logits([5, 6])
    assert len(seconds) == 2 * (7 * model.config.layers + 1)
    assert all(each > 0 for each in seconds)
    np.testing.assert_array_equal(logits, CpuRunner(model, STEPS[1]).logits([5, 6]))


def test_a_run_says_how_busy_the_machine_was() -> None:
    facts = measured.environment()
    assert float(facts["load_before"]) >= 0
    assert facts["device"].endswith(" cores") and facts["numba"]
