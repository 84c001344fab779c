"""Prompts in blocks of tokens: the same cache, text and logits as token by token."""

from pathlib import Path

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine import Engine, prefill
from sovereign_lab.errors import LabError
from sovereign_lab.models import load_model, reference
from sovereign_lab.models.model import Model
from sovereign_lab.models.quants import join_q4_0, quantise_q4_0, split_q4_0
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

MATRICES = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    """||got - expected|| / ||expected||; NaN never passes a comparison."""
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def logits_behind(engine: Engine, ids: list[int]) -> np.ndarray:
    engine.prefill(ids, len(ids))
    engine.run(engine.decode_calls)
    return engine.device.to_host(engine.state.logits)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Sizes that fill no tile: 160 and 96 wide, heads of 48."""
    shape = SyntheticShape(2, 160, 96, 4, 2, 48, 300, context=64)
    return load_model(write_synthetic(tmp_path_factory.mktemp("small") / "m.gguf", shape))


@pytest.mark.parametrize("kv_dtype", ["fp16", "fp32"])
def test_prefill_in_blocks_equals_the_reference(
    any_device: Device, small: Model, monkeypatch: pytest.MonkeyPatch, kv_dtype: str
) -> None:
    """Whole blocks and a rest; a prompt of one token and of two. A block's attention takes halves from either cache."""
    monkeypatch.setattr(prefill, "TOKENS", 8)
    engine = Engine(small, any_device, "9c", kv_dtype=kv_dtype)
    ids = np.random.default_rng().integers(3, 300, 20).tolist()
    same = reference.forward(small, ids, np.float16, halves=MATRICES)
    plain = reference.forward(small, ids, np.float32)
    for count in (1, 2, 9, 20):
        got = logits_behind(engine, ids[:count])
        rounded, exact = (distance(got, truth[count - 1]) for truth in (same, plain))
        print(
            f"{count} tokens, {kv_dtype}: {rounded:.1e} to the same roundings, {exact:.1e} to FP32"
        )
        assert rounded < 1e-3 + distance(same, plain) / 2


def test_caches_agree_with_one_by_one(any_device: Device, small: Model) -> None:
    ids = np.random.default_rng().integers(3, 300, 20).tolist()
    blocks = Engine(small, any_device, "9c")
    single = blocks.with_phase("8c")
    for engine in (blocks, single):
        engine.prefill(ids, len(ids))
    for ours, theirs in zip(
        (*blocks.kv.keys, *blocks.kv.values), (*single.kv.keys, *single.kv.values), strict=True
    ):
        a, b = (any_device.to_host(c)[: len(ids) - 1].astype(np.float32) for c in (ours, theirs))
        assert distance(a, b) < 2e-3


def test_greedy_text_is_the_same(any_device: Device) -> None:
    engine = Engine(load_model("storyteller"), any_device, "9c", context=32)
    texts = [
        e.generate("Once upon a time, there", 6).token_ids
        for e in (engine, engine.with_phase("8b"))
    ]
    assert texts[0] == texts[1]


def test_a_prompt_that_fills_the_context(any_device: Device, small: Model) -> None:
    engine = Engine(small, any_device, "9c", context=16)
    assert np.isfinite(logits_behind(engine, [5] * 16)).all()


def test_weights_are_shared_between_engines(simt: SimtDevice, small: Model) -> None:
    engine = Engine(small, simt, "9c", context=16)
    assert engine.with_phase("9c").split is engine.split
    assert engine.with_phase("8c").with_phase("9c").split is engine.split


def test_head_sizes_that_tensor_cores_do_not_take_are_refused(
    simt: SimtDevice, tmp_path: Path
) -> None:
    shape = SyntheticShape(1, 96, 96, 4, 2, 24, 300, context=32)
    model = load_model(write_synthetic(tmp_path / "m.gguf", shape))
    with pytest.raises(LabError, match="multiple of 16"):
        Engine(model, simt, "9c")


def test_split_and_join() -> None:
    rng = np.random.default_rng()
    for rows, blocks in ((1, 1), (3, 5), (4, 2)):
        given = quantise_q4_0(rng.standard_normal((rows, blocks * 32), np.float32))
        nibbles, scales = split_q4_0(given)
        assert scales.shape == (rows, blocks + blocks % 2) and nibbles.shape == (rows, blocks * 4)
        assert not scales[:, blocks:].any()
        assert np.array_equal(join_q4_0(nibbles, scales[:, :blocks]), given)
