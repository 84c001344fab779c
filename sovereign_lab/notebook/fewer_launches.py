"""What a token is launched in, phase by phase, and what two fused steps ask memory for, against their parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sovereign_lab.engine import Engine
from sovereign_lab.engine.forward import Call
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.decode.facts import BASE, DecodeRun
from sovereign_lab.measure.memory_trace import SECTOR_BYTES, Trace, trace
from sovereign_lab.models import reference
from sovereign_lab.models.model import Config
from sovereign_lab.models.tiles import tile_q4_0
from sovereign_lab.notebook.array_traffic import array_traffic
from sovereign_lab.notebook.decode_times import NOT_YET, without_graphs
from sovereign_lab.notebook.launches import count_launches
from sovereign_lab.notebook.plots import BLUE, FAINT, TEXT, styled
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.notebook.table import Table

FLOAT = 4
# How many launches of a layer at phase 10 each launch at phase 11 stands for.
SPANS = {"norm_qkv": 3, "attention": 1, "gemv_add": 2, "norm_ffn": 2}


# ---- launches a token ----


@dataclass(frozen=True)
class Launches:
    """Launches of a token: in each layer, and around the layers."""

    layer: int
    rest: int

    def of(self, layers: int) -> int:
        """Of a model with so many layers."""
        return self.layer * layers + self.rest


def launches(calls: Sequence[Call], config: Config) -> Launches:
    """Of a forward pass of a model with `config.layers` layers, of which all have the same launches."""
    parts = [divmod(count, config.layers) for count in count_launches(calls).values()]
    return Launches(sum(layer for layer, _ in parts), sum(rest for _, rest in parts))


def launches_table(engines: Mapping[str, Engine]) -> Table:
    """By phase: launches a layer and around them, for the engines' model, and for TinyLlama's 22 layers."""
    config = next(iter(engines.values())).model.config
    rows = []
    for phase, engine in engines.items():
        found = launches(engine.decode_calls, config)
        totals = (found.of(config.layers), found.of(TINYLLAMA.layers))
        rows.append([f"phase {phase}", str(found.layer), str(found.rest), *map(str, totals)])
    names = [f"{name}, {layers} layers" for name, layers in (
        (config.name, config.layers), (TINYLLAMA.name, TINYLLAMA.layers)
    )]  # fmt: skip
    return Table(["", "a layer", "around the layers", *names], rows)


def layer_ops(engine: Engine) -> list[str]:
    """The ops of one layer, in order: the first layer's, behind the embedding."""
    config = engine.model.config
    layer = launches(engine.decode_calls, config).layer
    return [call.op for call in engine.decode_calls[1 : 1 + layer]]


def layer_picture(before: Engine, after: Engine) -> go.Figure:
    """A layer's launches at two phases, one above the other; a box is as wide as the launches it stands for."""
    figure = go.Figure()
    for level, engine in enumerate((after, before)):
        x = 0.0
        for name in layer_ops(engine):
            span = SPANS[name] if engine is after else 1
            fused = span > 1
            figure.add_shape(
                type="rect", x0=x + 0.04, x1=x + span - 0.04, y0=level + 0.1, y1=level + 0.9,
                fillcolor=BLUE if fused else FAINT, line_width=0,
            )  # fmt: skip
            figure.add_annotation(
                x=x + span / 2, y=level + 0.5, text=name.replace("_", "<br>", 1), showarrow=False,
                font={"size": 10, "color": "#FFFFFF" if fused else TEXT},
            )  # fmt: skip
            x += span
        figure.add_annotation(
            x=-0.1, y=level + 0.5, text=f"phase {engine.phase.id}", showarrow=False, xanchor="right"
        )
    colours = [(a.font.size, a.font.color) for a in figure.layout.annotations]
    styled(figure, "The launches of one layer, left to right", height=220)
    for annotation, (size, colour) in zip(figure.layout.annotations, colours, strict=True):
        annotation.font.color = colour or TEXT
        annotation.font.size = size or 12
    figure.update_xaxes(visible=False, range=[-1.2, len(layer_ops(before)) + 0.1])
    figure.update_yaxes(visible=False, range=[0, 2])
    return figure.update_layout(margin={"l": 10, "r": 10, "b": 10})


