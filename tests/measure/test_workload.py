"""A workload has the sizes of the model, fits the kernel's signature, and the kernel computes the right thing on it."""

import numpy as np
import pytest

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import OPS, Op
from sovereign_lab.measure.workload import DEFINES, ROOM, workload
from sovereign_lab.models.model import Config

SMALL = Config(
    architecture="llama", name="small", layers=2, dim=128, ffn_dim=192, heads=4, kv_heads=2,
    head_dim=32, rope_dim=32, rope_base=1e4, eps=1e-5, context=128, vocab=301,
)  # fmt: skip


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_every_op_runs_on_its_workload_and_agrees_with_the_reference(
    op: Op, simt: SimtDevice
) -> None:
    args = workload(op, SMALL, position=10)
    variant = list(op.variants.values())[-1]
    kernel = simt.compile(variant.path, DEFINES)
    arrays = {k: simt.array(v) if isinstance(v, np.ndarray) else v for k, v in args.items()}
    grid = op.grid(variant, args)
    shared = variant.shared_bytes(args)
    expected = op.expected(variant, args)
    simt.launch(kernel, grid, variant.threads, list(arrays.values()), shared, variant.cooperative)
    for name in op.outputs:
        got = np.asarray(arrays[name], np.float64).ravel()
        want = np.asarray(expected[name], np.float64).ravel()
        # What rounds between its steps may be off in a few places by more than in the mean.
        most = max(2e-3, 5 * variant.tolerance * float(np.sqrt(np.nanmean(want**2))))
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=most, err_msg=name)
        assert np.isfinite(want).any()


def test_sizes_are_the_model_s() -> None:
    gemv = workload(OPS["gemv_q4_0"], SMALL)
    assert gemv["W"].shape == (128, 4 * 18) and gemv["rows"] == 128 and gemv["blocks_per_row"] == 4
    logits = workload(OPS["logits"], SMALL)
    assert logits["W"].shape == (301, 128) and logits["y"].shape == (301,)
    attention = workload(OPS["attention"], SMALL, position=20)
    assert attention["context"] == 21 + ROOM
    assert np.isfinite(attention["keys"][:21]).all() and np.isnan(attention["keys"][21:]).all()


def test_the_seed_alone_decides() -> None:
    first, again, other = (workload(OPS["rmsnorm"], SMALL, seed=s)["x"] for s in (1, 1, 2))
    assert (first == again).all() and (first != other).any()


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(LabError, match="small has positions 0 to 127; got position 128"):
        workload(OPS["add"], SMALL, position=128)
    unknown = Op("dance", "?", (), lambda a: 1, lambda a: {}, {})
    with pytest.raises(LabError, match="no workload for op dance"):
        workload(unknown, SMALL)
