"""Several texts at once: each is the text that it is alone, wherever and however the others end."""

import dataclasses

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine, Generation
from sovereign_lab.engine.sampling import Filters
from sovereign_lab.errors import LabError
from sovereign_lab.models import reference
from sovereign_lab.models.catalog import resolve
from sovereign_lab.models.model import Model, load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

PHASE = "9c"
TOKENS = 8
PROMPTS = ["once", "a b c d e", "", "the one and only other one"]
# Logits of a random model lie this close where roundings may decide: halves have 11 bits.
NEAR = 2e-2


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    shape = SyntheticShape(2, 96, 160, 9, 3, 64, 403, context=64)
    model = load_model(write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", shape, seed=1))
    return ending_at(model)


@pytest.fixture(scope="module")
def engine(any_device: Device, tiny: Model) -> Engine:
    return Engine(tiny, any_device, PHASE)


def ending_at(model: Model, *ids: int) -> Model:
    """The same model, whose texts end at these tokens alone."""
    tokenizer = dataclasses.replace(model.tokenizer, eog_ids=frozenset(ids))
    return dataclasses.replace(model, tokenizer=tokenizer)


def assert_same(model: Model, got: Generation, alone: Generation) -> None:
    """The same text, or another from a place on where two tokens are almost equally likely."""
    assert got.prompt_ids == alone.prompt_ids
    if got.token_ids == alone.token_ids:
        assert (got.text, got.argmax_ids) == (alone.text, alone.argmax_ids)
        assert (got.finish_reason, got.stop) == (alone.finish_reason, alone.stop)
        return
    pairs = list(zip(got.token_ids, alone.token_ids, strict=False))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    assert at is not None, "one text is the beginning of the other"
    logits = reference.forward(model, [*got.prompt_ids, *got.token_ids[:at]])[-1]
    margin = abs(float(logits[pairs[at][0]] - logits[pairs[at][1]]))
    print(f"{got.prompt!r} differs from token {at} on, where {margin:.1e} lie between the logits")
    assert margin < NEAR


def test_texts_are_those_of_the_storyteller_alone(any_device: Device) -> None:
    model = load_model(resolve("storyteller"))
    engine = Engine(model, any_device, PHASE, context=96)
    prompts = ["Once", "Once upon a time there was a little", "The dog and the cat"]
    tokens = 16 if any_device.properties.kind == "cuda" else 8
    batch = engine.generate_batch(prompts, max_tokens=tokens)
    assert len({len(b.prompt_ids) for b in batch}) == 3
    for prompt, got in zip(prompts, batch, strict=True):
        assert_same(model, got, engine.generate(prompt, max_tokens=tokens))


@pytest.fixture(scope="module")
def free(engine: Engine) -> list[Generation]:
    """The prompts' texts, which nothing ends but the limit."""
    return engine.generate_batch(PROMPTS, max_tokens=TOKENS)


def test_texts_are_the_same_in_any_company(
    engine: Engine, free: list[Generation], tiny: Model
) -> None:
    for got in free:
        assert_same(tiny, got, engine.generate(got.prompt, max_tokens=TOKENS))
        assert len(got.token_ids) == TOKENS and got.finish_reason == "length"
        assert got.tokens_per_second > 0
        assert (got.prefill_tokens_per_second is None) == (len(got.prompt_ids) == 1)
    for got in engine.generate_batch(PROMPTS[2:0:-1], max_tokens=TOKENS):
        assert_same(tiny, got, free[PROMPTS.index(got.prompt)])


def test_every_token_is_the_reference_s(free: list[Generation], tiny: Model) -> None:
    for got in free:
        text = [*got.prompt_ids, *got.token_ids[:-1]]
        rows = reference.forward(tiny, text)[len(got.prompt_ids) - 1 :]
        for row, token in zip(rows, got.token_ids, strict=True):
            assert row.max() - row[token] < NEAR


def test_each_text_ends_at_its_own_token(
    any_device: Device, engine: Engine, free: list[Generation], tiny: Model
) -> None:
    ends = (free[0].token_ids[2], free[1].token_ids[5])
    other = Engine(ending_at(tiny, *ends), any_device, PHASE, weights=engine.weights)
    ended = other.generate_batch(PROMPTS, max_tokens=TOKENS)
    assert len({len(g.token_ids) for g in ended}) > 1
    for got, whole in zip(ended, free, strict=True):
        at = [i for i, token in enumerate(whole.token_ids) if token in ends]
        assert got.token_ids == whole.token_ids[: at[0] if at else None]
        assert got.finish_reason == ("stop" if at else "length")


def test_each_text_ends_at_a_stop_string(engine: Engine, free: list[Generation]) -> None:
    stop = free[1].text[2:5]
    stopped = engine.generate_batch(PROMPTS, max_tokens=TOKENS, stop=stop)
    assert stopped[1].stop == stop
    for got, whole in zip(stopped, free, strict=True):
        there = stop in whole.text
        assert got.text == whole.text.split(stop)[0]
        assert (got.stop, got.finish_reason) == ((stop, "stop") if there else (None, "length"))
        assert got.token_ids == whole.token_ids[: len(got.token_ids)]


def test_a_full_region_ends_one_text_and_leaves_the_next_one_s_alone(
    any_device: Device, tiny: Model
) -> None:
    # A text that has ended here stands at the first position of the next region.
    engine = Engine(tiny, any_device, PHASE, context=12)
    prompts = ["a b c d e", "a"]
    full, other = engine.generate_batch(prompts, max_tokens=9)
    assert full.finish_reason == "context"
    assert len(full.token_ids) == 12 - len(full.prompt_ids) + 1 < 9
    assert other.finish_reason == "length" and len(other.token_ids) == 9
    assert_same(tiny, full, engine.generate(full.prompt, max_tokens=9))
    assert_same(tiny, other, engine.generate(other.prompt, max_tokens=9))
    assert engine.batch is not None
    region, written = engine.batch.region(1), len(other.prompt_ids) + 8
    for theirs, own in zip(
        (*region.keys, *region.values), (*engine.kv.keys, *engine.kv.values), strict=True
    ):
        assert theirs.shape == (12, 3, 64)
        got, expected = (any_device.to_host(a)[:written] for a in (theirs, own))
        assert np.linalg.norm(got - expected) < 1e-2 * np.linalg.norm(expected)


def test_draws_are_those_of_each_text_alone(engine: Engine, tiny: Model) -> None:
    choice = Filters(top_k=20, repeat_penalty=1.1)
    batch = engine.generate_batch(["once", "once", "a b c"], 6, 1.3, 5, **choice)
    assert batch[0].token_ids != batch[1].token_ids
    for i, got in enumerate(batch):
        alone = engine.generate(got.prompt, 6, 1.3, 5 + i, **choice)
        # A draw lies near the border between two tokens as rarely as two logits are nearly equal.
        assert got.token_ids[:3] == alone.token_ids[:3]
    again = engine.generate_batch(["once", "once", "a b c"], 6, 1.3, 5, **choice)
    assert [g.token_ids for g in again] == [g.token_ids for g in batch]
    # What the host draws for all, the device does for one: another draw from the same tokens.
    assert len(engine.generate_batch(["a"], max_tokens=3, temperature=0.8)[0].token_ids) == 3


def test_without_graphs_the_texts_are_the_same(
    any_device: Device, engine: Engine, tiny: Model
) -> None:
    plain = Engine(tiny, any_device, PHASE, graphs=False)
    a, b = (e.generate_batch(PROMPTS, max_tokens=4) for e in (plain, engine))
    assert [g.token_ids for g in a] == [g.token_ids for g in b]


def test_the_engine_keeps_one_batch_and_no_recording_of_another(
    any_device: Device, tiny: Model
) -> None:
    engine = Engine(tiny, any_device, PHASE)
    before = engine.generate("once", max_tokens=4).token_ids
    recorded = len(engine._recordings)
    engine.generate_batch(["a", "b"], max_tokens=3)
    kept = engine.batch
    engine.generate_batch(["c", "d"], max_tokens=5)
    assert engine.batch is kept
    engine.generate_batch(["a"], max_tokens=3)
    assert engine.batch is not kept
    assert len(engine._recordings) == recorded + 1
    assert engine.generate("once", max_tokens=4).token_ids == before


def test_what_cannot_be_done_is_a_sentence(simt: Device, tiny: Model) -> None:
    engine = Engine(tiny, simt, PHASE, context=8)
    assert engine.generate_batch([]) == []
    for message, call in {
        "need phase 9c or a later one; this engine is at phase 8b": lambda: Engine(
            tiny, simt, "8b"
        ).generate_batch(["a"]),
        "takes a list of prompts; got the text 'once'": lambda: engine.generate_batch("once"),
        "max_tokens is 1 or more": lambda: engine.generate_batch(["a"], max_tokens=0),
        "context has room for 8": lambda: engine.generate_batch(["a", "a b c d e f g h i j"]),
        "A temperature is 0": lambda: engine.generate_batch(["a"], temperature=-1),
    }.items():
        with pytest.raises(LabError, match=message):
            call()
