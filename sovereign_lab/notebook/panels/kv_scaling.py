"""`sl.explore_kv_scaling`: what a longer context adds to a token's bytes, the floor of its time, and recordings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.measure.ladder import LadderRun
from sovereign_lab.measure.roofline import GPU, GPUS, KV_BYTES, Floor, find_gpu, floor, token_bytes
from sovereign_lab.measure.workload import config_of
from sovereign_lab.models.model import Config, Model
from sovereign_lab.notebook.panels.controls import Choice, Control, Slider, Values
from sovereign_lab.notebook.panels.svg import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    line,
    picture,
    polyline,
    rect,
    tag,
    text,
)
from sovereign_lab.notebook.panels.widget import NARROW, WIDE, Drawing, Exploration, Explorer
from sovereign_lab.notebook.runs import recorded_ladder

RECORDED_MODEL = "synthetic:tinyllama-1.1b"


@dataclass(frozen=True)
class KVScaling:
    """A token at `position`: bytes of weights (layers in Q4_0, head in fp32) and of the cache that it reads.

    `floor`: the time in which `gpu` can just read them, counted from the model's shape (measure/roofline.py).
    """

    position: int
    kv_dtype: str
    kv_per_position: int
    weight_bytes: int
    floor: Floor

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all layers and of `position` earlier positions."""
        return self.position * self.kv_per_position

    @property
    def kv_share(self) -> float:
        """Of all bytes, 0 to 1."""
        return self.kv_bytes / (self.kv_bytes + self.weight_bytes)


def kv_scaling(config: Config, position: int, gpu: GPU, kv_dtype: str = "fp16") -> KVScaling:
    """The bytes of a token at a position, and its floor.

    Raises LabError for a position that the model does not have, and for a kv_dtype other than fp16 and fp32.
    """
    if not 0 <= position <= config.context:
        raise LabError(
            f"{config.name} has a context of {config.context:,} positions; got position {position:,}."
        )
    bytes_ = token_bytes(config, kv_dtype=kv_dtype)
    return KVScaling(
        position, kv_dtype, bytes_.kv_per_position, bytes_.layers + bytes_.head, floor(bytes_.at(position), gpu)
    )  # fmt: skip


def recorded_speeds(run: LadderRun, phase: str) -> dict[int, float]:
    """Tokens a second of a phase by the position that it was recorded at."""
    return {r.context: r.tokens_per_second for r in run.rungs if r.phase == phase}


def nearest(speeds: Mapping[int, float], position: int) -> int | None:
    """The recorded position that lies nearest; None where nothing was recorded."""
    return min(speeds, key=lambda at: abs(at - position), default=None)


def draw_kv_scaling(
    config: Config, position: int, gpu: GPU, kv_dtype: str = "fp16", run: LadderRun | None = None,
    phase: str = "8c", width: int = WIDE,
) -> Drawing:  # fmt: skip
    """Tok/s against position: the ceiling as a line, recorded speeds as marks; and the bytes of this position as a bar.

    `run`: a ladder recorded on this model, None where there is none. Raises LabError as `kv_scaling` does.
    """
    here = kv_scaling(config, position, gpu, kv_dtype)
    speeds = recorded_speeds(run, phase) if run else {}
    origin = f"{run.environment['device']}, recorded {run.environment['date']}" if run else ""
    parts = [*_bytes_bar(here, width), *_chart(config, here, gpu, speeds, width, 74)]
    rows = [
        ["keys and values, a position", f"{here.kv_per_position:,} bytes in {kv_dtype}"],
        ["of the cache at this position", f"{here.kv_bytes / 1e6:,.2f} MB a token"],
        ["weights", f"{here.weight_bytes / 1e6:,.2f} MB a token"],
        [
            f"floor of an {gpu.name} ({gpu.bandwidth:,.0f} GB/s, {gpu.origin})",
            f"{here.floor.ms:.3f} ms: at most {here.floor.tokens_per_second:,.0f} tok/s (modelled)",
        ],
    ]
    at = nearest(speeds, position)
    if at is not None:
        found = (
            f"{1e3 / speeds[at]:.2f} ms: {speeds[at]:,.1f} tok/s at position {at:,}, the nearest"
        )
        recorded_on = find_gpu(origin)
        if recorded_on == gpu and kv_dtype == "fp16":
            found += f"; {speeds[at] / kv_scaling(config, at, gpu).floor.tokens_per_second:.1%} of the ceiling there"
        rows.append([f"phase {phase}, {origin}, cache in fp16", found])
    note = (
        "The line is a ceiling from bytes and bandwidth, modelled; marks are recorded decode speeds."
        if speeds
        else "The line is a ceiling from bytes and bandwidth, modelled. No ladder was recorded on this model."
    )
    label = f"{config.name} at position {position:,}: {here.kv_share:.0%} of a token's bytes are keys and values"
    return Drawing(picture(parts, width, 384, label), rows, note)


