"""The engine against the NumPy reference, at every phase; and what generation promises."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from same_launches import skip_if_the_same_launches

from sovereign_lab.devices import Device
from sovereign_lab.engine import PHASES, Engine, batch
from sovereign_lab.engine.phases import Ladder, Phase
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import OPS
from sovereign_lab.measure.experiment.job import HALVES_SHARE, INT8_SHARE
from sovereign_lab.models import reference
from sovereign_lab.models.catalog import resolve
from sovereign_lab.models.model import Model, load_model
from sovereign_lab.models.synthetic import SHAPES, SyntheticShape, write_synthetic

# heads, kv_heads, head_dim: 9/3 as SmolLM2, 32/4 as TinyLlama, 4/2 with large heads, plain multi-head.
HEADS = [(9, 3, 64), (32, 4, 64), (4, 2, 128), (3, 3, 32), (5, 1, 96)]
KV_TYPES = {"fp16": np.float16, "fp32": np.float32}


@pytest.fixture(scope="session")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int, int], Model]:
    """A small random model for each combination of heads; every other one with a tied head."""
    folder = tmp_path_factory.mktemp("shaped")
    models = {}
    for i, (heads, kv_heads, head_dim) in enumerate(HEADS):
        shape = SyntheticShape(
            2, 96, 160, heads, kv_heads, head_dim, 403, context=64, tied=bool(i % 2)
        )
        models[heads, kv_heads, head_dim] = load_model(
            write_synthetic(folder / f"{i}.gguf", shape, seed=i)
        )
    return models


@pytest.fixture(scope="session")
def tiny(shaped: dict[tuple[int, int, int], Model]) -> Model:
    return shaped[9, 3, 64]


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    """||got - expected|| / ||expected||; NaN never passes a comparison."""
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def with_roundings(engine: Engine, tokens: list[int], kv: type) -> np.ndarray:
    """The reference with the engine's own roundings."""
    return reference.forward(
        engine.model, tokens, kv, halves=engine.halves, int8_inputs=engine.int8_inputs
    )


def allowed(engine: Engine, same: np.ndarray, plain: np.ndarray) -> float:
    """What the logits may be off from `same`, the reference with the same roundings; `plain` is the one without.

    Where a value lies between two levels, the last digit of a sum decides which it becomes. Levels of int8 are so far
    apart that after a few layers two roundings have little in common.
    """
    return 1e-3 + distance(same, plain) * (INT8_SHARE if engine.int8_inputs else HALVES_SHARE)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_every_phase_equals_the_reference(
    any_device: Device,
    shaped: dict[tuple[int, int, int], Model],
    phase: str,
    heads: tuple[int, int, int],
) -> None:
    skip_if_the_same_launches(any_device, phase)
    model = shaped[heads]
    tokens = np.random.default_rng().integers(3, 403, 8).tolist()
    # In pairs: each phase meets both types, and so do each of the heads. Kernels meet all three in tests/kernels.
    kv = list(KV_TYPES)[(list(PHASES).index(phase) + HEADS.index(heads)) % 2]
    engine = Engine(model, any_device, phase, kv_dtype=kv)
    plain = reference.forward(model, tokens, KV_TYPES[kv])
    same = with_roundings(engine, tokens, KV_TYPES[kv])
    assert distance(engine.logits(tokens), same) < allowed(engine, same, plain)


class Scored:
    """A model on a device with a text, and what the reference makes of it."""

    def __init__(self, model: Model, device: Device, tokens: list[int]) -> None:
        self.tokens = tokens
        self.engine = Engine(model, device, context=64)  # its weights serve every phase
        self.cached = reference.forward(model, tokens, np.float16)
        self.plain = reference.forward(model, tokens, np.float32)

    def check(self, phase: str) -> None:
        engine = self.engine.with_phase(phase)
        logits = engine.logits(self.tokens)
        same = with_roundings(engine, self.tokens, np.float16)
        rounded, plain = distance(logits, same), distance(logits, self.plain)
        kind, name = self.engine.device.properties.kind, self.engine.model.config.name
        print(
            f"{name}, {kind}, phase {phase}: {rounded:.1e} to the same roundings, {plain:.1e} to FP32"
        )
        assert rounded < allowed(engine, same, self.cached)


def scored_text(name: str, text: str, device: Device) -> Scored:
    model = load_model(resolve(name))
    return Scored(model, device, model.tokenizer.encode(text))


@pytest.fixture(scope="session")
def storyteller(any_device: Device) -> Scored:
    return scored_text("storyteller", "Once upon a time", any_device)


@pytest.fixture(scope="session")
def smollm2(any_device: Device) -> Scored:
    # On the SIMT device a token at phase 0 takes seconds; longer texts are the storyteller's.
    simt = any_device.properties.kind == "simt"
    return scored_text(
        "smollm2-135m", "The old" if simt else "The old lighthouse keeper", any_device
    )


