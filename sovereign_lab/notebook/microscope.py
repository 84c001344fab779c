"""A kernel under the microscope: its source with what each line does to memory beside it, on any machine.

`inspect_kernel` is what a learner calls and `sovereign-lab trace` prints. Every count is exact by address; where only
a sample of the blocks was run, each form of the result says so.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from sovereign_lab.devices.signature import parse_signature
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import Variant, find_kernel
from sovereign_lab.measure.memory_trace import SECTOR_BYTES, LineFlow, LineTraffic, Trace, trace
from sovereign_lab.measure.workload import DEFINES, Arguments, config_of, workload
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.notebook.warp_picture import WarpPicture, warp_picture

# Launches beyond so many elements of their arrays are sampled, which keeps a trace at a second or two.
MOST_ELEMENTS = 1_000_000
LEAST_BLOCKS = 8
WITHOUT_BLOCKS = (
    "this compiler (gcc before 12) does not say which branch a lane takes, so branches are not counted, and lanes "
    "that skip an iteration of a loop are counted an iteration early"
)
BAR_CELLS = 6


@dataclass(frozen=True)
class Row:
    """One row beside the source: what a line does in one way; `code` only in a line's first row.

    `what`: "load", "shared store", "barrier", ... `count`: requests, or how often warps came by. `cost` against
    `ideal`: sectors (global memory) or wavefronts (shared) a request. `share`: of all sectors of the launch. None or ""
    where a figure has no meaning.
    """

    line: int
    code: str
    what: str = ""
    count: int | None = None
    cost: float | None = None
    ideal: float | None = None
    lanes: float | None = None
    wanted: int | None = None
    moved: int | None = None
    share: float | None = None
    note: str = ""

    @property
    def excess(self) -> float:
        """How many times the ideal the cost is; 1 where there is none."""
        return self.cost / self.ideal if self.cost and self.ideal else 1.0

    @property
    def per_request(self) -> str:
        """ "17.25 of 16": what a request costs, and what it would cost at best."""
        return "" if self.cost is None else f"{_short(self.cost)} of {_short(self.ideal or 0)}"


@dataclass(frozen=True)
class Inspection:
    """A kernel's trace at the size of a model: annotated source in Jupyter, in a terminal and as text."""

    kernel: str
    model: str
    grid: int
    threads: int
    trace: Trace = field(repr=False)

    @property
    def heading(self) -> str:
        """What was run, and what the counts are of."""
        return (
            f"{self.kernel} at the size of {self.model}: {self.grid:,} blocks of {self.threads} threads; "
            f"counts of {self.trace.scope}, exact by address"
            + ("" if self.trace.by_blocks else f"; {WITHOUT_BLOCKS}")
        )

    @property
    def rows(self) -> list[Row]:
        """The source, leading comments left out, with what its lines do."""
        return list(_rows(self.trace))

    @cached_property
    def totals(self) -> dict[str, int | float]:
        """Sums over the launch, or over the sample of its blocks."""
        return _totals(self.trace)

    def record(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        t = self.trace
        return {
            "kernel": self.kernel,
            "model": self.model,
            "grid": self.grid,
            "threads": self.threads,
            "blocks_counted": t.blocks,
            "sampled": t.sampled,
            "branches_followed": t.by_blocks,
            "totals": self.totals,
            "lines": [
                asdict(row)
                | {
                    "sectors_per_request": row.sectors_per_request,
                    "bytes_moved": row.bytes_moved,
                    "bank_conflicts": row.bank_conflicts,
                }
                for row in t.lines
            ],
            "flow": [asdict(row) for row in t.flow],
        }

    def warp(self, line: int, request: int = 0, array: str | None = None) -> WarpPicture:
        """One warp's addresses against sectors and lines, request by request with a slider, from the given one on.

        `array`: one of those that the line reads or writes; the first by default. Raises LabError where the line has no
        such request to global memory.
        """
        return warp_picture(self.trace, line, request, array)

    def __repr__(self) -> str:
        head = ["line", "does", "count", "cost", "lanes", "share"]
        cells = [
            [str(r.line) if r.code or not r.what else "", *_cells(r), r.code] for r in self.rows
        ]
        widths = [max(len(row[i]) for row in [head, *cells]) for i in range(len(head))]
        lines = []
        for row in [[*head, "source"], *cells]:
            gutter = [
                c.ljust(w) if i == 1 else c.rjust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=False))
            ]
            lines.append(f"{'  '.join(gutter)} | {row[-1]}".rstrip())
        return "\n".join([self.heading, "", *lines, "", *_sentences(self.totals)])

    def __rich__(self) -> Group:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        rows = self.rows
        widths = [max(map(len, column)) for column in zip(*map(_cells, rows), strict=True)]
        for name, width in zip(
            ("does", "count", "cost", "lanes", "share", "", "line"),
            [*widths, BAR_CELLS, 4],
            strict=True,
        ):
            table.add_column(
                name,
                justify="left" if name in ("does", "") else "right",
                no_wrap=True,
                min_width=max(width, len(name)),
            )
        table.add_column("source", no_wrap=True, overflow="ellipsis", ratio=1)
        for row in rows:
            does, count, cost, lanes, share = _cells(row)
            table.add_row(
                does,
                count,
                Text(cost, style=_terminal_style(row)),
                lanes,
                share,
                Text(_bar(row.share), style=_terminal_style(row)),
                Text(str(row.line) if row.code or not row.what else "", style="dim"),
                Text(row.code, style="bold" if row.what else "dim"),
            )
        return Group(
            Text(self.heading, style="bold"), "", table, "", *map(Text, _sentences(self.totals))
        )

    def _repr_html_(self) -> str:
        # Inline styles alone: JupyterLab strips <style> from notebooks that it does not trust yet. Colours are faint
        # enough for text of any theme.
        cell = "padding:0 8px;text-align:{};white-space:pre;font-family:monospace;font-size:12px;line-height:1.35"
        right, left = cell.format("right"), cell.format("left")
        heads = (
            "does",
            "count",
            "cost a request",
            "lanes",
            "share of sectors",
            "line",
            "source",
            "bytes wanted",
            "moved",
        )
        body = []
        for row in self.rows:
            does, count, cost, lanes, share = _cells(row)
            texts = [
                (does, left, ""),
                (count, right, ""),
                (cost, right, _css_colour(row)),
                (lanes, right, ""),
                (f"{share:>6} {_bar(row.share)}" if share else "", left, ""),
                (str(row.line) if row.code or not row.what else "", right, ""),
                (row.code, left, ""),
                ("" if row.wanted is None else f"{row.wanted:,}", right, ""),
                ("" if row.moved is None else f"{row.moved:,}", right, ""),
            ]
            body.append(
                "<tr>"
                + "".join(
                    f'<td style="{style}{f";background-color:{c}" if c else ""}">{escape(text)}</td>'
                    for text, style, c in texts
                )
                + "</tr>"
            )
        head = "".join(f'<th style="{left}">{h}</th>' for h in heads)
        sentences = "".join(f"<li>{escape(s)}</li>" for s in _sentences(self.totals))
        return (
            f"<p><b>{escape(self.heading)}</b></p><div style='overflow-x:auto'><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table></div><ul>{sentences}</ul>"
        )


