"""Speeds over prompts: what is decoded, what is kept, and what is refused; no test asserts a time."""

import dataclasses
from pathlib import Path

import pytest

from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.errors import LabError
from sovereign_lab.measure import stability as module
from sovereign_lab.measure.stability import PROMPTS, PromptSpeed, StabilityRun, main, stability
from sovereign_lab.models.model import load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

TOKENS = 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = SyntheticShape(1, 64, 96, 2, 1, 32, 300, context=320)
    return write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", shape, seed=3)


@pytest.fixture
def engine(simt: Device, path: Path) -> Engine:
    return Engine(load_model(path), simt, "8b")


def speed(samples: tuple[float, ...]) -> PromptSpeed:
    return PromptSpeed("a", 1, TOKENS, samples, None)


def test_every_prompt_is_decoded_to_the_asked_length(engine: Engine) -> None:
    run = stability(engine, PROMPTS, TOKENS, repeats=2)
    encode = engine.model.tokenizer.encode
    assert [s.prompt for s in run.speeds] == list(PROMPTS)
    assert [s.prompt_tokens for s in run.speeds] == [len(encode(p)) for p in PROMPTS]
    assert {(s.tokens, len(s.samples)) for s in run.speeds} == {(TOKENS, 2)}
    assert all(sample > 0 for s in run.speeds for sample in s.samples)


def test_tokens_are_those_that_the_engine_generates(engine: Engine) -> None:
    sampling = Sampling(temperature=0.8, top_p=0.95)
    story = engine.generate("Once upon", max_tokens=TOKENS, temperature=0.8, top_p=0.95)
    _, tokens = module._decode(engine, engine.model.tokenizer.encode("Once upon"), TOKENS, sampling)
    assert tuple(tokens[: len(story.token_ids)]) == story.token_ids


def test_a_token_that_ends_the_text_does_not_end_the_measurement(
    engine: Engine,
) -> None:
    _, tokens = module._decode(engine, engine.model.tokenizer.encode("Once"), TOKENS, Sampling())
    ending = tokens[4]
    ends = dataclasses.replace(engine.model.tokenizer, eog_ids=frozenset({ending}))
    engine.model = dataclasses.replace(engine.model, tokenizer=ends)
    assert len(engine.generate("Once", max_tokens=TOKENS).token_ids) < TOKENS
    run = stability(engine, ["Once"], TOKENS, Sampling(), repeats=1)
    assert run.speeds[0].text_ended_at == tokens.index(ending) + 1
    assert run.speeds[0].tokens == TOKENS


def test_range_is_that_of_the_medians() -> None:
    speeds = (speed((90.0, 100.0, 101.0)), speed((104.0, 110.0, 500.0)), speed((105.0,)))
    run = StabilityRun({}, "m", "8c", Sampling(), speeds)
    assert run.range == (100.0, 110.0)
    assert run.width == pytest.approx(10 / 105)
    assert run.widest_repeats == pytest.approx(396 / 110)
    assert "range 100.0 to 110.0 tok/s over 3 prompts, 9.5% of the median" in str(run)


def test_a_run_is_kept(engine: Engine, tmp_path: Path) -> None:
    run = stability(engine, ["Once", "Two"], 3, repeats=2)
    run.write(tmp_path / "run.json")
    assert StabilityRun.read(tmp_path / "run.json") == run


def test_the_entry_measures_prints_and_records(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "run.json"
    arguments = ["--model", str(path), "--device", "simt", "--phase", "8b", "--tokens", "2"]
    main([*arguments, "--repeats", "1", "--record", str(kept)])
    said = capsys.readouterr().out
    assert "phase 8b, SIMT device" in said and "over 5 prompts" in said
    run = StabilityRun.read(kept)
    assert (run.phase, run.sampling.temperature, run.sampling.top_p) == ("8b", 0.8, 0.95)
    assert "SIMT device" in run.environment["device"]


@pytest.mark.parametrize(
    ("prompts", "tokens", "repeats", "said"),
    [
        ([], 1, 1, "at least one of: prompts"),
        (["a"], 0, 1, "at least one of: tokens"),
        (["a"], 1, 0, "at least one of: repeats"),
        (["a"], 320, 1, "320 behind it do not fit a context of 320"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    engine: Engine, prompts: list[str], tokens: int, repeats: int, said: str
) -> None:
    with pytest.raises(LabError, match=said):
        stability(engine, prompts, tokens, repeats=repeats)
