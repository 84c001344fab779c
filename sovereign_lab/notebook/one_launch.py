"""Chapters 21 and 22: what the recorded run says of phases 12 and 13, every attempt at them, and what one launch holds.

The runs come from an H200. A view of a run that is not there yet says so in place of its figures.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from sovereign_lab.devices import Properties
from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.persistent_op import STATIC_BYTES, shared_beside_ring
from sovereign_lab.kernels.registry import op
from sovereign_lab.kernels.tile_ops import SPLIT
from sovereign_lab.measure.decode.facts import BASE, DecodeRun, Stages
from sovereign_lab.models.model import Config
from sovereign_lab.models.tiles import Q4_0_PAIR, Q8_0_PAIR, TILE_ROWS, pairs
from sovereign_lab.notebook import decode_board, decode_plots
from sovereign_lab.notebook.decode_times import NOT_YET, origin
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.plots import BLUE, VERMILLION, styled
from sovereign_lab.notebook.predict import judge
from sovereign_lab.notebook.runs import NO_FIGURE, here
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA
from sovereign_lab.notebook.table import Table

ATTEMPTS = "2026-12-01-sm_90-persistent-attempts"

# ---- along the context ----


def added(run: DecodeRun | None, names: Sequence[str]) -> Table:
    """What a longer context adds to a token over context BASE, us; an engine a row."""
    if run is None:
        return Table(["us a token"], [[NOT_YET]])
    late = [context for context in run.contexts if context > BASE]
    rows = []
    for name in names:
        found = [run.added(name, context) for context in late]
        rows.append([f"phase {name}", *(NO_FIGURE if us is None else f"{us:+,.0f} us" for us in found)])  # fmt: skip
    return Table(["", *(f"{context:,} adds to {BASE}" for context in late)], rows)


def us_or_none(run: DecodeRun | None, name: str, context: int) -> float | None:
    """Microseconds a token; None where they are not recorded."""
    return None if run is None or run.find(name, context) is None else run.us(name, context)


def added_or_none(run: DecodeRun | None, name: str, context: int) -> float | None:
    """Microseconds above those at BASE; None where they are not recorded."""
    return None if run is None else run.added(name, context)


def bytes_line(run: DecodeRun | None, name: str, context: int) -> str:
    """A sentence: the bytes of a token, their time at the GPU's bandwidth, and how many times that a token takes."""
    us = us_or_none(run, name, context)
    if run is None or us is None:
        return f"phase {name}: {NOT_YET}"
    least = run.floor_us(name, context)
    assert least is not None
    return (
        f"phase {name}, context {context:,}: {run.nbytes(name, context) / 1e6:,.0f} MB a token take {least:,.0f} us at "
        f"the GPU's bandwidth; measured {us:,.0f} us, {us / least:.1f} times that"
    )


# ---- the stages ----


def stamped(run: DecodeRun | None, block: int, context: int = BASE) -> Stages | None:
    """The stages that a block stamped; None where they are not recorded."""
    stages = run.stages if run else ()
    return next((s for s in stages if (s.block, s.context) == (block, context)), None)


def stage_picture(run: DecodeRun | None, block: int, context: int = BASE) -> go.Figure | Table:
    """The stages of the median layer as one block passed them."""
    found = stamped(run, block, context)
    if found is None:
        return Table(["stages of a layer"], [[NOT_YET]])
    title = f"Phase {found.name}, block {block}: a layer at context {context:,} ({origin(run)})"
    return decode_plots.layer_stages(found, title)


def stage_table(run: DecodeRun | None) -> Table:
    """Every stage, us in the median layer, by context; then a whole layer, the head, the best token, and a token."""
    if run is None or not run.stages:
        return Table(["stages of a layer"], [[NOT_YET]])
    found = sorted(run.stages, key=lambda s: s.context)
    rows = [[stage, *(f"{s.median(stage):.2f} us" for s in found)] for stage in found[0].us]
    rows += [
        ["a layer, the mean", *(f"{s.layer_us:.2f} us" for s in found)],
        ["the head", *(f"{s.head_us:.2f} us" for s in found)],
        ["the best token", *(f"{s.best_us:.2f} us" for s in found)],
        ["all stages of a token", *(f"{s.token_us:.1f} us" for s in found)],
    ]
    return Table(
        ["", *(f"block {s.block}, context {s.context:,}" for s in found)],
        rows,
    )


def kinds_table(run: DecodeRun | None) -> Table:
    """What a token's time goes into, by kind of stage."""
    if run is None or not run.stages:
        return Table(["of a token"], [[NOT_YET]])
    return decode_board.kinds_table(run)


