"""Where a forward pass spends its time: every op alone, what is left of the whole pass, and a timeline of launches.

    print(sl.profile(engine))

    python -m sovereign_lab.measure.profile --phase 8c --record data/runs

An op is timed by recording all its launches of a pass and replaying them alone. On a GPU the smaller ops then find
their data in the L2 cache, since nothing else runs in between, so that the sum of all ops can fall short of the pass
for two reasons: time between launches, and a cache that others have filled.
"""

import argparse
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.devices import open_device
from sovereign_lab.devices.open import CHOICES
from sovereign_lab.engine import Engine
from sovereign_lab.engine.decode_loop import DecodeLoop
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.kernels.tile_ops import SPLIT
from sovereign_lab.measure.environment import environment
from sovereign_lab.measure.roofline import GPU, find_gpu
from sovereign_lab.measure.timing import decode_ms, start_at
from sovereign_lab.models.model import load_model

# Keeps the GPU busy while the host gets launches ready, so that these then follow each other without the host.
HOLD = """
extern "C" __global__ void hold(long long cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) {}
}
"""
# More than a launch and an event take from Python (7 us a launch was measured), at more cycles than a GPU's clock has.
HOLD_SECONDS_A_LAUNCH = 50e-6
CYCLES_A_SECOND = 2e9

ON_GPU = (
    "Ops: all launches of one op in a graph, replayed alone; a small op then finds its data in the L2 cache. "
    "Timeline: events between launches without a graph, so every launch has its overhead in it, and those that run "
    "side by side follow each other."
)
ON_CPU = "Timeline: wall time of each launch."


@dataclass(frozen=True)
class OpProfile:
    """All launches of one op in a forward pass.

    `us`: microseconds of all of them, the median of `samples`. `share`: of the whole pass. `bytes`: what they must
    read and write at least, weights and activations, every array once a launch (`least_bytes`). `floor_share`: the
    time in which the GPU's bandwidth moves these bytes, over `us`; None where that bandwidth is not known. More than
    1 means that the L2 cache served them.
    """

    op: str
    variant: str
    launches: int
    us: float
    samples: tuple[float, ...]
    share: float
    bytes: int
    floor_share: float | None

    @property
    def gb_per_s(self) -> float:
        """bytes / us, in GB/s (10^9 bytes a second)."""
        return self.bytes / self.us / 1e3


@dataclass(frozen=True)
class Launch:
    """One launch of the timeline: microseconds from the start of the pass, and how long it took."""

    op: str
    variant: str
    start_us: float
    us: float


