"""Is a kernel right? Odd shapes, poisoned outputs, every array between canaries; and words for what is wrong."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sovereign_lab.devices import Device, Kernel
from sovereign_lab.devices.signature import Signature, parse_signature
from sovereign_lab.kernels.cases import Case, cases
from sovereign_lab.kernels.registry import Arguments, Op, Variant, op
from sovereign_lab.measure.mine import Edit
from sovereign_lab.measure.worker.child import launch_words, retire
from sovereign_lab.measure.workload import DEFINES, KV_DTYPE

# On either side of an array: a multiple of what a GPU aligns allocations to, so that alignment is as without them.
FENCE_BYTES = 1024
CANARY_BYTE = 0xC5
# A NaN that no computation makes, so that what was never written is told from what was computed wrongly.
POISON: dict[int, np.ndarray] = {
    2: np.array([0x7EAD], np.uint16),
    4: np.array([0x7FDEAD01], np.uint32),
}
SHOWN = 3


def odd_cases(op_name: str) -> list[Case]:
    """The cases of kernels/cases.py from a fixed seed, whole arrays of NaN turned into POISON."""
    found = list(cases(op(op_name), np.random.default_rng(7), KV_DTYPE))
    for case in found:
        for value in case.values():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isnan(value).all():
                value.reshape(-1).view(POISON[value.itemsize].dtype)[:] = POISON[value.itemsize]
    return found


def shape_words(case: Mapping[str, Any]) -> str:
    """The case's sizes: "rows = 7, blocks_per_row = 18"."""
    sizes = [f"{k} = {v}" for k, v in case.items() if isinstance(v, int)]
    sizes += [f"position = {case['position'][0]}"] if "position" in case else []
    return ", ".join(sizes)


def launch_of(made: Edit, args: Arguments) -> str:
    """The kernel and its launch shape, in words."""
    variant = made.variant()
    return launch_words(made.name, op(made.op).grid(variant, args), variant.threads)


def faults(device: Device, kernel: Kernel, made: Edit, case: Case) -> Iterator[str]:
    """Launch once, and say what is wrong, a sentence each; none where all is right.

    Raises LabError for a launch that the device refuses or that fails.
    """
    found, variant = op(made.op), made.variant()
    expected = found.expected(variant, case)
    fenced = {k: _fenced(v) for k, v in case.items() if isinstance(v, np.ndarray)}
    arrays = {k: device.array(v) for k, v in fenced.items()}
    args = {k: _inside(arrays[k], case[k]) if k in arrays else v for k, v in case.items()}
    device.launch(
        kernel, found.grid(variant, case), variant.threads, list(args.values()), variant.shared_bytes(case),
        variant.cooperative,
    )  # fmt: skip
    device.synchronize()
    after = {k: device.to_host(v) for k, v in arrays.items()}
    constant = [p.name for p in signature_of(made).parameters if p.pointer and p.const]
    for name, flat in after.items():
        if (outside := _outside(name, fenced[name], flat, case[name])) is not None:
            retire()  # it may have hit more than the canaries
            yield outside
    for name in constant:
        if not _same(_inside(after[name], case[name]), case[name]):
            yield f"`{name}` is an input, and the kernel changed it."
    for name in found.outputs:
        got = _inside(after[name], case[name])
        fault = _wrong(found, variant, case, name, got, expected[name])
        if fault is not None:
            yield fault


def signature_of(made: Edit) -> Signature:
    """The signature that the op's kernels have: parsed from the parent."""
    return parse_signature(made.parent.source, DEFINES)


# ---- canaries ----


def _fenced(value: np.ndarray) -> np.ndarray:
    """The array's elements with FENCE_BYTES of CANARY_BYTE before and behind, flat."""
    flat = np.full(2 * FENCE_BYTES + value.nbytes, CANARY_BYTE, np.uint8).view(value.dtype)
    _inside(flat, value)[...] = value
    return flat


def _inside(flat: Any, value: np.ndarray) -> Any:
    edge = FENCE_BYTES // value.itemsize
    return flat[edge : edge + value.size].reshape(value.shape)


def _outside(name: str, before: np.ndarray, after: np.ndarray, value: np.ndarray) -> str | None:
    edge = FENCE_BYTES // value.itemsize
    changed = (before.view(np.uint8) != after.view(np.uint8)).reshape(before.size, -1).any(axis=1)
    changed[edge : edge + value.size] = False
    if not changed.any():
        return None
    at = int(np.flatnonzero(changed)[0]) - edge
    return (
        f"the kernel wrote outside `{name}`: at `{name}[{at}]`, and the array has elements 0 to {value.size - 1}"
        f"{_more(int(changed.sum()) - 1)}."
    )


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(np.ascontiguousarray(a).view(np.uint8), b.view(np.uint8))