def inspect_kernel(
    kernel: str | None = None,
    model: str | None = None,
    *,
    source: str | Path | None = None,
    like: str | None = None,
    position: int = 63,
    blocks: int | None = None,
) -> Inspection:
    """Put a kernel under the microscope: "gemv_q4_0:coalesced", at the size of a model (the storyteller's by default).

    Or a kernel of your own: `source`, its text or path, launched `like` one of the registry. `blocks`: run and count
    about so many blocks; all where that is not too many, by default. Raises LabError for a name that does not exist,
    and for what the device refuses.
    """
    if (kernel is None) == (like is None) or (source is None) != (like is None):
        raise LabError(
            "inspect_kernel takes the name of a kernel, as in inspect_kernel('gemv_q4_0:coalesced'), "
            "or both source=... and like='gemv_q4_0:coalesced'."
        )
    chosen, variant = find_kernel(kernel or like or "")
    config = config_of(model)
    args = workload(chosen, config, position)
    text = (
        variant.source
        if source is None
        else Path(source).read_text()
        if isinstance(source, Path)
        else source
    )
    name = (
        variant.path.name
        if source is None
        else source.name
        if isinstance(source, Path)
        else "yours.cu"
    )
    grid = chosen.grid(variant, args)
    if source is not None:
        _demand_same_parameters(text, variant)
    shared = variant.shared_bytes(args)
    kept = blocks or _blocks_to_run(args, grid)
    traced = trace(
        text,
        grid,
        variant.threads,
        args,
        DEFINES,
        name,
        shared,
        kept,
        cooperative=variant.cooperative,
    )
    label = f"{chosen.name}:{variant.name}" if source is None else f"{name}, like {like}"
    return Inspection(label, model or config.name, grid, variant.threads, traced)


