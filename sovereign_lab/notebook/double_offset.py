"""Phase 1's bug, run so that it corrupts and cannot fault, and what makes it visible.

`DOUBLE_OFFSET` is no variant of the ladder: every phase runs the fixed kernel. `engine_with` swaps a kernel's text
for it in an engine whose keys have twice the room, which is as far as the offset, added twice, can reach.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from IPython.display import Markdown

from sovereign_lab.devices import Device, open_device
from sovereign_lab.engine import Engine
from sovereign_lab.engine.forward import Call
from sovereign_lab.errors import LabError
from sovereign_lab.kernels import FOLDER
from sovereign_lab.kernels.cases import cases
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.measure.sanitizer import Report, sanitize
from sovereign_lab.measure.workload import DEFINES, workload
from sovereign_lab.models import reference
from sovereign_lab.models.model import Config, Model

DOUBLE_OFFSET: Variant = replace(
    op("rope_kv").variant("fixed"),
    path=FOLDER / "rope_kv/0_double_offset.cu",
    teaches="the position's offset is added twice, for the keys alone",
)

# A logit may be off by this share of the largest one: half precision in the cache, sums in another order.
LOGIT_TOLERANCE = 1e-3

# Guards of this many slots before and behind the cache of a checked kernel, and what they hold.
FENCE_SLOTS = 64
CANARY = -123.5
TOLERANCES = {np.float16: 2e-3, np.float32: 1e-5}
KERNEL_TYPES = {np.float16: "half", np.float32: "float"}


# ---- the engine ----


def engine_with(
    source: str,
    model: Model,
    device: Device,
    phase: str = "8b",
    context: int | None = None,
    name: str = "yours.cu",
) -> Engine:
    """An engine that runs `source` as its rope_kv, over keys of twice the context, all zero.

    Zero, so that what a wrong kernel leaves unwritten is the same in every run. Raises LabError where `source`
    does not compile, and what Engine raises.
    """
    engine = Engine(model, device, phase=phase, context=context)
    variant, _ = engine.kernels["rope_kv"]
    kernel = device.compile(source, {"KV": engine.kv.kernel_type}, name=name)
    engine.kernels["rope_kv"] = (variant, kernel)

    old = engine.kv
    shape = (2 * engine.context, model.config.kv_heads, model.config.head_dim)
    keys = tuple(device.array(np.zeros(shape, old.dtype)) for _ in old.keys)
    engine.kv = replace(old, keys=keys)
    longer = {id(before): after for before, after in zip(old.keys, keys, strict=True)}
    # No recording exists yet, so the next run records the new arrays.
    engine.prefill_calls, engine.decode_calls, engine.sampled_calls = (
        [_with_keys(call, longer) for call in calls]
        for calls in (engine.prefill_calls, engine.decode_calls, engine.sampled_calls)
    )
    fill_cache(engine, 0)
    return engine


def _with_keys(call: Call, longer: dict[int, Any]) -> Call:
    args = {parameter: longer.get(id(value), value) for parameter, value in call.args.items()}
    return call._replace(args=args)


def fill_cache(engine: Engine, value: float) -> None:
    """Put `value` into every slot of every layer's keys and values."""
    for array in (*engine.kv.keys, *engine.kv.values):
        engine.device.update(array, np.full(array.shape, value, engine.kv.dtype))


def accesses(variant: Variant, config: Config, position: int, context: int) -> Report:
    """What a checker of memory accesses says of a rope_kv kernel at one position, on a cache of `context` slots."""
    rope = op("rope_kv")
    args = workload(rope, config, position)
    args |= {name: args[name][:context] for name in ("keys", "values")}
    return sanitize(variant.path, rope.grid(variant, args), variant.threads, args, DEFINES)


# ---- where a position writes ----


@dataclass(frozen=True)
class CacheWrites:
    """Slots that each position wrote in the first layer's cache: `keys[p]` and `values[p]`, in ascending order."""

    keys: tuple[tuple[int, ...], ...]
    values: tuple[tuple[int, ...], ...]

    def found(self, position: int) -> list[int | None]:
        """Whose key lies in slots 0 to `position` when that position attends: a position each, None for nobody's."""
        slots: list[int | None] = [None] * (position + 1)
        for writer in range(position + 1):
            for slot in self.keys[writer]:
                if slot <= position:
                    slots[slot] = writer
        return slots


def watch_writes(engine: Engine, token_ids: Sequence[int]) -> CacheWrites:
    """Run `token_ids` position by position, the cache full of NaN before each: what is a number was written.

    The first layer only: its keys and values come from the embedding, before any attention can read a NaN. The
    cache is all zero afterwards.
    """
    device, state = engine.device, engine.state
    device.update(state.tokens[: len(token_ids)], np.asarray(token_ids, np.int32))
    device.update(state.given, np.array([engine.context + 1], np.int32))
    keys, values = [], []
    for position in range(len(token_ids)):
        fill_cache(engine, np.nan)
        device.update(state.position, np.array([position], np.int32))
        engine.run(engine.prefill_calls)
        keys.append(_numbers(device.to_host(engine.kv.keys[0])))
        values.append(_numbers(device.to_host(engine.kv.values[0])))
    fill_cache(engine, 0)
    return CacheWrites(tuple(keys), tuple(values))


