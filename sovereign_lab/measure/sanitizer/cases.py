"""The sanitizer over a kernel of the registry: every shape of kernels/cases.py."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sovereign_lab.kernels.cases import cases
from sovereign_lab.kernels.registry import Op, Variant
from sovereign_lab.measure.sanitizer import Report, sanitize

CACHES = ("keys", "values")
KV_TYPES: Mapping[str, type] = {"half": np.float16, "float": np.float32}


def kv_types(variant: Variant) -> tuple[str, ...]:
    """The types of the KV cache that a variant can be compiled for; one, which it ignores, where it has no cache."""
    return tuple(KV_TYPES) if "kv.cuh" in variant.source else ("half",)


def sanitize_variant(
    op: Op, variant: Variant, rng: np.random.Generator, kv: str = "half"
) -> Iterator[Report]:
    """A report for each shape, with what the cases poison counted as never written."""
    for case in cases(op, rng, KV_TYPES[kv]):
        yield sanitize(
            variant.path,
            op.grid(variant, case),
            variant.threads,
            case,
            {"KV": kv},
            shared_bytes=variant.shared_bytes(case),
            cooperative=variant.cooperative,
            uninitialised=poisoned(op, case),
        )


def poisoned(op: Op, case: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """True where an array holds nothing: wholly NaN, a cache's NaN, or -1 in an output of integers."""
    masks = {}
    for name, value in case.items():
        if not isinstance(value, np.ndarray):
            continue
        integer = value.dtype.kind != "f"
        mask = value == -1 if integer else np.isnan(value)
        if (mask.all() and (not integer or name in op.outputs)) or (mask.any() and name in CACHES):
            masks[name] = mask
    return masks
