"""What a run of `measure.decode` holds, kept as JSON and read again."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.measure.roofline import find_gpu, floor

CONTEXTS = (16, 128, 256, 2048, 4000)
BASE = 128  # the context over which added time is told
LLAMA_CPP = "llama.cpp"
NO_GRAPHS = " without a graph"  # behind a phase's id: launched one by one from Python


@dataclass(frozen=True)
class Times:
    """Microseconds a token of one engine from one context on; `us` has a mean of the run's `tokens` tokens a round.

    `name`: the phase's id, with NO_GRAPHS behind it where each launch came from Python, or LLAMA_CPP.
    """

    name: str
    context: int
    us: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.us)

    @property
    def low(self) -> float:
        """5 % of the rounds are below."""
        return float(np.percentile(self.us, 5))

    @property
    def high(self) -> float:
        """95 % of the rounds are below."""
        return float(np.percentile(self.us, 95))


@dataclass(frozen=True)
class Difference:
    """The first greedy token that is not phase 8b's: the `at`-th, counted from 0.

    `margin`: by how much the reference's logit of 8b's token is above that of the other. `allowed`: twice what the
    phase's roundings change in the reference's own logits: two that are each off by so much may change places.
    """

    at: int
    token_8b: int
    token: int
    margin: float
    allowed: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it."""
        return abs(self.margin) <= self.allowed


@dataclass(frozen=True)
class TextCheck:
    """One phase on a model that writes text: its logits over phase 8b's greedy text, and its own greedy text.

    `to_reference`, `to_rounded`, `to_8b`: the largest difference of a logit to `reference.forward`, to the same where
    it rounds what the phase rounds, and to phase 8b, as a share of the reference's largest logit. `same`: leading
    tokens that are 8b's, of `tokens`.
    """

    model: str
    name: str
    prompt: str
    tokens: int
    to_reference: float
    to_rounded: float
    to_8b: float
    same: int
    difference: Difference | None

    @property
    def ok(self) -> bool:
        """The same text, or another one from a near tie on."""
        return self.difference is None or self.difference.near_tie


@dataclass(frozen=True)
class Stages:
    """Where the persistent kernel's time goes: microseconds of the stages of a launch's last token, in one block.

    `us` has for each stage the median over the repeats, layer by layer. `start_us` precedes the first layer;
    `head_us` and `best_us` follow the last one. `timed_us`: the device's own time of the launch, a token, for
    comparison with `token_us`. `clock_mhz`: what the cycles were divided by. `block` of `blocks` kept the stamps.
    """

    name: str
    context: int
    tokens: int
    block: int
    blocks: int
    clock_mhz: float
    repeats: int
    us: Mapping[str, tuple[float, ...]]
    start_us: float
    head_us: float
    best_us: float
    timed_us: float

    def median(self, stage: str) -> float:
        """The median over the layers."""
        return statistics.median(self.us[stage])

    @property
    def layer_us(self) -> float:
        """A layer: the mean over the layers of the sum over the stages."""
        return sum(map(sum, self.us.values())) / len(next(iter(self.us.values())))

    @property
    def token_us(self) -> float:
        """All stages of a token together."""
        return self.start_us + sum(map(sum, self.us.values())) + self.head_us + self.best_us


@dataclass(frozen=True)
class Peer:
    """llama.cpp: its binding's version and build, where it ran, and the head that it reads, as in the file."""

    version: str
    build: str
    on: str
    head_type: str
    head_bytes: int