def _demand_same_parameters(text: str, variant: Variant) -> None:
    mine, theirs = parse_signature(text), parse_signature(variant.source)
    if len(mine.parameters) != len(theirs.parameters):
        raise LabError(
            f"The kernel takes {mine}; to be launched like {variant.name} it must take {theirs}."
        )


def _blocks_to_run(args: Arguments, grid: int) -> int | None:
    """How many blocks stay within MOST_ELEMENTS, where all of them read the arrays about once; None: all."""
    arrays = [v for v in args.values() if isinstance(v, np.ndarray)]
    elements = sum(
        a.size // BLOCK_BYTES * BLOCK_WEIGHTS if a.dtype == np.uint8 else a.size for a in arrays
    )
    kept = max(LEAST_BLOCKS, grid * MOST_ELEMENTS // max(1, elements))
    return None if kept >= grid else kept


# ---- rows and totals ----


def _rows(t: Trace) -> Iterator[Row]:
    lines = t.source.splitlines()
    first = next((i for i, line in enumerate(lines) if line and not line.startswith("//")), 0)
    everything = sum(row.sectors for row in t.lines if row.space == "global") or 1
    for number in range(first + 1, len(lines) + 1):
        code = lines[number - 1]
        mine = [_traffic_row(number, r, everything) for r in t.lines if r.line == number]
        mine += [row for r in t.flow if r.line == number for row in _flow_rows(number, r)]
        for i, row in enumerate(mine or [Row(number, code)]):
            yield row if i else Row(**asdict(row) | {"code": code})
    # Code that no line of the kernel's own file stands for, as a helper that was not inlined.
    elsewhere = [
        _traffic_row(0, r, everything) for r in t.lines if not first < r.line <= len(lines)
    ]
    for i, row in enumerate(elsewhere):
        yield row if i else Row(**asdict(row) | {"code": "(in a file that the kernel includes)"})


def _traffic_row(line: int, r: LineTraffic, everything: int) -> Row:
    if r.space == "shared":
        return Row(
            line, "", f"shared {r.kind}", r.requests, r.wavefronts / r.requests, r.ideal_wavefronts / r.requests,
            r.lanes, r.bytes_wanted, note=f"{r.bank_conflicts:,} bank conflicts" if r.bank_conflicts else "",
        )  # fmt: skip
    return Row(
        line, "", r.kind, r.requests, r.sectors_per_request, r.ideal_sectors_per_request, r.lanes,
        r.bytes_wanted, r.bytes_moved, r.sectors / everything,
    )  # fmt: skip


def _flow_rows(line: int, r: LineFlow) -> Iterator[Row]:
    for what, count in (
        ("barrier", r.barriers),
        ("warp barrier", r.warp_barriers),
        ("shuffle", r.shuffles),
        ("vote", r.votes),
        ("product", r.products),
    ):
        if count:
            yield Row(line, "", what, count)
    if r.branches:
        yield Row(line, "", "branch", r.branches, note=f"{r.divergent_branches:,} diverge")


def _totals(t: Trace) -> dict[str, int | float]:
    totals: dict[str, int | float] = {}
    for kind in ("load", "store", "atomic"):
        rows = [r for r in t.lines if r.kind == kind and r.space == "global"]
        totals |= {
            f"{kind}_requests": sum(r.requests for r in rows),
            f"{kind}_sectors": sum(r.sectors for r in rows),
            f"{kind}_ideal_sectors": sum(r.ideal_sectors for r in rows),
            f"{kind}_bytes_wanted": sum(r.bytes_wanted for r in rows),
            f"{kind}_bytes_moved": sum(r.bytes_moved for r in rows),
        }
    shared = [r for r in t.lines if r.space == "shared"]
    requests = t.requests_table
    return totals | {
        "distinct_bytes": t.distinct_sectors * SECTOR_BYTES,
        "mean_lanes": float(requests["lanes"].mean()) if len(requests) else 0.0,
        "shared_requests": sum(r.requests for r in shared),
        "shared_wavefronts": sum(r.wavefronts for r in shared),
        "bank_conflicts": sum(r.bank_conflicts for r in shared),
        "barriers": sum(r.barriers for r in t.flow),
        "warp_barriers": sum(r.warp_barriers for r in t.flow),
        "shuffles": sum(r.shuffles for r in t.flow),
        "votes": sum(r.votes for r in t.flow),
        "products": sum(r.products for r in t.flow),
        "branches": sum(r.branches for r in t.flow),
        "divergent_branches": sum(r.divergent_branches for r in t.flow),
    }


def _sentences(totals: dict[str, int | float]) -> list[str]:
    n = totals
    lines = []
    for kind, plural in (("load", "loads"), ("store", "stores"), ("atomic", "atomics")):
        requests, sectors, ideal = (
            n[f"{kind}_{what}"] for what in ("requests", "sectors", "ideal_sectors")
        )
        if requests:
            lines.append(
                f"global {plural}: {requests:,} requests, {sectors:,} sectors, {sectors / requests:.2f} a request "
                f"where lanes side by side have {ideal / requests:.2f}; {n[f'{kind}_bytes_wanted']:,} bytes wanted, "
                f"{n[f'{kind}_bytes_moved']:,} moved"
            )
    lines.append(
        f"distinct sectors: {n['distinct_bytes']:,} bytes, the least that DRAM must move; "
        f"{n['mean_lanes']:.1f} lanes a request on average"
    )
    if n["shared_requests"]:
        lines.append(
            f"shared memory: {n['shared_requests']:,} requests, {n['shared_wavefronts']:,} wavefronts, "
            f"{n['bank_conflicts']:,} of them for bank conflicts"
        )
    lines.append(
        f"warps: {n['barriers']:,} times at a barrier, {n['warp_barriers']:,} at a warp barrier, {n['shuffles']:,} "
        f"shuffles, {n['votes']:,} votes; {n['divergent_branches']:,} of {n['branches']:,} branches diverge"
    )
    if n["products"]:
        lines.append(f"Tensor Cores: {n['products']:,} products of 16 x 16 by 16 x 8")
    return lines


# ---- cells ----


def _cells(row: Row) -> list[str]:
    """does, count, cost, lanes, share."""
    if row.count is None:
        return [""] * 5
    return [
        row.what,
        f"{row.count:,}",
        row.per_request or row.note,
        "" if row.lanes is None else _short(row.lanes),
        "" if row.share is None else f"{row.share:.1%}",
    ]


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _bar(share: float | None) -> str:
    """A bar of text, so that it shows wherever text does."""
    eighths = round((share or 0) * BAR_CELLS * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _terminal_style(row: Row) -> str:
    if row.cost is None:
        return ""
    return "green" if row.excess <= 1 else "yellow" if row.excess < 2 else "bold red"


def _css_colour(row: Row) -> str:
    """Blue at the ideal or below, orange above it, stronger the further: told apart by everybody."""
    if row.cost is None:
        return ""
    if row.excess <= 1:
        return "rgba(0,114,178,0.22)"
    return f"rgba(213,94,0,{min(0.6, 0.15 + 0.08 * row.excess):.2f})"
