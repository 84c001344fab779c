"""The whole model in one launch: its variants say the same to the last bit, and launches follow each other."""

from typing import Any

import numpy as np
import pytest

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.kernels.cases import Case, cases
from sovereign_lab.kernels.persistent_op import PERSISTENT_OP

VARIANTS = tuple(PERSISTENT_OP.variants)


def run(device: SimtDevice, name: str, case: Case, *counts: int) -> dict[str, np.ndarray]:
    """The outputs after launches of so many tokens each, one behind the other on the same arrays."""
    variant = PERSISTENT_OP.variant(name)
    kernel = device.compile(variant.path, {"KV": "half"})
    args: dict[str, Any] = device.arguments(case)
    for count in counts:
        device.launch(
            kernel,
            PERSISTENT_OP.grid(variant, case),
            variant.threads,
            list((args | {"count": count}).values()),
            variant.shared_bytes(case),
            variant.cooperative,
        )
    return {name: device.to_host(args[name]).copy() for name in PERSISTENT_OP.outputs}


def assert_same_bits(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        assert got[name].tobytes() == value.tobytes(), name


def test_variants_differ_in_how_they_wait_and_not_in_a_bit(simt: SimtDevice) -> None:
    for case in cases(PERSISTENT_OP, np.random.default_rng(5)):
        first, *others = (run(simt, name, case, case["count"]) for name in VARIANTS)
        assert np.isfinite(first["logits"]).all()
        for other in others:
            assert_same_bits(other, first)


@pytest.mark.parametrize("name", VARIANTS)
def test_launches_in_a_row_go_on_where_the_last_one_ended(simt: SimtDevice, name: str) -> None:
    """Each leaves the messages ready for the next: six tokens bring every one of its places round twice."""
    case = next(cases(PERSISTENT_OP, np.random.default_rng(6)))
    assert case["position"][0] + 6 < case["context"]
    whole = run(simt, name, case, 6)
    assert whole["turn"][0] == case["turn"][0] + 6 and whole["position"][0] == 6
    assert_same_bits(run(simt, name, case, 1, 3, 2), whole)