def _bytes_bar(here: KVScaling, width: int) -> list[str]:
    """Weights and cache as parts of one bar, as long as the picture is wide."""
    full, split = width - 2, (width - 2) * (1 - here.kv_share)
    return [
        text(0, 13, f"weights {here.weight_bytes / 1e6:,.1f} MB"),
        text(width, 13, f"cache {here.kv_bytes / 1e6:,.1f} MB, {here.kv_share:.1%}", "end"),
        rect(1, 20, split, 20, "weights", fill=BLUE),
        rect(1 + split, 20, full - split, 20, "keys and values", fill=ORANGE),
    ]


def _chart(
    config: Config, here: KVScaling, gpu: GPU, speeds: Mapping[int, float], width: int, top: float
) -> list[str]:
    left, bottom, right = 52, 340.0, width - 12
    positions = [config.context * i // 96 for i in range(97)]
    ceiling = {
        p: kv_scaling(config, p, gpu, here.kv_dtype).floor.tokens_per_second for p in positions
    }
    every = [*ceiling.values(), *speeds.values()]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))

    def x(position: float) -> float:
        return left + position / config.context * (right - left)

    def y(rate: float) -> float:
        return bottom - (math.log10(rate) - low) / (high - low) * (bottom - top)

    parts = [text(0, top - 14, "tok/s", size=11)]
    for power in range(low, high + 1):
        at, words = y(10.0**power), f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"
        parts += [line(left, at, right, at), text(left - 6, at + 4, words, "end", 11)]
    for quarter in range(5):
        at = config.context * quarter // 4
        anchor = "middle" if 0 < quarter < 4 else ("start" if quarter == 0 else "end")
        if width > NARROW or quarter % 2 == 0:
            parts.append(text(x(at), bottom + 18, f"{at:,}", anchor, 11))
    parts.append(text((left + right) / 2, bottom + 38, "position", "middle", 11))
    parts.append(polyline([(x(p), y(r)) for p, r in ceiling.items()], stroke=BLUE, stroke_width=2))
    parts.append(
        text(right, y(ceiling[positions[-1]]) - 8, f"ceiling, {gpu.name}", "end", fill=BLUE)
    )
    parts.append(
        line(x(here.position), top, x(here.position), bottom, stroke=INK, stroke_dasharray="4 3")
    )
    parts.append(
        tag("circle", cx=x(here.position), cy=y(here.floor.tokens_per_second), r=5.0, fill=BLUE)
    )
    for at, rate in speeds.items():
        inner = tag("title", f"position {at:,}: {rate:,.1f} tok/s")
        # A square, so that who sees no colours tells it from the ceiling's dot.
        parts.append(
            tag("rect", inner, x=x(at) - 4.5, y=y(rate) - 4.5, width=9, height=9, fill=ORANGE)
        )
    if speeds:
        last = max(speeds)
        aside = x(last) + 80 < right
        where = (x(last) + 10, y(speeds[last]) + 4) if aside else (x(last), y(speeds[last]) + 22)
        parts.append(text(*where, "recorded", "start" if aside else "end", fill=ORANGE))
    parts.append(line(left, bottom, right, bottom, stroke=FAINT))
    return parts


# ---- the explorer ----


def explore_kv_scaling(model: Model | Config | str | None = None) -> Explorer:
    """Sliders for the position and the phase, choices of GPU and of the cache's type.

    `model`: a model, a shape, or a name of the catalog; without one, the shape whose ladder was recorded on an H200,
    of which no weights are needed. Raises LabError for an unknown name.
    """
    if isinstance(model, Model):
        config = model.config
    else:
        config = model if isinstance(model, Config) else config_of(model or RECORDED_MODEL)
    run: LadderRun | None = recorded_ladder()
    if run is not None and run.model.replace(":", "-") != config.name.replace(":", "-"):
        run = None
    phases = [p for p in PHASES.timed() if run and recorded_speeds(run, p)]
    controls: list[Control] = [
        Slider("position", "Position", 1, config.context),
        Choice("gpu", "GPU of the floor", [(g.name, f"{g.name}, {g.bandwidth:,.0f} GB/s") for g in GPUS]),
        Choice("kv_dtype", "Cache in", [(k, k) for k in KV_BYTES]),
    ]  # fmt: skip
    if phases:
        labels = [(p, f"{p}: {PHASES[p].title}") for p in phases]
        controls.append(Choice("phase", "Recorded phase", labels, steps=True))
    gpus = {gpu.name: gpu for gpu in GPUS}

    def draw(values: Values, width: int) -> Drawing:
        return draw_kv_scaling(
            config, values["position"], gpus[values["gpu"]], values["kv_dtype"], run, values.get("phase", ""), width
        )  # fmt: skip

    start = {"position": min(1024, config.context), "gpu": "H200", "kv_dtype": "fp16"}
    return Explorer(
        Exploration(
            name="kv-scaling",
            title=f"What a longer context costs {config.name}",
            start=start | ({"phase": phases[-1]} if phases else {}),
            controls=lambda values: controls,
            draw=draw,
        )
    )