# ---- results ----


def _wrong(
    found: Op, variant: Variant, case: Case, name: str, got: np.ndarray, expected: np.ndarray
) -> str | None:
    expected = expected.astype(got.dtype)
    poison = _poisoned(case[name], name in found.outputs)
    missing = poison & _unchanged(got, case[name]) & ~_equal(got, expected)
    if missing.any():
        return f"`{name}` is not written at {_places(missing)}: the poison is still there."
    if got.dtype.kind in "iu":
        wrong = got != expected
    else:
        strange = np.isnan(got) & ~np.isnan(expected)
        if strange.any():
            return (
                f"`{name}` is NaN at {_places(strange)}: the kernel read what holds no number, or computed 0/0 or "
                "infinity minus infinity."
            )
        wrong = _far(found, variant, case, name, got, expected)
    if not wrong.any():
        return None
    rows = [
        f"`{_at(name, i)}` should be {expected[i]:.6g} and is {got[i]:.6g}" for i in _first(wrong)
    ]
    return f"`{name}` is wrong at {_places(wrong)}: {'; '.join(rows)}."


def _poisoned(before: np.ndarray, output: bool) -> np.ndarray:
    if before.dtype.kind == "f":
        return np.isnan(before)
    return np.asarray((before == -1) & output)


def _unchanged(got: np.ndarray, before: np.ndarray) -> np.ndarray:
    def by_bits(a: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(a).view(f"u{a.itemsize}")

    return np.asarray(by_bits(got) == by_bits(before))


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b))) if a.dtype.kind == "f" else a == b


def _far(
    found: Op, variant: Variant, case: Case, name: str, got: np.ndarray, expected: np.ndarray
) -> np.ndarray:
    """Where an output lies too far from the reference.

    Allowed is, of the whole output's norm, the variant's tolerance (in FP16 2e-3 at least), and ten times what the
    reference itself moves by when its FP32 inputs move by ten units in the last place: a sum whose terms cancel is
    small against its rounding. Where the variant rounds, twice what its roundings change: an edit may round less, or
    elsewhere.
    """
    rng = np.random.default_rng(0)

    def number(a: Any) -> Any:
        return np.nan_to_num(a.astype(np.float64), posinf=1e150, neginf=-1e150)

    def moved() -> Case:
        return {
            k: v * np.asarray(1 + 1e-6 * rng.standard_normal(v.shape), v.dtype)
            if isinstance(v, np.ndarray) and v.dtype == np.float32
            else v
            for k, v in case.items()
        }

    off = np.abs(number(got) - number(expected))
    off[np.isnan(expected) & ~np.isnan(got)] = np.inf
    share = max(2e-3 if got.dtype == np.float16 else 0, variant.tolerance)
    shifts = (number(found.expected(variant, moved())[name]) - number(expected) for _ in range(3))
    allowed = share * np.linalg.norm(number(expected))
    allowed += 10 * max(float(np.linalg.norm(s)) for s in shifts)
    if variant.rounded:
        allowed += 2 * np.linalg.norm(number(found.reference(case)[name]) - number(expected))
    if np.linalg.norm(off) <= allowed:
        return np.zeros(got.shape, bool)
    return off > allowed / np.sqrt(got.size)


# ---- words ----


def _first(mask: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(int(i) for i in at) for at in np.argwhere(mask)[:SHOWN]]


def _at(name: str, index: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, index))}]"


def _places(mask: np.ndarray) -> str:
    """Where a mask is true: "3 of 7 rows (1, 3, 5)", "all 7 rows"; a matrix has elements, a vector rows."""
    count, units = int(mask.sum()), "rows" if mask.ndim == 1 else "elements"
    if count == mask.size:
        return f"all {count:,} {units}" if count > 1 else "its one element"
    shown = ", ".join(
        str(i[0]) if len(i) == 1 else f"[{', '.join(map(str, i))}]" for i in _first(mask)
    )
    more = ", ..." if count > SHOWN else ""
    return f"{count:,} of {mask.size:,} {units} ({shown}{more})"


def _more(count: int) -> str:
    return f", and {count:,} more" if count else ""
