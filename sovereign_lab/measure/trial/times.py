"""Is an edit faster than its parent? Alone and inside an engine, measured in turn, one pair a round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sovereign_lab.devices import Device
from sovereign_lab.devices.device import Source
from sovereign_lab.engine import Engine
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.measure.compare import Comparison, in_turn
from sovereign_lab.measure.mine import Edit, with_kernels
from sovereign_lab.measure.profile import least_bytes
from sovereign_lab.measure.roofline import find_gpu, floor, token_bytes
from sovereign_lab.measure.timing import decode_ms
from sovereign_lab.measure.trial.cases import launch_of
from sovereign_lab.measure.worker import child
from sovereign_lab.measure.workload import DEFINES, config_of, workload
from sovereign_lab.models.model import Model

# On the SIMT device, whose times say nothing of a GPU, as few as a verdict can do with.
ROUNDS = {"cuda": 11, "simt": 5}
POSITION = 63
# One recording holds so many launches at least, and on a GPU so many sets of arrays that its L2 cannot hold them.
LAUNCHES = 8
L2_TIMES = 4
MOST_BYTES = 400_000_000
PROMPT = "Once upon a time"
CONTEXT, ENGINE_POSITION = 128, 16
ENGINE_SECONDS = 600.0  # a large model on a CPU takes long where nothing is wrong
PASSES = 4  # forward passes a round
GREEDY_TOKENS = 16


@dataclass(frozen=True)
class Alone:
    """A kernel against its parent on the arguments of a model's first launch: `comparison` in ms a launch.

    `least_bytes`: what a launch must read and write at least. `floor_us`: the time that the GPU's bandwidth sets for
    them, None on the SIMT device or an unknown GPU.
    """

    comparison: Comparison
    model: str
    least_bytes: int
    floor_us: float | None

    @property
    def microseconds(self) -> tuple[float, float]:
        """The medians of parent and edit."""
        c = self.comparison
        return 1e3 * float(np.median(c.base_ms)), 1e3 * float(np.median(c.change_ms))

    @property
    def gigabytes_per_second(self) -> tuple[float, float]:
        """Least bytes by time, of parent and edit."""
        parent, mine = self.microseconds
        return self.least_bytes / parent / 1e3, self.least_bytes / mine / 1e3

    @property
    def shares_of_floor(self) -> tuple[float, float] | None:
        """Floor by time, of parent and edit, 0 to 1."""
        if self.floor_us is None:
            return None
        parent, mine = self.microseconds
        return self.floor_us / parent, self.floor_us / mine


@dataclass(frozen=True)
class InEngine:
    """A phase with the kernel in its parent's place against the phase as it is: `comparison` in ms a forward pass.

    `logits_distance`: of the two over a prompt, relative to the norm. `same_tokens` of `tokens` greedy ones agree,
    counted up to the first that does not. `floor_ms`: the time that the GPU's bandwidth sets for a token's bytes, None
    on the SIMT device or an unknown GPU.
    """

    comparison: Comparison
    model: str
    phase: str
    logits_distance: float
    same_tokens: int
    tokens: int
    floor_ms: float | None = None

    @property
    def tokens_per_second(self) -> tuple[float, float]:
        """Of parent and edit, from the median times of a forward pass."""
        c = self.comparison
        return 1e3 / float(np.median(c.base_ms)), 1e3 / float(np.median(c.change_ms))

    @property
    def shares_of_floor(self) -> tuple[float, float] | None:
        """Floor by time, of parent and edit, 0 to 1."""
        if self.floor_ms is None:
            return None
        parent, mine = self.tokens_per_second
        return self.floor_ms * parent / 1e3, self.floor_ms * mine / 1e3


def alone(device: Device, made: Edit, model: str | None = None) -> Alone:
    """Time an edit and its parent at the size of a model. Raises LabError as `workload` does, or if a launch fails."""
    found, config = op(made.op), config_of(model)
    args = workload(found, config, POSITION)
    nbytes = sum(v.nbytes for v in args.values() if isinstance(v, np.ndarray))
    l2 = device.properties.l2_bytes or 0
    wanted = max(LAUNCHES, -(-L2_TIMES * l2 // max(1, nbytes)))
    copies = max(1, min(wanted, 1000, MOST_BYTES // max(1, nbytes)))
    sets = [list(device.arguments(args).values()) for _ in range(copies)]
    parent = made.parent
    plain = Edit(made.op, parent.source, made.like)
    base, change = (_replays(device, which, args, sets) for which in (plain, made))
    comparison = in_turn(base, change, (made.like, made.name), *_on(device))
    least = least_bytes(made.op, args, POSITION)
    gpu = find_gpu(device.properties.name)
    floor_us = floor(least, gpu).ms * 1e3 if gpu else None
    return Alone(comparison, config.name, least, floor_us)


def _on(device: Device) -> tuple[str, int]:
    """The name of the device, and how many rounds of a comparison it is given."""
    return device.properties.name, ROUNDS[device.properties.kind]


def _replays(
    device: Device, made: Edit, args: dict[str, Any], sets: list[list[Any]]
) -> Callable[[], float]:
    """A function that runs a recording of launches on each set of arrays, and returns milliseconds a launch."""
    variant: Variant = made.variant()
    kernel = device.compile(Source(made.text, f"{made.name}.cu", DEFINES))
    shared, launches = variant.shared_bytes(args), max(LAUNCHES, len(sets))
    with device.capture() as capture:
        for i in range(launches):
            device.launch(
                kernel, op(made.op).grid(variant, args), variant.threads, sets[i % len(sets)], shared,
                variant.cooperative,
            )  # fmt: skip

    def measure() -> float:
        child.doing(f"{launch_of(made, args)}, {launches} times, to be timed,")
        with device.timer() as timer:
            capture.replay()
        return timer.milliseconds / launches

    return measure


def in_engine(device: Device, made: Edit, model: Model, phase: str) -> InEngine:
    """Run a model's phase with and without an edit. Raises LabError as `with_kernels` does, or if a kernel fails."""
    config = model.config
    base = Engine(model, device, phase, context=min(config.context, CONTEXT))
    base = with_kernels(base, {made.op: made.parent})
    change = with_kernels(base, {made.op: made})
    ids = base.model.tokenizer.encode(PROMPT)
    child.doing(f"{config.name} with kernel {made.name}", ENGINE_SECONDS)
    expected, got = base.logits(ids), change.logits(ids)
    distance = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
    texts = [e.generate(PROMPT, GREEDY_TOKENS).token_ids for e in (base, change)]
    same = 0
    while same < min(map(len, texts)) and texts[0][same] == texts[1][same]:
        same += 1
    comparison = in_turn(
        lambda: decode_ms(base, ENGINE_POSITION, PASSES),
        lambda: decode_ms(change, ENGINE_POSITION, PASSES),
        (f"phase {phase} with {made.like}", f"phase {phase} with {made.name}"),
        *_on(device),
    )
    gpu = find_gpu(device.properties.name)
    least = floor(token_bytes(config).at(ENGINE_POSITION), gpu).ms if gpu else None
    tokens = max(map(len, texts))
    return InEngine(comparison, config.name, phase, distance, same, tokens, least)
