"""The host's side of one launch for many tokens: what it asks of a card, and how many tokens a launch has."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.engine.persistent import ring_bytes
from sovereign_lab.engine.stream import RUN_AHEAD
from sovereign_lab.errors import LabError
from sovereign_lab.measure.workload import config_of
from sovereign_lab.models.model import Model, load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

ONE_LAUNCH = [i for i, phase in PHASES.items() if "persistent" in phase.plan]
# What a block may have on sm_75, on sm_86, 89 and 120, and on sm_90: CUDA's compute capabilities.
SHARED_BYTES = {75: 64 << 10, 86: 99 << 10, 90: 227 << 10}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """One layer as wide as TinyLlama's."""
    shape = SyntheticShape(1, 2048, 5632, 32, 4, 64, 403, context=64)
    return load_model(write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", shape))


@pytest.fixture
def small_card(monkeypatch: pytest.MonkeyPatch) -> SimtDevice:
    """A device with the shared memory of sm_75, and as many SMs as such cards have at least."""
    device = SimtDevice(workers=1)
    small = dataclasses.replace(device.properties, shared_per_block=SHARED_BYTES[75], sm_count=14)
    monkeypatch.setattr(device, "properties", small)
    return device


@pytest.mark.parametrize("phase", ONE_LAUNCH)
def test_only_the_ring_of_weights_asks_for_much_shared_memory(
    small_card: SimtDevice, wide: Model, phase: str
) -> None:
    if PHASES[phase].plan["persistent"] == "bulk":
        with pytest.raises(
            LabError, match=r"of shared memory a block .* leaves .* Choose phase 13b"
        ):
            Engine(wide, small_card, phase, context=16)
        return
    engine = Engine(wide, small_card, phase, context=16)
    variant, _ = engine.kernels["persistent"]
    (call,) = engine.decode_calls
    assert call.args["ring_bytes"] == 0
    assert 0 < variant.shared_bytes(call.args) < SHARED_BYTES[75]


def test_the_ring_takes_what_a_card_has(monkeypatch: pytest.MonkeyPatch, simt: SimtDevice) -> None:
    config = config_of("synthetic:tinyllama-1.1b")
    h200 = dataclasses.replace(simt.properties, shared_per_block=SHARED_BYTES[90], sm_count=132)
    monkeypatch.setattr(simt, "properties", h200)
    assert 8 * 12_672 < ring_bytes(config, simt) < SHARED_BYTES[90]


@pytest.mark.parametrize("phase", ["12", *ONE_LAUNCH])
def test_tokens_are_the_same_in_launches_of_many(
    simt: SimtDevice, tmp_path: Path, phase: str
) -> None:
    """RUN_AHEAD tokens and some more: what is left over goes one by one."""
    shape = SyntheticShape(1, 64, 96, 2, 1, 32, 300, context=64)
    engine = Engine(load_model(write_synthetic(tmp_path / "m.gguf", shape)), simt, phase)
    one_by_one = decoded(engine, *([1] * (RUN_AHEAD + 3)))
    assert decoded(engine, RUN_AHEAD + 3).tolist() == one_by_one.tolist()


def decoded(engine: Engine, *counts: int) -> np.ndarray:
    engine.prefill([5], 1)
    for count in counts:
        engine.decode(count)
    return engine.device.to_host(engine.state.tokens)[: 1 + sum(counts)]