@dataclass(frozen=True)
class DecodeRun:
    """What was measured, on which machine (measure/environment.py) and of which model.

    `tokens`: tokens a measurement. `layer_bytes`, `kv_bytes`: what a token reads of all layers, and of each position
    before it. `heads`: engine -> bytes of the head that it reads. `refused`: phase -> why it did not run.
    """

    environment: Mapping[str, str]
    times_are: str
    model: str
    tokens: int
    layer_bytes: int
    kv_bytes: int
    heads: Mapping[str, int]
    times: tuple[Times, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    peer: Peer | None = None
    peer_reason: str | None = None
    texts: tuple[TextCheck, ...] = ()
    stages: tuple[Stages, ...] = ()
    stages_reason: str | None = None

    @property
    def names(self) -> list[str]:
        """The engines, in the order in which they were measured; llama.cpp last."""
        return list(dict.fromkeys(t.name for t in self.times))

    @property
    def contexts(self) -> list[int]:
        """The contexts that were measured."""
        return sorted({t.context for t in self.times})

    def find(self, name: str, context: int) -> Times | None:
        """One measurement; None where it was not made."""
        return next((t for t in self.times if (t.name, t.context) == (name, context)), None)

    def us(self, name: str, context: int) -> float:
        """The median of a measurement; KeyError where it was not made."""
        found = self.find(name, context)
        if found is None:
            raise KeyError(f"{name} at context {context}")
        return found.median

    def gain(self, name: str, over: str, context: int) -> float:
        """How many times as fast `name` is as `over`: the median over the rounds, in each of which both took a turn."""
        pair = [self.find(n, context) for n in (over, name)]
        if pair[0] is None or pair[1] is None:
            raise KeyError(f"{name} and {over} at context {context}")
        return statistics.median(a / b for a, b in zip(pair[0].us, pair[1].us, strict=True))

    def added(self, name: str, context: int) -> float | None:
        """Microseconds a token above those at context BASE; None where one of the two was not measured."""
        here, base = self.find(name, context), self.find(name, BASE)
        return None if here is None or base is None else here.median - base.median

    def nbytes(self, name: str, context: int) -> int:
        """Bytes that a token must read: weights, and the keys and values of the positions before its middle token."""
        middle = context + (self.tokens - 1) // 2
        return self.layer_bytes + self.heads[name] + middle * self.kv_bytes

    def floor_us(self, name: str, context: int) -> float | None:
        """The time of those bytes at the GPU's bandwidth; None for a device that roofline.GPUS does not have."""
        gpu = find_gpu(self.environment["device"])
        return None if gpu is None else 1e3 * floor(self.nbytes(name, context), gpu).ms

    def write(self, path: Path) -> None:
        """Keep the run as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "DecodeRun":
        """A run that `write` kept."""
        content: dict[str, Any] = json.loads(path.read_text())
        content["times"] = tuple(
            Times(t["name"], t["context"], tuple(t["us"])) for t in content["times"]
        )
        content["peer"] = content["peer"] and Peer(**content["peer"])
        content["texts"] = tuple(
            TextCheck(**t | {"difference": t["difference"] and Difference(**t["difference"])})
            for t in content["texts"]
        )
        content["stages"] = tuple(
            Stages(**s | {"us": {stage: tuple(us) for stage, us in s["us"].items()}})
            for s in content["stages"]
        )
        return cls(**content)

    # ---- as text ----

    def rows(self) -> list[list[str]]:
        """A table of the times, its head first: an engine a line, a context a column, and what the context adds."""
        head = ["us a token", *(f"at {c:,}" for c in self.contexts)]
        late = [c for c in self.contexts if c > BASE and BASE in self.contexts]
        lines = [[*head, *(f"{c:,} adds" for c in late)]]
        floors: list[str] = []
        for name in self.names:
            cells = []
            for context in self.contexts:
                t = self.find(name, context)
                cells.append(f"{t.median:,.1f} ({t.low:,.1f} to {t.high:,.1f})" if t else "")
            for context in late:
                added = self.added(name, context)
                cells.append("" if added is None else f"{added:+,.1f}")
            lines.append([named(name), *cells])
            before = floors
            known = [self.floor_us(name, c) for c in self.contexts]
            floors = [f"{us:,.1f}" for us in known if us is not None]
            if floors and floors != before:  # once for all that read the same bytes
                lines.append(["  its bytes alone", *floors])
        width = len(lines[0])
        return [line + [""] * (width - len(line)) for line in lines]

    def __str__(self) -> str:
        rounds = max(len(t.us) for t in self.times)
        lines = [
            f"{self.model} on {self.environment['device']}: {self.times_are}; the mean of {self.tokens} tokens a "
            f"measurement, in turn, {rounds} rounds: median (5 % to 95 %)",
            *_columns(self.rows()),
        ]
        lines += [f"phase {phase} did not run: {reason}" for phase, reason in self.refused.items()]
        if self.peer is not None:
            lines.append(
                f"llama.cpp: llama-cpp-python {self.peer.version} on {self.peer.on}; head {self.peer.head_type}, "
                f"{self.peer.head_bytes / 1e6:,.1f} MB; flash attention; no token chosen"
            )
        if self.peer_reason is not None:
            lines.append(f"llama.cpp did not run: {self.peer_reason}")
        for t in self.texts:
            text = f"{t.same} of {t.tokens} greedy tokens are 8b's"
            if (d := t.difference) is not None:
                word = "a near tie" if d.near_tie else "NO near tie"
                text += (
                    f"; then {d.token} for {d.token_8b}, which the reference puts {d.margin:.2g} above: {word} "
                    f"(rounding explains up to {d.allowed:.2g})"
                )
            lines.append(
                f"{t.model}, {named(t.name)}: logits off the reference's by {t.to_reference:.1e} of the largest, by "
                f"{t.to_rounded:.1e} where it rounds alike, off 8b's by {t.to_8b:.1e}; {text}"
            )
        for s in self.stages:
            lines.append(
                f"{named(s.name)} at {s.context:,}, block {s.block} of {s.blocks}, {s.clock_mhz:,.0f} MHz: a layer "
                f"{s.layer_us:.1f} us, start {s.start_us:.1f}, head {s.head_us:.1f}, best token {s.best_us:.1f}, all "
                f"{s.token_us:.1f} us of the last token; the launch took {s.timed_us:.1f} a token"
            )
            lines += _columns([[f"  {stage}", f"{s.median(stage):.2f}"] for stage in s.us])
        if self.stages_reason is not None:
            lines.append(f"no stages: {self.stages_reason}")
        return "\n".join(lines)


def named(name: str) -> str:
    """ "phase 8b", or llama.cpp."""
    return name if name == LLAMA_CPP else f"phase {name}"


def _columns(lines: list[list[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
