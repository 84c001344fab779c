"""Where a forward pass spends its time, by op, in a recorded run: each op's launches were replayed alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sovereign_lab.notebook.runs import Run
from sovereign_lab.notebook.table import Table


@dataclass(frozen=True)
class OpTime:
    """An op's launches in one forward pass, and the microseconds that they take replayed alone."""

    launches: int
    us: float


def op_times(run: Run, phase: str, position: int = 16) -> dict[str, OpTime]:
    """By op, in the order of a forward pass; empty where the run did not time the phase's ops at this position."""
    found = {}
    for figure in run.figures.values():
        pattern = rf"\s*phase {phase}, (\w+) x (\d+), at position {position}"
        match = re.fullmatch(pattern, figure.what)
        if match:
            found[match.group(1)] = OpTime(int(match.group(2)), figure.value)
    return found


def forward_ms(run: Run, phase: str, position: int = 16) -> float:
    """Milliseconds of a whole forward pass; KeyError where the run has none at this position."""
    return run.value(f"  phase {phase}, at position {position}")


def op_table(run: Run, phases: Sequence[str]) -> Table:
    """Launches and microseconds a token by op and phase; below, their sum and the whole forward pass.

    An op that a phase does not have is left empty. Of two phases the difference stands at the end.
    """
    times = {phase: op_times(run, phase) for phase in phases}
    names = dict.fromkeys(name for ops in times.values() for name in ops)
    lines: dict[str, list[OpTime | None]] = {
        name: [ops.get(name) for ops in times.values()] for name in names
    }
    lines["all of these"] = [
        OpTime(sum(t.launches for t in ops.values()), sum(t.us for t in ops.values()))
        for ops in times.values()
    ]
    lines["the forward pass"] = [OpTime(0, 1e3 * forward_ms(run, phase)) for phase in phases]
    rows = []
    for name, found in lines.items():
        row = [name]
        for time in found:
            row += [str(time.launches or ""), f"{time.us:,.1f} us"] if time else ["", ""]
        if len(phases) == 2:
            first, second = (time.us if time else 0.0 for time in found)
            row.append(_difference(second - first))
        rows.append(row)
    head = ["op", *(f"phase {p}, {what}" for p in phases for what in ("launches", "a token"))]
    return Table([*head, "difference"] if len(phases) == 2 else head, rows)


def _difference(us: float) -> str:
    """Whole microseconds: what an op's repeats differ by is less."""
    return f"{us:+,.0f} us" if round(us) else "0 us"
