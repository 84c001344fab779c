"""Batches are timed over exactly the steps that are asked for, whatever tokens come; a run can be kept."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine
from sovereign_lab.errors import LabError
from sovereign_lab.measure.batch import PROMPT, BatchRun, BatchSpeed, batch_speeds, main
from sovereign_lab.models.model import load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

SHAPE = SyntheticShape(1, 32, 32, 2, 1, 16, 300, context=64)


@pytest.fixture(scope="module")
def engine(any_device: Device, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    model = load_model(write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", SHAPE, seed=3))
    # Every token ends a text here, which must not make a step cheaper.
    ends = dataclasses.replace(model.tokenizer, eog_ids=frozenset(range(300)))
    return Engine(dataclasses.replace(model, tokenizer=ends), any_device, "9c")


def test_every_step_is_taken_by_every_sequence(engine: Engine) -> None:
    speeds = batch_speeds(engine, (1, 3), tokens=4, repeats=2)
    assert [(s.sequences, s.tokens, s.position, len(s.samples)) for s in speeds] == [
        (1, 4, PROMPT - 1, 2),
        (3, 4, PROMPT - 1, 2),
    ]
    assert engine.batch is not None
    position = engine.device.to_host(engine.batch.state.position)
    assert np.array_equal(position, [PROMPT - 1 + 4] * 3)
    # Texts end again afterwards.
    assert [g.finish_reason for g in engine.generate_batch(["a", "b", "c"], 3)] == ["stop"] * 3


def test_tokens_a_second_are_those_of_all_sequences() -> None:
    speed = BatchSpeed(sequences=8, tokens=64, position=16, samples=(5.0, 4.0, 2.0))
    assert speed.ms == 4.0
    assert speed.tokens_per_second == 2000.0
    assert "8 sequences:    2,000.0 tokens/s, 4.000 ms a step" in str(speed)


def test_what_cannot_be_timed_is_a_sentence(engine: Engine) -> None:
    with pytest.raises(LabError, match=r"at least 1 sequence; got the sizes \(1, 0\)"):
        batch_speeds(engine, (1, 0))
    with pytest.raises(LabError, match="over 1 to 48 tokens in a context of 64; got 49"):
        batch_speeds(engine, (1,), tokens=49)
    with pytest.raises(LabError, match="need phase 9c"):
        batch_speeds(engine.with_phase("8b"), (1,), tokens=2)


def test_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, kept = write_synthetic(tmp_path / "m.gguf", SHAPE, seed=3), tmp_path / "run.json"
    line = f"x --device simt --model {model} --sizes 2 --tokens 2 --record {kept}"
    monkeypatch.setattr(sys, "argv", line.split())
    main()
    run = BatchRun.read(kept)
    assert [s.sequences for s in run.speeds] == [2] and run.phase == "9c"
    assert str(run) in capsys.readouterr().out