def _numbers(cache: np.ndarray) -> tuple[int, ...]:
    """Slots of [slots, kv_heads, head_dim] that hold a number."""
    return tuple(int(slot) for slot in np.flatnonzero(~np.isnan(cache).all(axis=(1, 2))))


# ---- against the reference, position by position ----


@dataclass(frozen=True)
class Position:
    """One position of a given text: how far its logits are from the reference's, and what both say comes next.

    `error` is the largest difference of a logit, as a share of the largest logit.
    """

    position: int
    token: int
    error: float
    best: int
    reference_best: int

    @property
    def passes(self) -> bool:
        """Whether every logit is the reference's, within LOGIT_TOLERANCE. NaN is not."""
        return self.error <= LOGIT_TOLERANCE


def against_reference(engine: Engine, token_ids: Sequence[int]) -> list[Position]:
    """The engine's logits at every position of a given text, held to models/reference.py's."""
    expected = reference.forward(engine.model, token_ids, engine.kv.dtype)
    found = engine.logits(token_ids)
    errors = np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)
    return [
        Position(p, token, float(errors[p]), int(found[p].argmax()), int(expected[p].argmax()))
        for p, token in enumerate(token_ids)
    ]


# ---- the kernel alone ----


def show_code(variant: Variant) -> Markdown:
    """A variant's file without the comment at its head, which may say too much."""
    source = variant.source
    return Markdown(f"```c++\n{source[source.index('#include') :]}\n```")


def faults(source: str) -> Iterator[tuple[int, str | None]]:
    """Run a rope_kv kernel alone on odd shapes: for each, its position, and what is wrong, None where nothing is.

    On the SIMT device, for a cache of half and of float; NaN where nothing was written yet, canaries around q, keys
    and values. Raises LabError where `source` does not compile.
    """
    rope, device = op("rope_kv"), open_device("simt")
    for kv, kernel_type in KERNEL_TYPES.items():
        kernel = device.compile(source, {"KV": kernel_type}, name="yours.cu")
        for args in cases(rope, np.random.default_rng(3), kv):
            position = int(args["position"][0])
            fenced = {name: _fence(args, name) for name in rope.outputs}
            before = {name: buffer.copy() for name, (buffer, _) in fenced.items()}
            launched = {
                name: device.array(value) if isinstance(value, np.ndarray) else value
                for name, value in args.items()
            }
            launched |= {name: view for name, (_, view) in fenced.items()}
            grid = rope.grid(DOUBLE_OFFSET, args)
            device.launch(kernel, grid, DOUBLE_OFFSET.threads, list(launched.values()))
            expected = rope.reference(args)
            wrong = next(
                filter(None, (
                    _wrong_output(name, before[name], *fenced[name], expected[name], position, TOLERANCES[kv])
                    for name in rope.outputs
                )),
                None,
            )  # fmt: skip
            where = (
                f"position {position} ({args['heads']} query heads, {args['kv_heads']} KV heads of "
                f"{args['head_dim']}, {kernel_type})"
            )
            yield position, wrong and f"{where}: {wrong}"


def _fence(args: dict[str, Any], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(a buffer of canaries, the view inside it that holds a copy of the argument)."""
    array = args[name]
    guard = FENCE_SLOTS * array[0].size
    buffer = np.full(2 * guard + array.size, CANARY, array.dtype)
    view = buffer[guard : guard + array.size].reshape(array.shape)
    view[...] = array
    return buffer, view


def _wrong_output(
    name: str,
    before: np.ndarray,
    buffer: np.ndarray,
    view: np.ndarray,
    expected: np.ndarray,
    position: int,
    tolerance: float,
) -> str | None:
    bits = np.uint16 if buffer.itemsize == 2 else np.uint32  # a NaN over a NaN is no change
    changed = np.flatnonzero(before.view(bits) != buffer.view(bits))
    slots = sorted(set((changed // view[0].size - FENCE_SLOTS).tolist()))
    if name == "q":
        if slots and not (slots[0] >= 0 and slots[-1] < len(view)):
            return "the kernel writes outside q."
        where, found, right = "q", view, expected
    else:
        if slots != [position]:
            places = " and ".join(map(str, slots[:4])) if slots else "nowhere"
            to = f"to slot{'s' * (len(slots) > 1)} {places}" if slots else places
            return f"{name} are written {to}; this position's slot is {position}."
        where, found, right = f"{name}[{position}]", view[position], expected[position]
    off = np.abs(found.astype(np.float32) - right.astype(np.float32))
    bad = ~(off <= tolerance * (1 + np.abs(right).max()))  # a NaN is bad
    if not bad.any():
        return None
    head, element = (int(i) for i in np.argwhere(bad)[0])
    got = found[head, element]
    if np.isnan(got):
        return f"{where} is not written in full: head {head}, element {element} is still NaN."
    return f"{where}, head {head}, element {element} is {got:.5g}, and should be {right[head, element]:.5g}."


def first_fault(source: str) -> str | None:
    """What is wrong with a rope_kv kernel, in a sentence; None where nothing is."""
    try:
        return next((wrong for _, wrong in faults(source) if wrong), None)
    except LabError as error:
        return str(error)
