"""An edit has its parent's launch but for what it changes; what is kept can be found, and run by an engine."""

import dataclasses

import numpy as np
import pytest

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine import Engine
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure import mine
from sovereign_lab.measure.mine import edit, find_kept, keep, kept, with_kernels
from sovereign_lab.measure.trial.card import geometry_words
from sovereign_lab.models import load_model

GEMV = op("gemv_q4_0")
COALESCED = GEMV.variant("coalesced")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mine, "_KEPT", {})


def test_parent_is_the_one_of_phase_8b_or_named_by_name_or_step() -> None:
    assert edit("gemv_q4_0", "").like == "coalesced"
    assert edit("attention", "").like == "online_softmax"
    assert edit("gemv_q4_0", "", "float4").like == edit("gemv_q4_0", "", "3").like == "float4"


def test_the_parents_launch_applies_but_for_what_is_given() -> None:
    case = {"rows": 9}
    plain, changed = edit("gemv_q4_0", ""), edit("gemv_q4_0", "", threads=64, rows_per_block=2)
    assert (plain.variant().threads, GEMV.grid(plain.variant(), case)) == (COALESCED.threads, 3)
    assert (changed.variant().threads, GEMV.grid(changed.variant(), case)) == (64, 5)
    fixed = edit("gemv_q4_0", "", grid=7, cooperative=True).variant()
    assert (GEMV.grid(fixed, case), fixed.cooperative) == (7, True)
    assert not plain.variant().cooperative
    assert edit("gemv_q4_0", "", shared_bytes=512).variant().shared_bytes(case) == 512


def test_a_launch_by_tiles_applies_unless_rows_per_block_are_given() -> None:
    gemm, case = op("gemm_q4_0"), {"rows": 200, "count": 65}
    tiled = edit("gemm_q4_0", "", "mma")
    by_rows = edit("gemm_q4_0", "", "mma", rows_per_block=20)
    assert gemm.grid(tiled.variant(), case) == 4
    assert gemm.grid(by_rows.variant(), case) == 10 and geometry_words(by_rows).endswith(
        "20 rows a block"
    )
    assert geometry_words(tiled) == "128 threads a block, a block a tile"


def test_a_variant_for_a_newer_gpu_is_refused_by_name(
    simt: SimtDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(load_model("synthetic:tiny"), simt, "8b", context=32)
    old = dataclasses.replace(simt.properties, kind="cuda", arch="sm_70", name="Tesla V100")
    monkeypatch.setattr(simt, "properties", old)
    with pytest.raises(LabError, match="gemv_q4_0:mma needs sm_75; Tesla V100 is sm_70"):
        with_kernels(engine, {"gemv_q4_0": "mma"})


def test_lines_are_counted_from_where_the_source_was_written() -> None:
    assert edit("gemv_q4_0", "a\nb", line=2).variant().source == "\na\nb"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "float4"}, "variant float4 of its own"),
        ({"name": "not a name"}, "letters, digits and underscores"),
        ({"threads": 0}, "threads is 1 or more; got 0"),
        ({"grid": 0}, "grid is 1 or more; got 0"),
        ({"shared_bytes": -1}, "shared_bytes is 0 or more"),
        ({"like": "9"}, "no variant '9'"),
    ],
)
def test_an_edit_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(LabError, match=said):
        edit("gemv_q4_0", "", **change)  # type: ignore[arg-type]


def test_what_is_kept_is_found_by_name_the_last_of_a_name() -> None:
    with pytest.raises(LabError, match="none was kept"):
        find_kept("gemv_q4_0", "mine")
    for source in ("first", "second"):
        keep(edit("gemv_q4_0", source))
    assert find_kept("gemv_q4_0", "mine").source == "second"
    assert len(kept()) == 1
    with pytest.raises(LabError, match="kept are mine"):
        find_kept("gemv_q4_0", "other")


def test_an_engine_runs_a_kept_kernel(simt: SimtDevice) -> None:
    engine = Engine(load_model("synthetic:tiny"), simt, context=16)
    keep(edit("gemv_q4_0", COALESCED.source, "float4", name="again"))
    wrong = COALESCED.source.replace("y[row] = sum", "y[row] = 2 * sum")
    keep(edit("gemv_q4_0", wrong, name="twice"))
    expected = engine.logits([1, 2, 3])
    again = with_kernels(engine, {"gemv_q4_0": "again"})
    assert again.kernels["gemv_q4_0"][0].name == "again"
    assert np.array_equal(again.logits([1, 2, 3]), expected)
    twice = with_kernels(engine, {"gemv_q4_0": "twice", "logits": "float4"})
    assert not np.allclose(twice.logits([1, 2, 3]), expected)
    assert np.array_equal(engine.logits([1, 2, 3]), expected)


STRIDE = """
extern "C" __global__ void add(float* x, const float* y, int n) {
  SYNC
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] += y[i];
}
"""


def test_an_engine_launches_a_grid_of_the_edits_own(simt: SimtDevice) -> None:
    engine = Engine(load_model("synthetic:tiny"), simt, context=16)
    expected = engine.logits([1, 2, 3])

    def run(source: str, grid: int) -> np.ndarray:
        made = edit("add", source, threads=32, grid=grid)
        return with_kernels(engine, {"add": made}).logits([1, 2, 3])

    assert np.array_equal(run(STRIDE.replace("SYNC", ""), grid=2), expected)
    short = op("add").variant("elementwise").source  # covers no more than its blocks do
    assert not np.array_equal(run(short, grid=1), expected)


def test_an_engine_launches_cooperatively(simt: SimtDevice) -> None:
    engine = Engine(load_model("synthetic:tiny"), simt, context=16)
    source = "#include <cooperative_groups.h>" + STRIDE.replace(
        "SYNC", "cooperative_groups::this_grid().sync();"
    )
    made = edit("add", source, grid=2, cooperative=True)
    together = with_kernels(engine, {"add": made})
    assert np.array_equal(together.logits([1, 2, 3]), engine.logits([1, 2, 3]))
    with pytest.raises(LabError, match="a launch that is not cooperative"):
        with_kernels(engine, {"add": edit("add", source, grid=2)}).logits([1])


def test_an_engine_refuses_what_it_does_not_launch(simt: SimtDevice) -> None:
    engine = Engine(load_model("synthetic:tiny"), simt, context=16)
    with pytest.raises(LabError, match=r"does not launch swiglu; .*: 0, 1, 2, 3, 4, 5"):
        with_kernels(engine, {"swiglu": "elementwise"})