def multiplying_share(run: DecodeRun | None, block: int = 5) -> float | None:
    """The share of a layer at BASE in which a block multiplies; None where it is not recorded."""
    found = stamped(run, block)
    if found is None:
        return None
    return decode_board.by_kind(found)["multiplying"] / sum(map(sum, found.us.values()))


# ---- the attempts ----


@dataclass(frozen=True)
class Attempt:
    """One attempt at the persistent kernel: what was expected, what came, and what was learnt."""

    attempt: str
    what: str
    prediction: str
    us_per_token: float | None
    context: int | None
    what_was_learnt: str


def recorded_attempts() -> tuple[Attempt, ...]:
    """All attempts as the lab's log has them, in order; none where it is not there yet."""
    try:
        content = json.loads(in_checkout(f"data/runs/{ATTEMPTS}.json").read_text())
    except LabError:
        return ()
    return tuple(
        Attempt(
            str(a["attempt"]),
            a["what"],
            a["prediction"],
            a["us_per_token"],
            a["context"],
            a["what_was_learnt"],
        )
        for a in content["attempts"]
    )


def attempts_table(attempts: Sequence[Attempt]) -> Table:
    """The attempts one by one."""
    if not attempts:
        return Table(["attempts"], [[NOT_YET]])
    rows = [
        [
            a.attempt,
            a.what,
            a.prediction,
            NO_FIGURE if a.us_per_token is None else f"{a.us_per_token:,.0f} us",
            "" if a.context is None else f"{a.context:,}",
            a.what_was_learnt,
        ]
        for a in attempts
    ]
    return Table(["", "attempt", "prediction", "a token", "context", "what was learnt"], rows)