@dataclass(frozen=True)
class Profile:
    """A forward pass with logits at `position`, by op. `times` says what a time of this device means."""

    model: str
    phase: str
    device: str
    kind: str  # "cuda" or "simt"
    times: str
    position: int
    pass_us: float
    pass_samples: tuple[float, ...]
    ops: tuple[OpProfile, ...]
    timeline: tuple[Launch, ...] = field(repr=False)
    gpu: GPU | None

    @classmethod
    def load(cls, path: Path) -> "Profile":
        """A recorded profile, from the file that `record` wrote."""
        content = json.loads(path.read_text())["profile"]
        return cls(
            **{
                **content,
                "pass_samples": tuple(content["pass_samples"]),
                "ops": tuple(
                    OpProfile(**{**row, "samples": tuple(row["samples"])}) for row in content["ops"]
                ),
                "timeline": tuple(Launch(**launch) for launch in content["timeline"]),
                "gpu": GPU(**content["gpu"]) if content["gpu"] else None,
            }
        )

    def record(self, folder: Path, facts: Mapping[str, str]) -> Path:
        """Keep it in `folder` with what it was measured with (`environment`), as JSON; returns the path."""
        name = f"{facts['date']} {self.device} {self.model} phase {self.phase} profile"
        path = folder / (re.sub(r"[^a-z0-9.]+", "-", name.lower()) + ".json")
        folder.mkdir(parents=True, exist_ok=True)
        content = {"environment": dict(facts), "profile": asdict(self)}
        path.write_text(json.dumps(content, indent=1) + "\n")
        return path

    @property
    def rest_us(self) -> float:
        """What is left of the pass when every op's own time is taken off; below 0 where ops were slower alone."""
        return self.pass_us - sum(row.us for row in self.ops)

    @property
    def method(self) -> str:
        """How the figures were taken, in a sentence or two."""
        return ON_GPU if self.kind == "cuda" else ON_CPU

    @property
    def title(self) -> str:
        """What was measured, and on what."""
        return f"{self.model}, phase {self.phase}, position {self.position:,}, {self.device}"

    def rows(self) -> list[list[str]]:
        """The table, its head first; bandwidths only where they are a GPU's."""
        on_gpu = self.kind == "cuda"
        head = ["op", "kernel", "launches", "us", "of the pass", "MB at least"]
        head += ["GB/s"] if on_gpu else []
        head += ["of the floor"] if self.gpu else []
        lines = [head]
        for row in self.ops:
            line = [row.op, row.variant, str(row.launches), f"{row.us:,.1f}", f"{row.share:.1%}"]
            line += [f"{row.bytes / 1e6:,.3f}"]
            line += [f"{row.gb_per_s:,.0f}"] if on_gpu else []
            line += [f"{row.floor_share:.1%}"] if row.floor_share is not None else []
            lines.append(line)
        launches = sum(row.launches for row in self.ops)
        total = sum(row.bytes for row in self.ops)
        rest = ["the rest", "", "", f"{self.rest_us:,.1f}", f"{self.rest_us / self.pass_us:.1%}"]
        whole = ["the whole pass", "", str(launches), f"{self.pass_us:,.1f}", "100.0%"]
        whole += [f"{total / 1e6:,.3f}"]
        whole += [f"{total / self.pass_us / 1e3:,.0f}"] if on_gpu else []
        whole += [f"{_floor_us(total, self.gpu) / self.pass_us:.1%}"] if self.gpu else []
        return [line + [""] * (len(head) - len(line)) for line in (*lines, rest, whole)]

    def _notes(self) -> list[str]:
        notes = [f"Times: {self.times}.", self.method]
        if self.gpu:
            notes.append(
                f"Floor: {self.gpu.bandwidth:,.0f} GB/s of an {self.gpu.name} ({self.gpu.origin})."
            )
        return notes

    def __str__(self) -> str:
        lines = self.rows()
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        table = [
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, *table, *self._notes()])

    def _repr_html_(self) -> str:
        def line(cells: list[str], tag: str) -> str:
            inner = "".join(
                f"<{tag} style='text-align:{'left' if i < 2 else 'right'}'>{escape(cell)}</{tag}>"
                for i, cell in enumerate(cells)
            )
            return f"<tr>{inner}</tr>"

        head, *rows = self.rows()
        body = "".join(line(row, "td") for row in rows)
        notes = " ".join(map(escape, self._notes()))
        return (
            f"<p>{escape(self.title)}</p><table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"
            f"<p>{notes}</p>"
        )


def profile(engine: Engine, position: int = 16) -> Profile:
    """Time every op of a forward pass of `engine` at `position`, the pass itself, and each launch in order.

    The text that the engine held in its KV cache is lost. Raises LabError for a position with no room behind it in
    the engine's context: the timed passes run on from there.
    """
    properties = engine.device.properties
    # An imitation's times are seconds for a large model, and say nothing finer than a sample or two tell.
    replays, repeats = (20, 5) if properties.kind == "cuda" else (2, 3)
    if not 0 <= position <= engine.context - replays:
        raise LabError(
            f"A profile runs {replays} passes from its position on: at most position {engine.context - replays} in a "
            f"context of {engine.context}; got {position}."
        )
    gpu = find_gpu(properties.name) if properties.kind == "cuda" else None
    decode_ms(engine, position, 2)  # warm-up: recording, clocks, caches
    whole = tuple(1e3 * decode_ms(engine, position, replays) for _ in range(repeats))
    pass_us = statistics.median(whole)
    rows = []
    for name, launches in Counter(call.op for call in engine.decode_calls).items():
        samples = tuple(1e3 * ms for ms in op_ms(engine, name, position, replays, repeats))
        us = statistics.median(samples)
        calls = [call for call in engine.decode_calls if call.op == name]
        nbytes = sum(least_bytes(name, call.args, position) for call in calls)
        rows.append(
            OpProfile(
                op=name,
                variant=engine.kernels[name][0].name,
                launches=launches,
                us=us,
                samples=samples,
                share=us / pass_us,
                bytes=nbytes,
                floor_share=_floor_us(nbytes, gpu) / us if gpu else None,
            )
        )
    return Profile(
        model=engine.model.config.name,
        phase=engine.phase.id,
        device=properties.name,
        kind=properties.kind,
        times=properties.times,
        position=position,
        pass_us=pass_us,
        pass_samples=whole,
        ops=tuple(rows),
        timeline=timeline(engine, position),
        gpu=gpu,
    )


