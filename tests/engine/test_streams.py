"""Phase 4: WQ, WK and WV as branches. The same kernels on the same numbers: the same bits."""

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.devices.signature import parse_signature
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.engine.forward import Call
from sovereign_lab.models.model import Model, load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

LAYERS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    shape = SyntheticShape(LAYERS, 96, 160, 9, 3, 64, 403, context=64)
    return load_model(write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", shape, seed=5))


@pytest.mark.parametrize("graphs", [True, False])
def test_three_streams_change_no_bit(any_device: Device, model: Model, graphs: bool) -> None:
    tokens = np.random.default_rng().integers(3, 403, 20).tolist()
    one = Engine(model, any_device, "3", graphs=graphs)
    expected = one.logits(tokens)
    three = one.with_phase("4")
    for _ in range(3):  # a race need not lose every time
        assert np.array_equal(three.logits(tokens), expected), tokens
    for temperature in (0.0, 0.8):
        texts = [e.generate("", 12, temperature).token_ids for e in (one, three)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("phase", PHASES)
def test_branches_are_the_three_projections_of_each_layer(
    simt: Device, model: Model, phase: str
) -> None:
    engine = Engine(model, simt, phase, context=16)
    s = engine.state
    for calls in (engine.prefill_calls, engine.decode_calls):
        branched = [c for c in calls if c.branch is not None]
        if phase != "4":
            assert branched == []
            continue
        assert [c.branch for c in branched] == [0, 1, 2] * LAYERS
        assert [id(c.args["y"]) for c in branched] == [id(a) for a in (s.q, s.k, s.v)] * LAYERS
        assert all(c.op == "gemv_q4_0" and c.args["x"] is s.normed for c in branched)


def test_branches_write_nothing_that_another_one_touches(simt: Device, model: Model) -> None:
    engine = Engine(model, simt, "4", context=16)
    calls = engine.decode_calls
    for first in (i for i, c in enumerate(calls) if c.branch == 0):
        group = calls[first : first + 3]
        touched = [{id(v) for v in c.args.values() if isinstance(v, np.ndarray)} for c in group]
        for i, call in enumerate(group):
            written = {id(call.args[name]) for name in writes(engine, call)}
            others = set().union(*(touched[j] for j in range(3) if j != i))
            assert len(written) == 1 and not written & others


def writes(engine: Engine, call: Call) -> list[str]:
    signature = parse_signature(engine.kernels[call.op][0].source, {"KV": engine.kv.kernel_type})
    return [p.name for p in signature.parameters if p.pointer and not p.const]
