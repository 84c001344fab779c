"""Where Tensor Cores pay: what is measured, kept, and read again."""

from pathlib import Path

import pytest

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine import Engine
from sovereign_lab.measure import tensor_cores
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.tensor_cores import Prefill, Product, TensorRun
from sovereign_lab.measure.workload import config_of
from sovereign_lab.models import load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic


def made(**us: list[float]) -> TensorRun:
    """A run of one matrix, counts 1, 2, 4 and so on."""
    products = [
        Product("WO", 64, 32, kernel, 2**i, t)
        for kernel, times in us.items()
        for i, t in enumerate(times)
    ]
    pair = Comparison("a", "b", "some GPU", (2.0, 2.5), (1.0, 1.25), 2.0, 1.9, 2.1)
    return TensorRun({"date": "2026-12-01"}, "m", tuple(products), (pair,), (Prefill(9, pair),))


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = made(slow=[1.0, 2.0], fast=[1.5, 1.6])
    run.write(tmp_path / "run.json")
    assert TensorRun.read(tmp_path / "run.json") == run
    assert run.prefill[0].tokens_per_second == pytest.approx((1e3 / 2.25, 1e3 / 1.125))
    assert "prefill of 9 tokens: 444 tokens/s one by one, 889 in blocks" in str(run)


def test_the_crossing_is_the_count_from_which_on_it_stays_faster() -> None:
    run = made(a=[1, 2, 4, 8], late=[3, 3, 3, 3], never=[9, 9, 9, 9], back=[0.5, 3, 3, 3])
    assert run.crossing("WO", "a", "late") == 4
    assert run.crossing("WO", "a", "never") is None
    assert run.crossing("WO", "a", "back") == 4
    assert run.crossing("WO", "never", "late") == 1


def test_operations_count_a_multiplication_and_an_addition() -> None:
    assert Product("WO", 1000, 500, "k", 10, 5.0).tflops == pytest.approx(
        2 * 1000 * 500 * 10 / 5e-6 / 1e12
    )


def test_every_kernel_is_timed_on_every_product(
    simt: SimtDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_cores, "LAUNCHES", 1)
    monkeypatch.setattr(tensor_cores, "REPEATS", 1)
    found = list(tensor_cores.products(simt, config_of(), counts=(1, 3)))
    kernels = {*tensor_cores.ONE_TOKEN, *tensor_cores.BATCHED}
    assert {(p.matrix, p.kernel, p.count) for p in found} == {
        (m, k, n) for m in tensor_cores.matrices(config_of()) for k in kernels for n in (1, 3)
    }
    assert all(p.us > 0 for p in found)


def test_prompts_that_do_not_fit_are_left_out(simt: SimtDevice, tmp_path: Path) -> None:
    shape = SyntheticShape(1, 64, 96, 2, 1, 32, 300, context=64)
    engine = Engine(load_model(write_synthetic(tmp_path / "m.gguf", shape)), simt, "8c")
    found = list(tensor_cores.prefills(engine))
    assert [p.tokens for p in found] == [33]
    assert min(found[0].tokens_per_second) > 0