# ---- the norm behind the product ----


def norm_behind() -> tuple[float, int, int]:
    """For random W, x and norm: the largest relative difference that the norm's factor makes in front of the product
    and behind it, and how many of so many int8 levels differ."""
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((512, 2048)), 3 * rng.standard_normal(2048)
    weight = 1 + 0.2 * rng.standard_normal(2048)
    rms = np.sqrt((x * x).mean() + 1e-5)
    front, behind = w @ (x / rms * weight), (w @ (x * weight)) / rms
    difference = float(np.abs(front - behind).max() / np.abs(front).max())
    levels = [_levels(h.astype(np.float32)) for h in (x / rms * weight, x * weight)]
    return difference, int((levels[0] != levels[1]).sum()), levels[0].size


def _levels(x: np.ndarray) -> np.ndarray:
    """The int8 level of each activation: reference.int8 without its scale."""
    scale = np.repeat(np.abs(x.reshape(-1, 32)).max(axis=1) / np.float32(127), 32)
    return np.rint(reference.int8(x) / scale).astype(int)


# ---- two steps, in parts and fused, traced at TinyLlama's shape ----


def _random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _steps(config: Config) -> dict[str, dict[str, tuple[str, str, dict[str, Any]]]]:
    """Step -> launch -> op, variant and arguments; the fused launch is the last of its step."""
    rng = np.random.default_rng(0)
    c, blocks = config, config.dim // 32
    rows = c.q_dim + 2 * c.kv_dim
    tiles, w_o = (tile_q4_0(rng.integers(0, 60, (n, blocks * 18), np.uint8)) for n in (rows, c.dim))
    x, norm, normed = (_random(rng, c.dim) for _ in range(3))
    q, k = _random(rng, c.heads, c.head_dim), _random(rng, c.kv_heads, c.head_dim)
    keys, values = (np.zeros((4, c.kv_heads, c.head_dim), np.float16) for _ in range(2))
    inv_freq, position = _random(rng, c.rope_dim // 2), np.array([2], np.int32)
    shape = dict(heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, rope_dim=c.rope_dim)
    eps = np.float32(c.eps)
    return {
        "x to q, k, v": {
            "norm": ("rmsnorm", "block", dict(x=x, weight=norm, y=normed, dim=c.dim, eps=eps)),
            "product": ("gemv_tiles", "columns", dict(
                W=tiles, x=normed, y=_random(rng, rows), rows=rows, blocks_per_row=blocks
            )),
            "RoPE, cache": ("rope_kv", "fixed", dict(
                q=q, k=k, v=k, keys=keys, values=values, inv_freq=inv_freq, position=position, **shape
            )),
            "fused": ("norm_qkv", "fused", dict(
                W=tiles, x=x, norm=norm, inv_freq=inv_freq, position=position, q=q, keys=keys, values=values,
                **shape, blocks_per_row=blocks, eps=eps,
            )),
        },
        "O and the residual": {
            "product": ("gemv_tiles", "columns", dict(
                W=w_o, x=normed, y=_random(rng, c.dim), rows=c.dim, blocks_per_row=blocks
            )),
            "add": ("add", "elementwise", dict(x=x, y=normed, n=c.dim)),
            "fused": ("gemv_add", "fused", dict(
                W=w_o, y=normed, x=x, rows=c.dim, blocks_per_row=blocks
            )),
        },
    }  # fmt: skip


def traces(config: Config = TINYLLAMA) -> dict[str, dict[str, Trace]]:
    """Step -> launch -> its exact traffic."""
    return {
        step: {name: _traced(*launch) for name, launch in parts.items()}
        for step, parts in _steps(config).items()
    }


def _traced(op_name: str, variant_name: str, args: Mapping[str, Any]) -> Trace:
    chosen = op(op_name)
    variant = chosen.variant(variant_name)
    return trace(
        variant.path, chosen.grid(variant, args), variant.threads, args,
        defines={"KV": "__half"}, shared_bytes=variant.shared_bytes(args),
    )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What launches ask for, summed: W's sectors, those of all else, stored sectors, and distinct bytes besides W."""

    launches: int
    w_sectors: int
    other_sectors: int
    stored_sectors: int
    distinct_bytes: int

    @classmethod
    def of(cls, found: Sequence[Trace]) -> "Step":
        """The sums over some launches."""
        loads = [array_traffic(t) for t in found]
        stores = [array_traffic(t, "store") for t in found]
        return cls(
            len(found),
            sum(a["W"].sectors for a in loads if "W" in a),
            sum(t.sectors for a in loads for name, t in a.items() if name != "W"),
            sum(t.sectors for a in stores for t in a.values()),
            sum(SECTOR_BYTES * t.distinct for a in (*loads, *stores) for n, t in a.items() if n != "W"),
        )  # fmt: skip


def steps(found: Mapping[str, Mapping[str, Trace]]) -> dict[str, tuple[Step, Step]]:
    """Step -> its parts together, and fused."""
    return {
        step: (
            Step.of([t for name, t in parts.items() if name != "fused"]),
            Step.of([parts["fused"]]),
        )
        for step, parts in found.items()
    }


def steps_table(found: Mapping[str, tuple[Step, Step]]) -> Table:
    """By step: its parts together, and fused."""
    rows = []
    for name, both in found.items():
        for how, s in zip(("in parts", "fused"), both, strict=True):
            numbers = (s.launches, s.w_sectors, s.other_sectors, s.stored_sectors, s.distinct_bytes)
            rows.append([f"{name}, {how}", *(f"{n:,}" for n in numbers)])
    head = [
        "TinyLlama's shape, one layer", "launches", "sectors of W", "sectors loaded besides",
        "sectors stored", "distinct bytes besides W",
    ]  # fmt: skip
    return Table(head, rows)


def norms_read_again(config: Config = TINYLLAMA) -> tuple[int, int]:
    """Blocks of a token that norm x for themselves at phase 11, and the bytes of norm weights that they ask for."""
    c = config
    rows = {"norm_qkv": c.q_dim + 2 * c.kv_dim, "norm_ffn": c.ffn_dim, "norm_logits": c.vocab}
    blocks = {name: -(-n // _rows_a_block(name)) for name, n in rows.items()}
    count = c.layers * (blocks["norm_qkv"] + blocks["norm_ffn"]) + blocks["norm_logits"]
    return count, count * c.dim * FLOAT


def _rows_a_block(op_name: str) -> int:
    rows = op(op_name).variant("fused").rows_per_block
    assert rows is not None
    return rows


# ---- recorded ----


def a_launch_saved(
    run: DecodeRun | None, before: tuple[str, int], after: tuple[str, int], context: int = BASE
) -> str:
    """A sentence: what a phase saves of a token over the launches that it saves; each phase with its launches."""
    (first, many), (second, few) = before, after
    if run is None or run.find(first, context) is None or run.find(second, context) is None:
        return f"phases {first} and {second}: {NOT_YET}"
    saved = run.us(first, context) - run.us(second, context)
    return (
        f"phase {first} to {second}, context {context:,}: {saved:,.1f} us and {many - few} launches fewer, "
        f"{saved / (many - few):.2f} us each"
    )


def a_launch_from_python(
    run: DecodeRun | None, phase: str, launches: int, context: int = BASE
) -> str:
    """A sentence: what a launch costs when it comes from Python and not from a recorded graph."""
    alone = without_graphs(phase)
    if run is None or run.find(phase, context) is None or run.find(alone, context) is None:
        return f"phase {phase} with a graph and without: {NOT_YET}"
    in_graph, one_by_one = run.us(phase, context), run.us(alone, context)
    return (
        f"phase {phase}, context {context:,}: {in_graph:,.1f} us as one graph, {one_by_one:,.1f} us launched from "
        f"Python, {(one_by_one - in_graph) / launches:.2f} us more for each of {launches} launches"
    )