def attempts_picture(attempts: Sequence[Attempt]) -> go.Figure | Table:
    """Microseconds a token at context 128 by attempt; in another colour, those that are worse than the best so far."""
    timed = [
        (a, a.us_per_token) for a in attempts if a.us_per_token is not None and a.context == BASE
    ]
    if not timed:
        return Table(["attempts"], [[NOT_YET]])
    best, colours = float("inf"), []
    for _, us in timed:
        colours.append(BLUE if us < best else VERMILLION)
        best = min(best, us)
    figure = go.Figure(
        go.Bar(
            x=[a.attempt for a, _ in timed], y=[us for _, us in timed], marker_color=colours,
            text=[f"{us:,.0f}" for _, us in timed], textposition="outside", cliponaxis=False,
            customdata=[a.what for a, _ in timed],
            hovertemplate="%{customdata}: %{y:,.0f} us a token<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(type="category", title_text="attempt", showgrid=False)  # fmt: skip
    figure.update_yaxes(
        title_text="us a token", range=[0, 1.12 * max(us for _, us in timed)], tickformat=","
    )
    title = (
        f"One launch, attempt after attempt, context {BASE} (orange: not better than one before)"
    )
    return styled(figure, title, height=380).update_layout(showlegend=False)


# ---- what one launch holds, by arithmetic ----


def barriers_a_token(layers: int, splits: int = 1) -> int:
    """Barriers of the grid that persistent:grid_barriers passes for a token: counted in its source."""
    text = op("persistent").variant("grid_barriers").source
    body = text[text.index("for (int layer = 0;") :]
    layer, rest = body.split("// the head", 1)
    several = layer.count("if (splits > 1) grid.sync();")
    plain = layer.count("grid.sync();") - several
    return layers * (plain + (several if splits > 1 else 0)) + rest.count("grid.sync();")


def said_words(c: Config = TINYLLAMA, splits: int = 1) -> dict[str, int]:
    """Words of 32 bits that all blocks together say in a layer, by what they are."""
    found = {"queries, keys, values (halves)": (c.q_dim + 2 * c.kv_dim) // 2}
    if splits > 1:
        found["parts of attention (halves), and their softmax"] = (
            splits * c.q_dim // 2 + splits * c.heads * 2
        )
    found |= {
        "what attention gives (halves)": c.q_dim // 2,
        "the residual stream behind O": c.dim,
        "hidden": c.ffn_dim,
        "the residual stream behind down": c.dim,
    }
    return found


def words_table(c: Config = TINYLLAMA, blocks: int = 132) -> Table:
    """Messages of a layer: what is said, and what is heard where every block takes a whole vector."""
    rows, said, heard = [], 0, 0
    for what, words in said_words(c).items():
        some = what.startswith("queries")
        by = "the blocks that attend" if some else f"all {blocks} blocks"
        rows.append([what, f"{words:,}", by, "" if some else f"{words * 4 * blocks / 1e6:.2f} MB"])
        said += words
        heard += 0 if some else words * 4 * blocks
    rows.append(["all", f"{said:,}", "", f"{heard / 1e6:.2f} MB"])
    return Table(["said in a layer", "words", "heard by", "bytes heard"], rows)


def launches_table(launches: Mapping[str, tuple[int, int]]) -> Table:
    """Phase -> (launches, tokens that they make)."""
    rows = [
        [f"phase {phase}", PHASES[phase].title, f"{count}", f"{tokens}", f"{count / tokens:g}"]
        for phase, (count, tokens) in launches.items()
    ]
    return Table(["", "", "launches", "make tokens", "launches a token"], rows)


@dataclass(frozen=True)
class Share:
    """A matrix of the model, or one of a layer: bytes of a tile of four rows, tiles, and the most that a block has."""

    name: str
    tile_bytes: int
    tiles: int
    most: int


def shares(c: Config = TINYLLAMA, blocks: int = 132) -> list[Share]:
    """What a block owns of each of a layer's matrices, and of the head."""
    shapes = {
        "QKV": (c.q_dim + 2 * c.kv_dim, c.dim, Q4_0_PAIR),
        "O": (c.dim, c.q_dim, Q4_0_PAIR),
        "gate, up": (2 * c.ffn_dim, c.dim, Q4_0_PAIR),
        "down": (c.dim, c.ffn_dim, Q4_0_PAIR),
        "head": (c.vocab, c.dim, Q8_0_PAIR),
    }
    found = []
    for name, (rows, cols, pair_words) in shapes.items():
        tiles = -(-rows // TILE_ROWS)
        found.append(Share(name, pairs(cols) * pair_words * 4, tiles, -(-tiles // blocks)))
    return found


def ring_bytes(shared: int, c: Config = TINYLLAMA, blocks: int = 132) -> int:
    """Shared memory of a block that is left for weights on their way, as engine/persistent.py has it."""
    beside = shared_beside_ring(c.dim, c.ffn_dim, c.heads, c.head_dim, blocks)
    return (shared - STATIC_BYTES - beside) // 16 * 16


def shares_table(shared: int = 227 * 1024, c: Config = TINYLLAMA, blocks: int = 132) -> Table:
    """What a block fetches for a layer and for the head, against the room it has."""
    rows = []
    for s in shares(c, blocks):
        mean = s.tiles / blocks
        rows.append(
            [
                s.name,
                f"{s.tile_bytes:,}",
                f"{s.tiles:,}",
                f"{mean:.1f}, at most {s.most}",
                f"{mean * s.tile_bytes / 1e3:.1f} KB",
            ]
        )
    layer = sum(s.tiles * s.tile_bytes for s in shares(c, blocks)[:-1]) / blocks
    rows.append(["a layer", "", "", "", f"{layer / 1e3:.1f} KB"])
    rows.append(["room in its ring", "", "", "", f"{ring_bytes(shared, c, blocks) / 1e3:.1f} KB"])
    return Table(["matrix", "bytes a tile", "tiles", "a block has", "bytes a block"], rows)


def splits_of(context: int) -> int:
    """Splits of a context."""
    return -(-context // SPLIT)


# ---- predictions and columns ----


def judged(predicted: Mapping[str, float | None], found: Mapping[str, float | None]) -> Table:
    """`judge`, where a question whose answer is not recorded yet says so."""
    known = {name: value for name, value in found.items() if value is not None}
    table = judge({n: p for n, p in predicted.items() if n in known}, known)
    rest = [[n, "", "", NOT_YET] for n in predicted if n not in known]
    return Table(table.head, [*table.rows, *rest])


def columns(
    run: DecodeRun | None,
    phases: Sequence[str],
    measured: Sequence[float],
    model: str,
    device: Properties,
) -> Table:
    """Phases on the seed's GPU, in the recorded run at context 128, and here; `measured` is tok/s of `model`."""
    rows = [["model", TINYLLAMA.name, run.model if run else NOT_YET, model]]
    for phase, mine in zip(phases, measured, strict=True):
        theirs, us = PHASES[phase].seed_tokens_per_second, us_or_none(run, phase, BASE)
        rows.append(
            [
                f"phase {phase}",
                f"{theirs:.2f} tok/s" if theirs else NO_FIGURE,
                f"{1e6 / us:,.0f} tok/s" if us else NOT_YET,
                f"{mine:.2f} tok/s",
            ]
        )
    head = [
        "",
        f"{GPU_NAME}, the seed's log",
        f"{origin(run)}, context {BASE}" if run else NOT_YET,
        here(device),
    ]
    return Table(head, rows)