def op_ms(
    engine: Engine, name: str, position: int, replays: int = 20, repeats: int = 5
) -> list[float]:
    """All launches of one op in a forward pass, recorded and replayed alone at `position`: ms, one a repeat.

    `sample` draws at temperature 0.8 and top-p 0.95. Raises LabError for a position that the engine's context does
    not have.
    """
    start_at(engine, position)
    calls = engine.decode_calls
    if name == "sample":
        calls = DecodeLoop(
            engine, Sampling(temperature=0.8, top_p=0.95), [1] * (position + 1)
        ).calls
    engine.run(calls)  # so that every activation holds numbers
    with engine.device.capture() as capture:
        engine.launch_all([call for call in calls if call.op == name])
    # `advance` moves on with every replay, and must not leave the context.
    room = engine.context - position
    samples = []
    for repeat in range(repeats + 1):
        engine.device.update(engine.state.position, np.array([position], np.int32))
        with engine.device.timer() as timer:
            for _ in range(min(replays, room)):
                capture.replay()
        if repeat:  # the first one is a warm-up
            samples.append(timer.milliseconds / min(replays, room))
    return samples


def timeline(engine: Engine, position: int = 16) -> tuple[Launch, ...]:
    """Every launch of one forward pass at `position`, in order; see `Profile.method` for what its times hold.

    Raises LabError for a position that the engine's context does not have.
    """
    device, calls = engine.device, engine.decode_calls
    start_at(engine, position)
    engine.launch_all(calls)  # warm-up
    start_at(engine, position)
    stamps = device.stamps()
    if device.properties.kind == "cuda":
        cycles = int(len(calls) * HOLD_SECONDS_A_LAUNCH * CYCLES_A_SECOND)
        device.launch(device.compile(HOLD, name="hold.cu"), 1, 1, [cycles])
    stamps.mark()
    for call in calls:
        engine.launch_all([call])
        stamps.mark()
    marks = stamps.microseconds()
    return tuple(
        Launch(call.op, engine.kernels[call.op][0].name, start, end - start)
        for call, start, end in zip(calls, marks[:-1], marks[1:], strict=True)
    )


def _floor_us(nbytes: int, gpu: GPU) -> float:
    return nbytes / gpu.bandwidth / 1e3


# ---- bytes ----


def least_bytes(name: str, args: Mapping[str, Any], position: int) -> int:
    """Bytes that a launch must read and write at least: every array once, those changed in place twice.

    Of arrays of which a launch needs only a part, that part: a row of the embedding, the filled positions of the KV
    cache. An op's scratch counts as nothing: another kernel may do without. `args` as in a forward pass's calls.
    """
    partial = _PARTS[name](args, position) if name in _PARTS else {}
    scratch = op(name).scratch
    return sum(
        partial.get(key, int(value.nbytes))
        for key, value in args.items()
        if hasattr(value, "ndim") and value.ndim and key not in scratch
    )


def _row(array: Any) -> int:
    """Bytes of one entry along the first axis."""
    return int(array.nbytes) // int(array.shape[0])


def _persistent_parts(a: Mapping[str, Any], at: int) -> dict[str, int]:
    """Every token reads the weights anew: they are more than a GPU's caches hold."""
    count, positions = a["count"], int(a["keys"].shape[1])
    written = count if a["advance"] else 0
    return {
        **{name: count * int(a[name].nbytes) for name in ("matrices", "head", "norms", "inv_freq")},
        "embedding": count * _row(a["embedding"]),
        # Of a token's own key and value only other tokens read what is in memory.
        **{
            name: sum(at + 1 + i for i in range(count)) * int(a[name].nbytes) // positions
            for name in ("keys", "values")
        },
        "logits": count * int(a["logits"].nbytes),
        "best": count * int(a["best"].nbytes),
        "tokens": (count + written) * 4,
        "argmaxes": written * 4,
        "position": (1 + bool(written)) * 4,
        "turn": 8,
    }


