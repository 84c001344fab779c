"""One warp's 32 addresses against the sectors and lines of memory, request after request, with a slider."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import plotly.graph_objects as go

from sovereign_lab.errors import LabError
from sovereign_lab.measure.memory_trace import LINE_BYTES, SECTOR_BYTES, Access, Trace
from sovereign_lab.notebook.plots import BLUE, FAINT, MONOSPACE, TEXT, VERMILLION, WIDTH, styled

# A slider of more steps is hard to hit, and each step adds a few KB to the notebook.
MOST_STEPS = 24
MOVED = "rgba(213,94,0,0.30)"


@dataclass(frozen=True)
class WarpPicture:
    """`figure`: the slider's Plotly figure. `svg`: its first step, for whatever shows no Plotly figures."""

    figure: go.Figure = field(repr=False)
    svg: str = field(repr=False)
    title: str

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {
            "application/vnd.plotly.v1+json": self.figure.to_plotly_json(),
            "image/svg+xml": self.svg,
            "text/plain": self.title,
        }


@dataclass(frozen=True)
class _Step:
    """One request as the picture draws it: its lines of 128 bytes from top to bottom, and boxes (row, start, end)."""

    label: str
    lines: list[int]
    moved: list[tuple[int, int, int]]
    idle: list[tuple[int, int, int]]
    lanes: list[tuple[int, int, int, str]]  # and who reads them


def warp_picture(traced: Trace, line: int, request: int, array: str | None) -> WarpPicture:
    """See `Inspection.warp`: up to MOST_STEPS requests of the line, from number `request` on, all of one array."""
    if array is None:
        array = traced.accesses(line, request)[0].array
    rows = traced.requests_of(line, array)
    if not 0 <= request < len(rows):
        raise LabError(
            f"Line {line} makes {len(rows)} global requests of `{array}`; number {request} does not exist."
        )
    table, steps = traced.requests_table, []
    for number in range(request, min(len(rows), request + MOST_STEPS)):
        row = table[rows[number]]
        kind = ("load", "store", "atomic")[row["store"]]
        what = f"{kind} {number:,} of {len(rows):,}: block {row['block']}, warp {row['warp']}"
        steps.append(_step(what, traced.accesses_of(int(rows[number]))))
    title = f"Line {line}, `{array}`: {traced.scope}, exact by address"
    svg = _svg(title, array, steps[0])
    return WarpPicture(_slider(title, array, _of_one_size(steps), request), svg, title)


