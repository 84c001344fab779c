"""What a longer context costs: recorded forward passes by position, and the attention kernel alone on this machine."""

import re
from collections.abc import Sequence

import plotly.graph_objects as go

from sovereign_lab.devices import Device
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.measure.bench import Figure
from sovereign_lab.models.model import Config
from sovereign_lab.notebook.attention_counts import KV, arguments
from sovereign_lab.notebook.op_times import op_times
from sovereign_lab.notebook.plots import SERIES, styled
from sovereign_lab.notebook.runs import Run
from sovereign_lab.notebook.table import Table

REPEATS = 5


def by_position(run: Run, phase: str) -> dict[int, float]:
    """Milliseconds of a forward pass of a phase, by the position that it was recorded at."""
    found = {}
    for what, figure in run.figures.items():
        match = re.fullmatch(rf"\s*phase {phase}, at position (\d+)", what)
        if match:
            found[int(match.group(1))] = figure.value
    return found


def added_per_thousand(run: Run, phase: str) -> float:
    """Microseconds that 1,000 more positions add to a forward pass: from the first recorded position to the last."""
    times = by_position(run, phase)
    first, last = min(times), max(times)
    return 1e6 * (times[last] - times[first]) / (last - first)


def alone(run: Run, phase: str, name: str = "attention") -> float:
    """Microseconds a token of an op's launches of one forward pass, replayed alone, as recorded; at position 16."""
    return op_times(run, phase)[name].us


def context_table(run: Run, phases: Sequence[str]) -> Table:
    """By position: ms of each phase, and how many times as fast as the first phase each one is."""
    times = {phase: by_position(run, phase) for phase in phases}
    first = times[phases[0]]
    head = ["position", *(f"phase {phase}" for phase in phases)]
    head += [f"{phase} over {phases[0]}" for phase in phases[1:]]
    rows = [
        [
            f"{position:,}",
            *(f"{times[phase][position]:.2f} ms" for phase in phases),
            *(f"{first[position] / times[phase][position]:.2f}" for phase in phases[1:]),
        ]
        for position in first
    ]
    slopes = [added_per_thousand(run, phase) for phase in phases]
    rows.append(
        [
            "1,000 more add",
            *(f"{slope:,.0f} us" for slope in slopes),
            *(f"{slopes[0] / slope:.2f}" for slope in slopes[1:]),
        ]
    )
    return Table(head, rows)


def context_lines(run: Run, phases: Sequence[str], title: str) -> go.Figure:
    """Milliseconds of a forward pass against the position, a line a phase, named at its right end."""
    figure = go.Figure()
    for phase, colour in zip(phases, SERIES * len(phases), strict=False):
        times = by_position(run, phase)
        figure.add_scatter(
            name=f"phase {phase}", x=list(times), y=list(times.values()), mode="lines+markers",
            line={"color": colour}, marker={"size": 7},
            hovertemplate=f"phase {phase}, position %{{x:,}}: %{{y:.2f}} ms<extra></extra>",
        )  # fmt: skip
        figure.add_annotation(
            x=max(times), y=times[max(times)], text=f" phase {phase}", xanchor="left", showarrow=False,
        )  # fmt: skip
    longest = max(max(by_position(run, phase)) for phase in phases)
    figure.update_xaxes(title_text="position", range=[0, 1.13 * longest], tickformat=",")
    figure.update_yaxes(title_text="ms a forward pass", rangemode="tozero")
    figure.update_layout(showlegend=False)
    return styled(figure, title, height=400)


def attention_times(
    device: Device, variants: Sequence[Variant], lengths: Sequence[int], config: Config
) -> list[Figure]:
    """Microseconds of one launch of each variant at each length on `device`, with the heads of `config`."""
    attention = op("attention")
    launches = 50 if device.properties.kind == "cuda" else 1
    figures = []
    for variant in variants:
        kernel = device.compile(variant.path, KV)
        for length in lengths:
            args = arguments(length, config)
            given = list(device.arguments(args).values())
            with device.capture() as capture:
                for _ in range(launches):
                    device.launch(kernel, attention.grid(variant, args), variant.threads, given)
            samples = []
            for repeat in range(REPEATS + 1):
                with device.timer() as timer:
                    capture.replay()
                if repeat:  # the first one warms up
                    samples.append(timer.milliseconds * 1e3 / launches)
            what = f"attention {variant.name}, {length:,} positions"
            figures.append(Figure.of(what, "us", samples))
    return figures


def variant_table(run: Run, names: Sequence[str], positions: Sequence[int]) -> Table:
    """Each attention variant alone, us a token, by position, from a run of `bench --variants attention`."""
    rows = [
        [f"{position:,}", *(f"{_variant_us(run, name, position):,.0f}" for name in names)]
        for position in positions
    ]
    return Table(["position", *(f"{name}, us" for name in names)], rows)


def _variant_us(run: Run, name: str, position: int) -> float:
    return run.value(f"  attention:{name}, at position {position}")
