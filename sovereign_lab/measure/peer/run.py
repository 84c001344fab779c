"""Ours and llama.cpp in turn, context by context and prompt by prompt; a run of it, kept and read."""

import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGMLQuantizationType

from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine, forward
from sovereign_lab.errors import LabError
from sovereign_lab.measure.compare import Comparison, in_turn
from sovereign_lab.measure.environment import environment
from sovereign_lab.measure.peer.llama import WITH_CUDA, LlamaCpp
from sovereign_lab.measure.roofline import matrix_bytes
from sovereign_lab.measure.timing import decode_ms
from sovereign_lab.models.model import Config, Model

CONTEXTS = (16, 512, 2048, 3900)
PROMPTS = (128, 512, 2048)


@dataclass(frozen=True)
class Point:
    """One phase of ours (`change`) against llama.cpp (`base`) in `comparison`: ms a token.

    decode: from a context of `tokens` on. prefill: a prompt of `tokens` tokens, to the logits of the last one.
    """

    what: Literal["decode", "prefill"]
    tokens: int
    phase: str
    comparison: Comparison

    @property
    def tokens_per_second(self) -> tuple[float, float]:
        """The medians: llama.cpp's, ours."""
        both = self.comparison.base_ms, self.comparison.change_ms
        theirs, ours = (1e3 / statistics.median(samples) for samples in both)
        return theirs, ours

    def __str__(self) -> str:
        theirs, ours = self.tokens_per_second
        c = self.comparison
        return (
            f"{self.what:<8}{self.tokens:>7}{self.phase:>7}{theirs:>17,.1f}{ours:>12,.1f}"
            f"{c.speedup:>16.3f}   {c.low:.3f} to {c.high:.3f}"
        )


@dataclass(frozen=True)
class PeerRun:
    """What was measured, with what (`measure/environment.py`, and llama.cpp's version and build), on which file.

    `decoded`: tokens a measurement of decoding. `peer_on`: where llama.cpp ran, `peer_threads` working on the CPU;
    `peer_built_for_gpu`: whether it could have used a GPU. `head_type` is the file's, as llama.cpp reads it; ours is
    float32. Sizes in bytes.
    """

    environment: Mapping[str, str]
    times: str
    model: str
    file_bytes: int
    head_type: str
    head_bytes: int
    our_head_bytes: int
    decoded: int
    peer_on: Literal["the GPU", "the CPU"]
    peer_threads: int
    peer_built_for_gpu: bool
    points: tuple[Point, ...] = ()

    def with_point(self, point: Point) -> "PeerRun":
        """The run, and one more measurement."""
        return replace(self, points=(*self.points, point))

    def write(self, path: Path) -> None:
        """Keep the run as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "PeerRun":
        """A run that `write` kept."""
        content = json.loads(path.read_text())
        return cls(**content | {"points": tuple(_point(facts) for facts in content["points"])})

    @property
    def heading(self) -> str:
        """What is compared with what, and the columns."""
        where: str = self.peer_on
        if where == "the CPU":
            where += f", {self.peer_threads} thread{'s' if self.peer_threads > 1 else ''}"
        if not self.peer_built_for_gpu:
            where += f": its build has no CUDA ({WITH_CUDA} makes one that has), or there is no GPU"
        facts = self.environment
        return "\n".join(
            [
                f"{self.model}, {self.file_bytes / 1e6:,.1f} MB of GGUF; decode is the mean of {self.decoded} tokens, "
                "prefill ends with the logits of the last token",
                f"ours: {facts['device']}: {self.times}; head float32, {self.our_head_bytes / 1e6:,.1f} MB a token; "
                "KV cache fp16; the likeliest token chosen",
                f"llama.cpp: llama-cpp-python {facts['llama_cpp_python']} on {where}; head {self.head_type} as in the "
                f"file, {self.head_bytes / 1e6:,.1f} MB a token; KV cache fp16; flash attention; no token chosen",
                f"{'':<8}{'tokens':>7}{'phase':>7}{'llama.cpp tok/s':>17}{'ours tok/s':>12}{'ours / theirs':>16}"
                "   95 %",
            ]
        )

    def __str__(self) -> str:
        return "\n".join([self.heading, *map(str, self.points)])


def _point(facts: Mapping[str, Any]) -> Point:
    return Point(**{**facts, "comparison": Comparison.of(facts["comparison"])})


def that_fit(
    config: Config,
    tokens: int,
    contexts: Sequence[int] = CONTEXTS,
    prompts: Sequence[int] = PROMPTS,
) -> tuple[list[int], list[int]]:
    """Those of `contexts` and `prompts` that the model's own context has room for, `tokens` more being decoded."""
    return (
        [n for n in contexts if n + tokens <= config.context],
        # Ours takes a prompt with the token behind it, the first that is decoded.
        [n for n in prompts if n + 1 <= config.context],
    )