def _step(what: str, accesses: Sequence[Access]) -> _Step:
    touched = sorted(
        {s for a in accesses for s in range(a.offset // SECTOR_BYTES, _last(a) // SECTOR_BYTES + 1)}
    )
    lines = sorted({s * SECTOR_BYTES // LINE_BYTES for s in touched})
    row_of = {line: row for row, line in enumerate(lines)}
    boxes: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
    for line, row in row_of.items():
        for start in range(0, LINE_BYTES, SECTOR_BYTES):
            moved = (line * LINE_BYTES + start) // SECTOR_BYTES in touched
            boxes[moved].append((row, start, start + SECTOR_BYTES))
    who: dict[tuple[int, int], list[int]] = {}
    for access in accesses:
        who.setdefault((access.offset, access.size), []).append(access.lane)
    lanes = []
    for (offset, size), same in who.items():
        start = offset
        while (
            start < offset + size
        ):  # a lane whose bytes cross into the next line has a mark in both
            line = start // LINE_BYTES
            end = min(offset + size, (line + 1) * LINE_BYTES)
            text = (
                f"lane{'s' if len(same) > 1 else ''} {_ranges(same)}: {size} bytes at +{offset:,}"
            )
            lanes.append((row_of[line], start - line * LINE_BYTES, end - line * LINE_BYTES, text))
            start = end
    wanted = len({a.offset + i for a in accesses for i in range(a.size)})
    label = (
        f"{what}, {len(accesses)} lanes<br>{len(touched)} sector{'s' if len(touched) > 1 else ''} in {len(lines)} "
        f"line{'s' if len(lines) > 1 else ''}: {len(touched) * SECTOR_BYTES:,} bytes moved for {wanted:,} wanted"
    )
    return _Step(label, lines, boxes[True], boxes[False], lanes)


def _of_one_size(steps: Sequence[_Step]) -> list[_Step]:
    """With empty boxes added: where frames have different numbers of bars, Plotly draws some in black for a while."""
    most = {name: max(len(getattr(s, name)) for s in steps) for name in ("moved", "idle", "lanes")}
    return [
        replace(
            s,
            moved=s.moved + [(0, 0, 0)] * (most["moved"] - len(s.moved)),
            idle=s.idle + [(0, 0, 0)] * (most["idle"] - len(s.idle)),
            lanes=s.lanes + [(0, 0, 0, "")] * (most["lanes"] - len(s.lanes)),
        )
        for s in steps
    ]


def _last(access: Access) -> int:
    return access.offset + access.size - 1


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as "1-3, 7"."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _slider(title: str, array: str, steps: Sequence[_Step], first: int) -> go.Figure:
    rows = max(4, max(len(s.lines) for s in steps))
    figure = go.Figure(data=_bars(steps[0]))
    figure.frames = [
        go.Frame(name=str(i), data=_bars(step), layout=_layout(step))
        for i, step in enumerate(steps)
    ]
    figure = styled(figure, title, height=255 + 20 * rows)
    figure.update_layout(
        barmode="overlay", bargap=0, showlegend=False, margin={"t": 110, "l": 95, "b": 115},
        **_layout(steps[0]),
        sliders=[] if len(steps) == 1 else [{
            "active": 0, "pad": {"t": 60}, "currentvalue": {"prefix": "request ", "font": {"color": TEXT}},
            "font": {"color": TEXT},
            "steps": [
                {"label": f"{first + i:,}", "method": "animate",
                 "args": [[str(i)], {"mode": "immediate", "frame": {"duration": 0, "redraw": True},
                                     "transition": {"duration": 0}}]}
                for i in range(len(steps))
            ],
        }],
    )  # fmt: skip
    figure.update_xaxes(
        title_text="byte of the line", range=[-1, LINE_BYTES + 1], dtick=SECTOR_BYTES, showgrid=False, zeroline=False,
    )  # fmt: skip
    figure.update_yaxes(
        title_text=f"byte of {array}", title_standoff=14, range=[rows - 0.4, -0.6], showgrid=False, zeroline=False,
    )  # fmt: skip
    return figure


def _layout(step: _Step) -> dict[str, Any]:
    """What of the layout changes from request to request: the labels of the rows, and the sentence above."""
    every = 1 if len(step.lines) <= 8 else 4
    ticks = list(range(0, len(step.lines), every))
    return {
        "yaxis": {"tickvals": ticks, "ticktext": [f"{step.lines[i] * LINE_BYTES:,}" for i in ticks]},
        "annotations": [
            {"text": step.label, "x": 0, "xref": "paper", "y": 1, "yref": "paper", "xanchor": "left",
             "yanchor": "bottom", "align": "left", "showarrow": False, "font": {"color": TEXT}}
        ],
    }  # fmt: skip


def _bars(step: _Step) -> list[go.Bar]:
    def bars(
        boxes: Sequence[tuple[int, int, int]], colour: str, width: float, **more: Any
    ) -> go.Bar:
        return go.Bar(
            orientation="h", y=[row for row, _, _ in boxes], base=[start for _, start, _ in boxes],
            x=[end - start for _, start, end in boxes], width=width, marker={"color": colour, **more.pop("marker", {})},
            **more,
        )  # fmt: skip

    edge = {"line": {"color": FAINT, "width": 1}}
    return [
        bars(step.idle, "rgba(0,0,0,0)", 0.84, hoverinfo="skip", marker=edge),
        bars(step.moved, MOVED, 0.84, hoverinfo="skip", marker=edge),
        bars(
            [box[:3] for box in step.lanes], BLUE, 0.56, hovertext=[box[3] for box in step.lanes], hoverinfo="text",
            marker={"line": {"color": "rgba(255,255,255,0.7)", "width": 0.5}},
        ),
    ]  # fmt: skip


def _svg(title: str, array: str, step: _Step) -> str:
    left, top, height, scale = 95, 70, 20, (WIDTH - 115) / LINE_BYTES
    bottom = top + height * max(4, len(step.lines))

    def box(row: int, start: int, end: int, inset: float, style: str, hover: str = "") -> str:
        inner = f"<title>{escape(hover)}</title>" if hover else ""
        return (
            f'<rect x="{left + start * scale:.1f}" y="{top + height * row + inset:.1f}" '
            f'width="{(end - start) * scale:.1f}" height="{height - 2 * inset:.1f}" {style}>{inner}</rect>'
        )

    def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'

    edge = 'stroke="#7a7a7a" stroke-opacity="0.35"'
    first, second = step.label.split("<br>")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 40}" width="{WIDTH}" '
        f'font-family="{MONOSPACE.split(",")[-1].strip()}" fill="{TEXT}">',
        text(10, 18, title, size=14),
        text(left, 42, first),
        text(left, 58, second),
        *(box(*b, 1.5, f'fill="none" {edge}') for b in step.idle),
        *(box(*b, 1.5, f'fill="{VERMILLION}" fill-opacity="0.3" {edge}') for b in step.moved),
        *(
            box(*b[:3], 4.5, f'fill="{BLUE}" stroke="white" stroke-width="0.5"', b[3])
            for b in step.lanes
        ),
        *(
            text(left - 6, top + height * row + 14, f"{line * LINE_BYTES:,}", "end")
            for row, line in enumerate(step.lines)
        ),
        *(
            text(left + b * scale, bottom + 16, str(b), "middle")
            for b in range(0, LINE_BYTES + 1, SECTOR_BYTES)
        ),
        text(left, bottom + 34, f"byte of the line; rows: byte of {array}"),
        "</svg>",
    ]
    return "".join(parts)
