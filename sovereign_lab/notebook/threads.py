"""Which threads of a block do anything: counted from a trace, thread by thread."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sovereign_lab.devices.device import WARP
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.measure.memory_trace import Trace, trace
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.notebook.attention_counts import MARK
from sovereign_lab.notebook.plots import BLUE, FAINT, styled
from sovereign_lab.notebook.table import Table


def traced_gemv(
    variant: Variant, rows: int, blocks_per_row: int, source: str | None = None
) -> Trace:
    """One launch of a Q4_0 GEMV on made-up weights [rows, blocks_per_row * 32], with every access kept.

    `source` in place of the variant's own, at the same launch geometry.
    """
    rng = np.random.default_rng(0)
    args: dict[str, Any] = {
        "W": rng.integers(0, 60, (rows, blocks_per_row * BLOCK_BYTES), np.uint8),
        "x": rng.standard_normal(blocks_per_row * BLOCK_WEIGHTS, np.float32),
        "y": np.zeros(rows, np.float32),
        "rows": rows,
        "blocks_per_row": blocks_per_row,
    }
    grid = op("gemv_q4_0").grid(variant, args)
    if source is None:
        return trace(variant.path, grid, variant.threads, args)
    return trace(source, grid, variant.threads, args, name="yours.cu")


def loads_by_thread(traced: Trace, threads: int, block: int = 0) -> np.ndarray:
    """How many loads from global memory each thread of one block makes: int64 [threads]."""
    events = traced.events
    mine = events[(events["block"] == block) & (events["store"] == 0) & (events["shared"] == 0)]
    return np.bincount(mine["thread"], minlength=threads)


def barriers_by_thread(source: str, launch: Variant) -> np.ndarray:
    """How many barriers each thread of a block comes to in a Q4_0 GEMV of one row: int64 [launch.threads].

    Each `__syncthreads` of a copy of the source gets a store to shared memory before it, and the stores are counted.
    """
    stores = []
    for text in (source, MARK + source):
        events = traced_gemv(launch, 1, 64, text).events
        mine = events[(events["store"] == 1) & (events["shared"] == 1)]
        stores.append(np.bincount(mine["thread"], minlength=launch.threads))
    return stores[1] - stores[0]


def meetings(traced: Trace) -> int:
    """How often a thread met others, at a barrier or in a shuffle, before the last access of the launch."""
    return int(traced.events["epoch"].max())


def row_table(rows: int, traces: Mapping[str, Trace], threads_a_row: Mapping[str, int]) -> Table:
    """What one row of `y = W x` costs, by variant: threads, requests, sectors, meetings. All counts are exact."""
    lines: dict[str, list[str]] = {}
    for name, t in traces.items():
        threads = t.events[(t.events["store"] == 0) & (t.events["shared"] == 0)]
        busy = len(np.unique(threads[["block", "thread"]]))
        shared = sum(line.requests for line in t.lines if line.space == "shared")
        barriers = "__syncthreads();" in t.source
        for what, value in (
            ("threads", threads_a_row[name]),
            ("threads that load anything", busy / rows),
            ("load requests", t.requests("load") / rows),
            ("sectors of these", t.sectors("load") / rows),
            ("requests to shared memory", shared / rows),
            ("barriers of the block", meetings(t) if barriers else 0),
            ("shuffles of the warp", 0 if barriers else meetings(t)),
        ):
            lines.setdefault(what, []).append(f"{value:,g}")
    return Table(["a row", *traces], [[what, *values] for what, values in lines.items()])


def thread_map(loads: Mapping[str, np.ndarray], title: str) -> go.Figure:
    """The threads of a block as a field, a line a warp: filled where a thread loads anything from global memory.

    `loads`: label -> loads by thread, of `loads_by_thread`; drawn side by side. The label gets the count.
    """
    labels = [
        f"{name}<br>{np.count_nonzero(counts)} of {len(counts)} threads load"
        for name, counts in loads.items()
    ]
    figure = make_subplots(cols=len(loads), subplot_titles=labels, horizontal_spacing=0.06)
    most_warps = max(len(counts) for counts in loads.values()) // WARP
    for col, counts in enumerate(loads.values(), 1):
        warps = len(counts) // WARP
        field = counts.reshape(warps, WARP)
        figure.add_heatmap(
            z=(field > 0).astype(int).tolist(), zmin=0, zmax=1, showscale=False, xgap=1, ygap=2,
            colorscale=[[0, FAINT], [1, BLUE]], hoverinfo="text",
            text=[
                [f"warp {w}, lane {lane}: {field[w, lane]} loads" for lane in range(WARP)]
                for w in range(warps)
            ], row=1, col=col,
        )  # fmt: skip
        figure.update_xaxes(
            title_text="lane", tickvals=[0, 8, 16, 24, 31], showgrid=False, zeroline=False,
            row=1, col=col,
        )  # fmt: skip
        figure.update_yaxes(
            title_text="warp" if col == 1 else None, range=[most_warps - 0.5, -0.5], dtick=1,
            showgrid=False, zeroline=False, row=1, col=col,
        )  # fmt: skip
    figure = styled(figure, title, height=170 + 22 * most_warps)
    return figure.update_layout(margin={"t": 105})


def busy_table(rows: Mapping[str, int], before: Variant, after: Variant) -> Table:
    """For rows of so many Q4_0 blocks: how many of a row's threads load anything, and the lanes of their requests.

    `before` gives a row a block of threads, `after` a warp.
    """
    lines = []
    for name, blocks_per_row in rows.items():
        cells = [name, str(blocks_per_row)]
        for variant, threads in ((before, before.threads), (after, WARP)):
            traced = traced_gemv(variant, 1, blocks_per_row)
            busy = np.count_nonzero(loads_by_thread(traced, variant.threads))
            lanes = traced.events[(traced.events["store"] == 0) & (traced.events["shared"] == 0)]
            cells += [f"{busy} of {threads}", f"{1 - busy / threads:.0%}"]
        cells.append(f"{len(lanes) / traced.requests('load'):.1f}")
        lines.append(cells)
    head = ["a row of", "blocks", "before: threads that load", "idle", "after: threads that load"]
    return Table([*head, "idle", "lanes a request"], lines)


def adders_by_step(traced: Trace, threads: int) -> np.ndarray:
    """Which threads of the first block store to shared memory between one meeting and the next: bool [steps, threads].

    In a reduction through shared memory, a step is what happens between two barriers.
    """
    events = traced.events
    mine = events[(events["block"] == 0) & (events["shared"] == 1) & (events["store"] == 1)]
    field = np.zeros((int(mine["epoch"].max(initial=0)) + 1, threads), bool)
    field[mine["epoch"], mine["thread"]] = True
    return field


def step_map(stores: np.ndarray, title: str) -> go.Figure:
    """The steps of a reduction, of `adders_by_step`, one line each: filled where a thread stores a sum."""
    steps, threads = stores.shape
    counts = stores.sum(axis=1)
    labels = [f"step {i}: {count} store" for i, count in enumerate(counts)]
    figure = go.Figure(
        go.Heatmap(
            z=stores.astype(int).tolist(), y=labels, zmin=0, zmax=1, showscale=False, ygap=3,
            colorscale=[[0, FAINT], [1, BLUE]], hovertemplate="thread %{x}, %{y}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(
        title_text="thread", tickvals=[*range(0, threads, 32), threads - 1], showgrid=False,
        zeroline=False,
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    figure = styled(figure, title, height=140 + 24 * steps)
    return figure.update_layout(margin={"l": 130})
