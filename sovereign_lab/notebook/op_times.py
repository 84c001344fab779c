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
    """Launches and microseconds a token by op and phase; below, their sum and the whole forward pass."""
    times = {phase: op_times(run, phase) for phase in phases}
    rows = [
        [name, str(first.launches), *(f"{times[p][name].us:,.0f} us" for p in phases)]
        for name, first in times[phases[0]].items()
    ]
    sums = {p: sum(t.us for t in times[p].values()) for p in phases}
    launches = sum(t.launches for t in times[phases[0]].values())
    rows.append(["all of these", str(launches), *(f"{sums[p]:,.0f} us" for p in phases)])
    rows.append(["the forward pass", "", *(f"{1e3 * forward_ms(run, p):,.0f} us" for p in phases)])
    return Table(["op", "launches", *(f"phase {p}" for p in phases)], rows)
