"""Verdicts from samples, and that the measurements measure what they say; no test asserts a time."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.errors import LabError
from sovereign_lab.measure.compare import Comparison, compare, median_interval
from sovereign_lab.measure.ladder import LadderRun, climb
from sovereign_lab.measure.timing import decode_ms, start_at
from sovereign_lab.models.model import load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic


@pytest.fixture(scope="module")
def engine(simt: Device, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    shape = SyntheticShape(1, 64, 96, 2, 1, 32, 300, context=64)
    path = write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", shape, seed=3)
    return Engine(load_model(path), simt, "3")


def comparison(ratios: np.ndarray) -> Comparison:
    speedup, low, high = median_interval(ratios)
    return Comparison("a", "b", "test", tuple(ratios), (1.0,) * len(ratios), speedup, low, high)


@pytest.mark.parametrize(
    ("center", "spread", "verdict"),
    [
        (1.3, 0.05, "keep"),
        (0.8, 0.05, "revert"),
        (1.0, 0.05, "no difference"),
        (1.005, 0.0005, "no difference"),  # sure, and not worth it
        (1.02, 0.2, "no difference"),  # perhaps, and not sure
        (1.02, 0.001, "keep"),
    ],
)
def test_verdicts(center: float, spread: float, verdict: str) -> None:
    ratios = center + spread * np.linspace(-1, 1, 11)
    assert comparison(ratios).verdict == verdict


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        _, low, high = median_interval(1 + 0.1 * rng.standard_normal(15), resamples=400)
        hits += low <= 1 <= high
    assert 0.88 <= hits / 200 <= 1


def test_compare_runs_both_phases_in_turn(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def fake(e: Engine, position: int, tokens: int, sampling: Sampling) -> float:
        seen.append(e.phase.id)
        return {"3": 2.0, "5": 1.0}[e.phase.id]

    monkeypatch.setattr("sovereign_lab.measure.compare.decode_ms", fake)
    result = compare(engine, "3", "5", rounds=5)
    assert seen[2:] == ["3", "5", "5", "3", "3", "5", "5", "3", "3", "5"]
    assert result.speedup == 2 and result.verdict == "keep"
    assert "phase 5 against phase 3" in str(result) and str(result).endswith("keep")
    with pytest.raises(LabError, match="at least 5 rounds"):
        compare(engine, "3", "5", rounds=4)


def test_start_at_puts_the_engine_where_it_says(engine: Engine) -> None:
    start_at(engine, 20)
    engine.run(engine.decode_calls)
    device = engine.device
    assert device.to_host(engine.state.position)[0] == 21
    assert np.isfinite(device.to_host(engine.state.logits)).all()
    assert decode_ms(engine, 5, 3) > 0
    assert device.to_host(engine.state.position)[0] == 8
    for position, tokens, message in (
        (64, 1, "do not fit"),
        (60, 5, "do not fit"),
        (-1, 1, "0 to 63"),
    ):
        with pytest.raises(LabError, match=message):
            decode_ms(engine, position, tokens)


def test_ladder_gives_each_phase_its_gain_over_its_base(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"0": 8.0, "2": 8.0, "3": 4.0, "5": 2.0}
    monkeypatch.setattr(
        "sovereign_lab.measure.ladder.decode_ms",
        lambda e, position, tokens, sampling: times[e.phase.id],
    )
    rungs = list(climb(engine, ["0", "2", "3", "5"], [1, 9], tokens=2))
    assert [(r.phase, r.context) for r in rungs] == [
        (p, c) for p in ("0", "2", "3", "5") for c in (1, 9)
    ]
    assert [r.gain for r in rungs] == [None, None, 1, 1, 2, 2, 2, 2]
    assert rungs[0].seed_gain is None and rungs[2].seed_gain == pytest.approx(60.58 / 53.67)
    assert rungs[0].tokens_per_second == 125
    assert dataclasses.asdict(rungs[0])["samples"] == (8.0,) * 5


def test_ladder_command_keeps_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from sovereign_lab.cli import main

    out = tmp_path / "run.json"
    arguments = "ladder --model synthetic:tiny --device simt --phases 3,5,9a --tokens 1 --context 2"
    assert main([*arguments.split(), "--json", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("3 ") and lines[3].startswith("5 ")
    under_context = lines[1].index("context") + len("context")  # whatever the length of a title
    assert all(line[:under_context].endswith("  2") for line in lines[2:5])
    run = json.loads(out.read_text())
    assert [r["phase"] for r in run["rungs"]] == ["3", "5", "9a"]
    assert run["environment"]["device"].startswith("SIMT device") and run["rungs"][1]["gain"] > 0
    assert (run["sampling"]["temperature"], run["sampling"]["top_p"]) == (0.8, 0.95)
    kept = LadderRun.read(out)
    kept.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == out.read_text()
    rung = kept.rung("5", 2)
    assert rung is not None and len(rung.samples) == 5 and kept.rung("5", 3) is None


@pytest.mark.parametrize("phase", ["0", "2"])
def test_sampling_is_part_of_the_time(engine: Engine, phase: str) -> None:
    at_phase = engine.with_phase(phase)
    assert decode_ms(at_phase, 5, 3, Sampling(temperature=0.8, top_p=0.95)) > 0
    device, state = engine.device, at_phase.state
    assert device.to_host(state.position)[0] == 8
    # Each token was chosen and put where the next position reads it.
    assert device.to_host(state.tokens)[6:9].max() < engine.model.config.vocab
    assert device.to_host(state.given)[0] == (engine.context + 1 if phase == "0" else 6)
