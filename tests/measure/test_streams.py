"""The measurement of three streams: what it counts, that it runs from end to end, and where it refuses to."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine
from sovereign_lab.engine.forward import Call
from sovereign_lab.measure.bench import Figure
from sovereign_lab.measure.streams import Schedule, edges, main, measure, record, schedule
from sovereign_lab.measure.timing import start_at
from sovereign_lab.models.model import Model, load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

LAYERS = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    shape = SyntheticShape(LAYERS, 64, 96, 2, 1, 32, 300, context=64)
    return load_model(write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", shape, seed=3))


def calls(*branches: int | None) -> list[Call]:
    return [Call("add", {}, branch) for branch in branches]


def test_edges_of_a_chain_of_a_fork_and_of_branches_of_two() -> None:
    assert edges(calls(None, None, None)) == [(0, 1), (1, 2)]
    assert edges(calls(None, 0, 1, None)) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert edges(calls(None, 0, 0, 1, None)) == [(0, 1), (1, 2), (0, 3), (2, 4), (3, 4)]
    assert edges(calls(0, 1)) == []
    assert edges(calls(None, 0, 1, None, 0, 1)) == [
        (0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5)
    ]  # fmt: skip


def test_a_fork_of_three_is_four_records_and_six_waits() -> None:
    assert schedule(calls(None, 0, 1, 2, None)) == Schedule(5, 1, 4, 6, 6)
    assert schedule(calls(None, None)) == Schedule(2, 0, 0, 0, 1)


def test_events_counted_are_those_that_the_engine_makes(
    any_device: Device, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(model, any_device, "4", graphs=False, context=16)
    start_at(engine, 3)
    asked: list[int] = []
    fork = any_device.fork

    def counting(branches: int) -> AbstractContextManager[Sequence[object]]:
        asked.append(branches)
        return fork(branches)

    monkeypatch.setattr(any_device, "fork", counting)
    engine.run(engine.decode_calls)
    counted = schedule(engine.decode_calls)
    assert asked == [3] * LAYERS
    assert (counted.forks, counted.records, counted.waits) == (
        len(asked), sum(1 + n for n in asked), sum(2 * n for n in asked)
    )  # fmt: skip


def test_everything_is_measured_and_kept(any_device: Device, model: Model, tmp_path: Path) -> None:
    engine = Engine(model, any_device, "3", context=32)
    results = list(measure(engine, rounds=5, tokens=1, replays=1))
    comparisons = [r for r in results if isinstance(r, tuple)]
    assert [(mode, c.base, c.change) for mode, c in comparisons] == [
        ("in a graph", "phase 3", "phase 4"),
        ("launched one by one", "phase 3", "phase 4"),
        ("in a graph", "phase 3", "phase 3"),
    ]
    figures = {r.what: r for r in results if isinstance(r, Figure)}
    assert all(np.isfinite(f.value) and f.value >= 0 for f in figures.values())
    assert figures["WQ, blocks of 128 threads"].value == 16
    assert figures["WK, blocks of 128 threads"].value == 8
    assert figures["phase 4, forks of a pass"].value == LAYERS
    assert figures["phase 3, forks of a pass"].value == 0
    for what in ("WV alone, in a graph", "rmsnorm, then WQ, WK and WV side by side, in a graph"):
        assert figures[what].unit == "us" and figures[what].repeats == 7
    if any_device.properties.kind == "cuda":
        assert figures["blocks of it that the GPU holds"].value > 0
    path = tmp_path / "run.json"
    record(path, {"device": "a device", "date": "a day"}, "a model", results)
    run = json.loads(path.read_text())
    assert [f["what"] for f in run["figures"]] == list(figures)
    assert [c["verdict"] for c in run["comparisons"]] == [c.verdict for _, c in comparisons]


def test_command_refuses_a_device_without_streams(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run.json"
    assert main(["--model", "no such model", "--device", "simt", "--record", str(out)]) == 1
    assert "one after the other here" in capsys.readouterr().err
    assert not out.exists()