@pytest.fixture(scope="session")
def tinyllama_shape(any_device: Device, tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """The whole shape on a GPU; two of its layers, with all of its embedding and head, on the SIMT device."""
    tokens = [17, 31999]
    if any_device.properties.kind == "cuda":
        return Scored(load_model(resolve("synthetic:tinyllama-1.1b")), any_device, tokens)
    path = tmp_path_factory.mktemp("tinyllama") / "two-layers.gguf"
    shape = dataclasses.replace(SHAPES["tinyllama-1.1b"], layers=2)
    return Scored(load_model(write_synthetic(path, shape)), any_device, tokens)


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_equals_the_reference_on_the_storyteller(
    any_device: Device, storyteller: Scored, phase: str
) -> None:
    skip_if_the_same_launches(any_device, phase)
    storyteller.check(phase)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_equals_the_reference_on_smollm2(
    any_device: Device, smollm2: Scored, phase: str
) -> None:
    skip_if_the_same_launches(any_device, phase)
    smollm2.check(phase)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_equals_the_reference_in_tinyllamas_shape(
    any_device: Device, tinyllama_shape: Scored, phase: str
) -> None:
    skip_if_the_same_launches(any_device, phase)
    tinyllama_shape.check(phase)


def test_another_phase_shares_the_weights(any_device: Device, tiny: Model) -> None:
    engine = Engine(tiny, any_device, "3", kv_dtype="fp32", context=20)
    other = engine.with_phase("8b")
    assert other.weights is engine.weights
    assert (other.phase.id, other.kv_dtype, other.context) == ("8b", "fp32", 20)
    assert np.array_equal(
        other.logits([1, 5, 9]), Engine(tiny, any_device, "8b", kv_dtype="fp32").logits([1, 5, 9])
    )


def test_a_gpu_too_old_for_a_kernel_is_refused_by_name(
    simt: Device, tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = dataclasses.replace(simt.properties, kind="cuda", arch="sm_52", name="GTX 980")
    monkeypatch.setattr(simt, "properties", old)
    with pytest.raises(LabError, match="embedding:copy_row needs sm_60; GTX 980 is sm_52"):
        Engine(tiny, simt)


def test_without_graphs_the_numbers_are_the_same(any_device: Device, tiny: Model) -> None:
    tokens = [1, 5, 9, 200, 77]
    recorded = Engine(tiny, any_device).logits(tokens)
    assert np.array_equal(recorded, Engine(tiny, any_device, graphs=False).logits(tokens))


def test_prefill_fills_the_cache_position_by_position(any_device: Device, tiny: Model) -> None:
    engine = Engine(tiny, any_device, kv_dtype="fp32")
    filler = np.full((engine.context, 3, 64), np.nan, np.float32)
    for array in (*engine.kv.keys, *engine.kv.values):
        any_device.update(array, filler)
    engine.generate("a b c", max_tokens=4)
    ids = len(tiny.tokenizer.encode("a b c"))
    for array in (*engine.kv.keys, *engine.kv.values):
        written = ~np.isnan(any_device.to_host(array)).any(axis=(1, 2))
        # A GPU may run ahead of a text that has ended, never past what was asked for.
        assert written[: ids + 3].all() and not written[ids + 3 :].any()


def test_greedy_text_is_the_reference_s(any_device: Device, tiny: Model) -> None:
    for phase in PHASES:
        engine = Engine(tiny, any_device, phase)
        story = engine.generate("once", max_tokens=10)
        text = [*story.prompt_ids, *story.token_ids[:-1]]
        best = reference.forward(tiny, text)[len(story.prompt_ids) - 1 :].argmax(axis=1)
        assert story.token_ids == tuple(best)
        assert story.argmax_ids == story.token_ids
        assert engine.agreement(story) == 1.0
        assert story.finish_reason in ("length", "stop")
        assert story.tokens_per_second > 0 and story.ms_per_forward > 0


def test_stream_gives_the_same_text_as_generate(any_device: Device, tiny: Model) -> None:
    engine = Engine(tiny, any_device)
    stream = engine.stream("once", max_tokens=20)
    pieces = list(stream)
    assert "".join(pieces) == stream.result.text == engine.generate("once", max_tokens=20).text
    assert len(pieces) > 1


def ending_at(model: Model, *ids: int) -> Model:
    """The same model, whose texts end at these tokens alone."""
    tokenizer = dataclasses.replace(model.tokenizer, eog_ids=frozenset(ids))
    return dataclasses.replace(model, tokenizer=tokenizer)


def test_generation_ends_at_a_token_that_ends_texts(any_device: Device, tiny: Model) -> None:
    free = Engine(ending_at(tiny), any_device).generate("once", max_tokens=20)
    last = free.token_ids[7]
    ended = Engine(ending_at(tiny, last), any_device).generate("once", max_tokens=20)
    assert ended.finish_reason == "stop"
    assert ended.token_ids == free.token_ids[: free.token_ids.index(last)]


def test_full_context_ends_with_its_reason(any_device: Device, tiny: Model) -> None:
    engine = Engine(ending_at(tiny), any_device, context=10)
    room = 10 - len(tiny.tokenizer.encode("once")) + 1
    full = engine.generate("once", max_tokens=50)
    just = engine.generate("once", max_tokens=room)
    assert full.finish_reason == "context" and len(full.token_ids) == room
    assert just.finish_reason == "length" and just.token_ids == full.token_ids
    # the last one too: nothing wrapped
    ids = [*full.prompt_ids, *full.token_ids[:-1]]
    assert full.token_ids[-1] == reference.forward(tiny, ids)[-1].argmax()


def test_sampling_is_seeded_and_follows_the_distribution(any_device: Device, tiny: Model) -> None:
    engine = Engine(tiny, any_device)
    one, same, other = (
        engine.generate("once", max_tokens=12, temperature=1.0, seed=s) for s in (1, 1, 2)
    )
    assert one.token_ids == same.token_ids != other.token_ids
    assert engine.agreement(one) == 1.0
    cold = engine.generate("once", max_tokens=12, temperature=1e-6)
    assert cold.token_ids == engine.generate("once", max_tokens=12).token_ids


def test_engine_is_used_again_without_traces_of_the_last_text(
    any_device: Device, tiny: Model
) -> None:
    engine = Engine(tiny, any_device)
    before = engine.generate("one", max_tokens=6).token_ids
    engine.generate("something else and longer", max_tokens=9, temperature=0.7)
    engine.logits([3, 4, 5])
    assert engine.generate("one", max_tokens=6).token_ids == before


def test_empty_prompt_starts_from_bos(any_device: Device, tiny: Model) -> None:
    story = Engine(tiny, any_device).generate("", max_tokens=3)
    assert story.prompt_ids == (tiny.tokenizer.bos_id,)
    assert story.prefill_tokens_per_second is None


def test_what_cannot_be_done_is_a_sentence(simt: Device, tiny: Model) -> None:
    engine = Engine(tiny, simt, context=8)
    for message, call in {
        "There is no phase '99'; the ladder has 0, 1, 2, 3": lambda: Engine(tiny, simt, "99"),
        "A KV cache holds fp16 or fp32; got 'int8'": lambda: Engine(tiny, simt, kv_dtype="int8"),
        "context of 1 to 64 positions; 65": lambda: Engine(tiny, simt, context=65),
        "tokens, and the context has room for 8": lambda: engine.generate("a b c d e f g h i j"),
        "max_tokens is 1 or more": lambda: engine.generate("a", max_tokens=0),
        "A temperature is 0": lambda: engine.generate("a", temperature=-1),
        "A temperature is": lambda: engine.generate("a", temperature=float("nan")),
        "Token ids of this model are 0 to 402": lambda: engine.logits([1, 403]),
        "the prompt has no tokens": lambda: engine.logits([]),
    }.items():
        with pytest.raises(LabError, match=message):
            call()


def test_ladder_builds_each_phase_on_its_base() -> None:
    assert PHASES["5"].plan == {**PHASES["3"].plan, "gemv_q4_0": "coalesced"}
    assert PHASES["8b"].plan["logits"] == "coalesced"
    for phase in PHASES.values():
        for name, variant in phase.plan.items():
            assert variant in OPS[name].variants
    ladder = Ladder()
    ladder.add(Phase("a", "first", None, {"gemv_q4_0": "1", "swiglu": "1"}))
    ladder.add(Phase("b", "reverted", "a", {"gemv_q4_0": "2"}, verdict="revert"))
    ladder.add(Phase("c", "next", "a", {"swiglu": "2"}))
    assert ladder["c"].plan == {"gemv_q4_0": "1", "swiglu": "2"}
    assert "<td style='text-align:left'>reverted</td>" in ladder._repr_html_()


def test_every_op_of_a_plan_is_launched_and_compiled(tiny: Model, simt: Device) -> None:
    """A fused op takes the place of those that it fuses, which are compiled no more."""
    assert "swiglu" in PHASES["5"].plan and "swiglu" not in PHASES["6"].plan
    for phase in PHASES:
        engine = Engine(tiny, simt, phase, context=16)
        launched = {call.op for call in engine.sampled_calls or engine.decode_calls}
        if engine.in_blocks:
            launched |= {call.op for call in engine.block_calls(3)}
            launched |= {call.op for call in batch.prepare(engine, 2, 16).greedy}
        plan = set(PHASES[phase].plan)
        assert launched | {"argmax"} & plan == set(engine.kernels) == plan


def test_model_file_may_go_away_once_loaded(any_device: Device, tmp_path: Path) -> None:
    shape = SyntheticShape(1, 64, 96, 2, 1, 32, 300, context=32)
    path = write_synthetic(tmp_path / "m.gguf", shape, seed=1)
    engine = Engine(load_model(path), any_device)
    before = engine.logits([1, 2, 3])
    path.unlink()
    assert np.array_equal(engine.logits([1, 2, 3]), before)


def test_repeated_runs_are_identical_on_any_number_of_workers(tiny: Model) -> None:
    from sovereign_lab.devices.simt.device import SimtDevice

    tokens = [1, 50, 60, 70]
    orders: tuple[str | int, ...] = ("forward", "reverse", 7)
    results = [
        Engine(tiny, SimtDevice(workers=w, lane_order=order)).logits(tokens)
        for w, order in itertools.product((1, 2, 3), orders)
    ]
    assert all(np.array_equal(r, results[0]) for r in results)
