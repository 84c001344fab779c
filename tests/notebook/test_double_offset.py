"""The broken engine is broken as phase 1 was, the repaired one is right, and the pictures show which is which."""

import numpy as np
import plotly.graph_objects as go
import pytest

import sovereign_lab as sl
from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.models.model import Model
from sovereign_lab.notebook import plots
from sovereign_lab.notebook.cache_plots import cache_map, logit_errors
from sovereign_lab.notebook.double_offset import (
    DOUBLE_OFFSET,
    CacheWrites,
    accesses,
    against_reference,
    engine_with,
    faults,
    fill_cache,
    first_fault,
    watch_writes,
)

FIXED = op("rope_kv").variant("fixed").source
IDS = [1, 30, 7, 400, 12, 9]


@pytest.fixture(scope="module")
def model() -> Model:
    return sl.load_model("storyteller")


@pytest.fixture(scope="module")
def broken(model: Model, any_device: Device) -> Engine:
    return engine_with(DOUBLE_OFFSET.source, model, any_device, context=16)


@pytest.fixture(scope="module")
def right(model: Model, any_device: Device) -> Engine:
    return engine_with(FIXED, model, any_device, context=16)


def test_no_phase_and_no_variant_is_the_broken_one() -> None:
    assert DOUBLE_OFFSET.name not in op("rope_kv").variants
    plans = [phase.plan for phase in sl.PHASES.values()]
    assert {plan["rope_kv"] for plan in plans if "rope_kv" in plan} == {"fixed"}


def test_only_the_keys_have_twice_the_room(broken: Engine) -> None:
    assert {array.shape[0] for array in broken.kv.keys} == {32}
    assert {array.shape[0] for array in broken.kv.values} == {16}
    for calls in (broken.prefill_calls, broken.decode_calls):
        used = [call.args["keys"] for call in calls if "keys" in call.args]
        assert all(a is b for a, b in zip(used[::2], broken.kv.keys, strict=True))
        assert all(a is b for a, b in zip(used[1::2], broken.kv.keys, strict=True))


def test_broken_keys_lie_at_twice_their_position(broken: Engine) -> None:
    writes = watch_writes(broken, IDS)
    assert writes.keys == tuple((2 * p,) for p in range(6))
    assert writes.values == tuple((p,) for p in range(6))
    assert writes.found(5) == [0, None, 1, None, 2, None]
    assert not np.any(broken.device.to_host(broken.kv.keys[0]))


def test_right_keys_lie_at_their_position(right: Engine) -> None:
    writes = watch_writes(right, IDS)
    assert writes.keys == writes.values == tuple((p,) for p in range(6))
    assert writes.found(5) == [0, 1, 2, 3, 4, 5]


def test_the_whole_context_stays_inside_the_doubled_cache(broken: Engine) -> None:
    writes = watch_writes(broken, [*IDS, *IDS, 3, 4, 5, 6])
    assert writes.keys[15] == (30,)


def test_position_0_passes_and_position_1_fails(broken: Engine, right: Engine) -> None:
    assert [p.passes for p in against_reference(broken, IDS)] == [True] + [False] * 5
    assert all(p.passes for p in against_reference(right, IDS))


def test_poison_shows_what_is_read_and_was_never_written(broken: Engine, right: Engine) -> None:
    for engine, expected in ((broken, [True, False, False]), (right, [True] * 3)):
        fill_cache(engine, np.nan)
        assert np.isfinite(engine.logits(IDS[:3])).all(axis=1).tolist() == expected
        fill_cache(engine, 0)


def test_kernel_alone_fails_everywhere_but_at_position_0() -> None:
    assert all(
        (fault is None) == (position == 0) for position, fault in faults(DOUBLE_OFFSET.source)
    )
    assert first_fault(FIXED) is None


def test_kernel_that_does_not_compile_is_a_sentence(model: Model, simt: Device) -> None:
    assert "does not compile" in (first_fault(FIXED.replace(";", "")) or "")
    with pytest.raises(LabError, match=r"yours\.cu"):
        engine_with(FIXED.replace("sincosf(", "sincosff("), model, simt, context=16)


# ---- pictures ----


def test_map_shows_every_write_and_which_are_elsewhere() -> None:
    figure = cache_map({"keys": [(0,), (2,), ()], "values": [(0,), (1,), (2,)]}, "t")
    points = {
        (trace.xaxis, trace.name): list(zip(trace.x, trace.y, strict=True)) for trace in figure.data
    }
    own, elsewhere = "written to the position's own slot", "written elsewhere"
    assert points["x", own] == [(0, 0)]
    assert points["x", elsewhere] == [(1, 2)]
    assert points["x2", own] == [(0, 0), (1, 1), (2, 2)]
    assert points["x2", elsewhere] == [(None, None)]


@pytest.mark.parametrize(
    "figure",
    [
        cache_map({"keys": CacheWrites(((0,), (2,)), ((0,), (1,))).keys}, "a title"),
        logit_errors({"broken": [1e-6, 0.1], "right": [1e-6, 1e-6]}, 1e-3, "a title"),
    ],
)
def test_figures_fit_both_themes(figure: go.Figure) -> None:
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert figure.layout.font.color == plots.TEXT
    assert figure.layout.title.text == "a title"


@pytest.mark.parametrize(("position", "kinds"), [(5, []), (45, ["out of bounds"] * 2)])
def test_a_checker_of_accesses_sees_it_in_the_second_half_of_the_context_alone(
    model: Model, position: int, kinds: list[str]
) -> None:
    report = accesses(DOUBLE_OFFSET, model.config, position, context=64)
    assert [f.kind for f in report.findings] == kinds
    assert all(f.array == "keys" and "store(key" in f.text for f in report.findings)
    assert not accesses(op("rope_kv").variant("fixed"), model.config, position, 64).findings
