"""Every variant of every op against its NumPy reference: odd sizes, fresh data, poisoned outputs, both devices."""

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.devices.signature import parse_signature
from sovereign_lab.kernels.cases import Case, cases
from sovereign_lab.kernels.registry import OPS, Op, Variant

VARIANTS = [
    pytest.param(op, v, id=f"{op.name}-{v.name}")
    for op in OPS.values()
    for v in op.variants.values()
]
KV_TYPES: dict[str, type] = {"half": np.float16, "float": np.float32}


def kv_types(op: Op) -> dict[str, type]:
    return KV_TYPES if {"keys", "values"} <= set(names(op)) else {"half": np.float16}


def names(op: Op) -> list[str]:
    """The parameters of the op's signature."""
    source = next(iter(op.variants.values())).source
    return [p.name for p in parse_signature(source, {"KV": "half"}).parameters]


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    """||got - expected|| where the expected value is a number; NaN must stay NaN."""
    got, expected = got.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    assert np.array_equal(np.isnan(got), np.isnan(expected)), (
        "written where it must not, or not written"
    )
    return float(np.linalg.norm(np.nan_to_num(got) - np.nan_to_num(expected)))


def allowed(op: Op, variant: Variant, case: Case, name: str, rng: np.random.Generator) -> float:
    """How far an output may lie from the reference: a share of its norm, and what its inputs' last digits decide.

    A sum whose terms cancel is small against its rounding errors, and fresh data does hit such sums. So the
    second part is what the reference itself moves by when its FP32 inputs move by about ten units in the last place.
    """

    def moved() -> Case:
        return {
            k: v * (1 + 1e-6 * rng.standard_normal(v.shape, np.float32))
            if isinstance(v, np.ndarray) and v.dtype == np.float32
            else v
            for k, v in case.items()
        }

    expected = op.expected(variant, case)[name]
    share = max(2e-3 if case[name].dtype == np.float16 else 0, variant.tolerance)
    norm = float(np.linalg.norm(np.nan_to_num(expected.astype(np.float64))))
    return share * norm + 10 * max(
        distance(op.expected(variant, moved())[name], expected) for _ in range(3)
    )


@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_variant_equals_reference(any_device: Device, op: Op, variant: Variant) -> None:
    rng = np.random.default_rng()
    for kv_name, kv in kv_types(op).items():
        kernel = any_device.compile(variant.path, {"KV": kv_name})
        for case in cases(op, rng, kv):
            expected = op.expected(variant, case)
            arrays = {
                k: any_device.array(v) if isinstance(v, np.ndarray) else v for k, v in case.items()
            }
            any_device.launch(
                kernel,
                op.grid(variant, case),
                variant.threads,
                list(arrays.values()),
                variant.shared_bytes(case),
                variant.cooperative,
            )
            for name, array in arrays.items():
                if not isinstance(case[name], np.ndarray) or name in op.scratch:
                    continue
                got = any_device.to_host(array)
                if name not in op.outputs:
                    assert np.array_equal(got, case[name], equal_nan=True), (
                        f"{name} is an input and was changed"
                    )
                elif case[name].dtype.kind == "i":
                    assert np.array_equal(got, expected[name]), name
                else:
                    error = distance(got, expected[name].astype(got.dtype))
                    assert error <= allowed(op, variant, case, name, rng), (
                        name,
                        {k: v for k, v in case.items() if np.isscalar(v)},
                    )


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_variants_share_one_signature(op: Op) -> None:
    signatures = {str(parse_signature(v.source, {"KV": "half"})) for v in op.variants.values()}
    assert len(signatures) == 1
    assert parse_signature(next(iter(op.variants.values())).source, {"KV": "half"}).name == op.name


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_cases_have_the_parameters_of_the_signature(op: Op) -> None:
    for case in cases(op, np.random.default_rng(0)):
        assert list(case) == names(op)


def test_argmax_of_no_number_is_a_token_all_the_same(any_device: Device) -> None:
    """The next step reads the embedding of whatever comes out, so it must be one that there is."""
    found = OPS["argmax_batch"]
    for variant in found.variants.values():
        kernel = any_device.compile(variant.path)
        for nothing in (np.nan, -np.inf):
            args: Case = {
                "logits": np.full((1, 300), nothing, np.float32),
                "best": np.array([-1], np.int32),
                "vocab": 300,
                "count": 1,
            }
            on_device = any_device.arguments(args)
            grid = found.grid(variant, args)
            any_device.launch(kernel, grid, variant.threads, list(on_device.values()))
            assert any_device.to_host(on_device["best"])[0] == 0


def test_argmax_takes_the_first_of_equals_that_one_lane_of_two_warps_finds(
    any_device: Device,
) -> None:
    found = OPS["argmax"]
    logits = np.full(2100, -1, np.float32)
    logits[[5 + 32, 5 + 64 * 32]] = 3
    for variant in found.variants.values():
        on_device = any_device.arguments(
            {"logits": logits, "best": np.array([-1], np.int32), "vocab": 2100}
        )
        kernel = any_device.compile(variant.path)
        any_device.launch(kernel, 1, variant.threads, list(on_device.values()))
        assert any_device.to_host(on_device["best"])[0] == 37