def begin(
    model: Model, device: Device, api: Any, decoded: int, threads: int | None = None
) -> PeerRun:
    """A run without measurements yet; llama.cpp goes to the GPU where ours runs there and it can.

    `threads`: its own on the CPU, by default one for each core that this process may use.
    """
    c, built_for_gpu = model.config, bool(api.llama_supports_gpu_offload())
    on_gpu = built_for_gpu and device.properties.kind == "cuda"
    facts = environment(device) | {
        "llama_cpp_python": api.__version__,
        "llama_cpp_build": api.llama_print_system_info().decode().strip(),
    }
    return PeerRun(
        facts,
        device.properties.times,
        c.name,
        model.path.stat().st_size,
        model.head.type.name,
        model.head.nbytes,
        matrix_bytes(c.vocab, c.dim, GGMLQuantizationType.F32),
        decoded,
        "the GPU" if on_gpu else "the CPU",
        threads or _cores(),
        built_for_gpu,
    )


def points(
    run: PeerRun,
    model: Model,
    device: Device,
    api: Any,
    phases: Sequence[str],
    contexts: Sequence[int],
    prompts: Sequence[int],
    rounds: int,
    progress: bool = False,
) -> Iterator[Point]:
    """Measure what `run` is about; a point is yielded as soon as it is known.

    Each round times both, the order alternating. Raises LabError for nothing to measure, an unknown phase, lengths
    that the model's context does not have, and whatever keeps llama.cpp from running.
    """
    if not (contexts or prompts) or not phases or rounds < 5:
        raise LabError(
            "A comparison needs a phase, a context or a prompt that the model has room for, and 5 rounds or more; "
            f"got phases {list(phases)}, contexts {list(contexts)}, prompts {list(prompts)}, {rounds} rounds."
        )
    room = max([*(n + run.decoded for n in contexts), *(n + 1 for n in prompts)])
    first = Engine(model, device, phases[0], context=room, progress=progress)
    engines = {first.phase.id: first} | {p: first.with_phase(p) for p in phases[1:]}
    ids = np.random.default_rng(0).integers(0, model.config.vocab, room).tolist()
    on = device.properties.name
    with LlamaCpp(
        api, model.path, room, model.config.vocab, run.peer_on == "the GPU", run.peer_threads
    ) as peer:
        for phase, engine in engines.items():
            names = ("llama.cpp", f"phase {phase}")
            for n in contexts:
                theirs = partial(peer.decode_ms, n, run.decoded)
                ours = partial(decode_ms, engine, n, run.decoded)
                yield Point("decode", n, phase, in_turn(theirs, ours, names, on, rounds))
            for n in prompts:
                theirs = partial(peer.prefill_ms, n)
                ours = partial(prefill_ms, engine, ids[: n + 1])
                yield Point("prefill", n, phase, in_turn(theirs, ours, names, on, rounds))


def prefill_ms(engine: Engine, ids: Sequence[int]) -> float:
    """Milliseconds a token of a prompt: all of `ids` but the last are run, and the head once.

    Our prefill leaves the logits to the first token that is decoded, where llama.cpp's ends with them: so the head's
    kernels are launched behind it, for a like time, on whatever the residual stream then holds.
    """
    s = engine.state
    head = list(forward.head(engine.model.config, engine.weights, s))
    start = time.perf_counter()
    engine.prefill(ids, len(ids))
    engine.launch_all(head)
    engine.device.synchronize()
    return 1e3 * (time.perf_counter() - start) / (len(ids) - 1)


def _cores() -> int:
    """How many of them this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