_PARTS: dict[str, Callable[[Mapping[str, Any], int], dict[str, int]]] = {
    "embedding": lambda a, at: {"table": _row(a["table"]), "tokens": _row(a["tokens"])},
    "rope_kv": lambda a, at: {
        "q": 2 * int(a["q"].nbytes),
        "keys": _row(a["keys"]),
        "values": _row(a["values"]),
    },
    "attention": lambda a, at: {
        "keys": (at + 1) * _row(a["keys"]),
        "values": (at + 1) * _row(a["values"]),
    },
    "embedding_tokens": lambda a, at: {
        "table": a["count"] * _row(a["table"]),
        "tokens": a["count"] * _row(a["tokens"]),
    },
    "gemm_q4_0": lambda a, at: {"y": (1 + a["accumulate"]) * int(a["y"].nbytes)},
    "rope_kv_tokens": lambda a, at: {
        "keys": a["count"] * _row(a["keys"]),
        "values": a["count"] * _row(a["values"]),
    },
    "attention_tokens": lambda a, at: {
        "keys": (at + a["count"]) * _row(a["keys"]),
        "values": (at + a["count"]) * _row(a["values"]),
    },
    "embedding_batch": lambda a, at: {
        "table": a["count"] * _row(a["table"]),
        "tokens": 4 * a["count"],
    },
    "gemm_q4_0_batch": lambda a, at: {"y": (1 + a["accumulate"]) * int(a["y"].nbytes)},
    "rope_kv_batch": lambda a, at: {
        "keys": int(a["keys"].nbytes) // a["context"],
        "values": int(a["values"].nbytes) // a["context"],
    },
    "attention_batch": lambda a, at: {
        "keys": (at + 1) * int(a["keys"].nbytes) // a["context"],
        "values": (at + 1) * int(a["values"].nbytes) // a["context"],
    },
    "advance_batch": lambda a, at: {
        "tokens": 4 * a["count"],
        "argmaxes": 4 * a["count"],
        "position": 2 * int(a["position"].nbytes),
    },
    "norm_qkv": lambda a, at: {"keys": _row(a["keys"]), "values": _row(a["values"])},
    "gemv_add": lambda a, at: {"x": 2 * int(a["x"].nbytes)},
    "attention_split": lambda a, at: {
        "keys": (at + 1) * _row(a["keys"]),
        "values": (at + 1) * _row(a["values"]),
        "parts": (at // SPLIT + 1) * _row(a["parts"]),
        "softmax": (at // SPLIT + 1) * _row(a["softmax"]),
    },
    "attention_merge": lambda a, at: {
        "parts": (at // a["split"] + 1) * _row(a["parts"]),
        "softmax": (at // a["split"] + 1) * _row(a["softmax"]),
    },
    "persistent": lambda a, at: _persistent_parts(a, at),
    "add": lambda a, at: {"x": 2 * int(a["x"].nbytes)},
    "advance": lambda a, at: {
        "tokens": _row(a["tokens"]),
        "argmaxes": _row(a["argmaxes"]),
        "position": 2 * _row(a["position"]),
    },
}


def main() -> None:
    """Parse the command line; print the profiles and keep them."""
    parser = argparse.ArgumentParser(description="Where a forward pass spends its time, by op.")
    parser.add_argument("--device", choices=CHOICES, default="auto")
    parser.add_argument("--model", default="storyteller", help="a catalog name or a path")
    parser.add_argument("--phase", action="append", help="may be repeated; 8b if none is named")
    parser.add_argument("--position", type=int, default=16)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="keep each as JSON here")
    options = parser.parse_args()
    device = open_device(options.device)
    phases = options.phase or ["8b"]
    engine = Engine(load_model(options.model, progress=True), device, phases[0], progress=True)
    for phase in phases:
        measured = profile(engine.with_phase(phase), options.position)
        print(measured, flush=True)
        if options.record:
            print(f"recorded in {measured.record(options.record, environment(device))}")


if __name__ == "__main__":
    main()
