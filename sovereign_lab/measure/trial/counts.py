"""What an edit and its parent do to memory, counted side by side at the size of a model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sovereign_lab.devices.device import Source
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import LineTraffic, Trace, trace
from sovereign_lab.measure.mine import Edit
from sovereign_lab.measure.trial.card import Count
from sovereign_lab.measure.trial.times import POSITION
from sovereign_lab.measure.worker import child
from sovereign_lab.measure.workload import DEFINES, config_of, workload

# Launches whose arrays hold more elements are traced in part.
TRACED_ELEMENTS = 1_000_000
TRACED_BLOCKS = 8
LINES_SECONDS = 60.0


def count(made: Edit, model: str | None) -> tuple[tuple[Count, ...], str]:
    """Every figure that is not 0 for both, and what was counted. Raises LabError as `trace` and `workload` do."""
    config = config_of(model)
    args = workload(op(made.op), config, POSITION)
    parent = Edit(made.op, made.parent.source, made.like)
    mine, theirs = (trace_edit(which, args) for which in (made, parent))
    old, new = _figures(theirs), _figures(mine)
    counts = tuple(Count(what, old[what], new[what]) for what in old if old[what] or new[what])
    return counts, f"at the size of {config.name}, {mine.scope}"


def count_lines(made: Edit, model: str | None) -> tuple[tuple[LineTraffic, ...], str]:
    """What each line of an edit does to memory, and what was counted. Raises LabError as `count` does."""
    config = config_of(model)
    child.doing(f"Counting the accesses of kernel {made.name} by line", LINES_SECONDS)
    traced = trace_edit(made, workload(op(made.op), config, POSITION))
    return tuple(traced.lines), f"at the size of {config.name}, {traced.scope}"


def trace_edit(made: Edit, args: Mapping[str, Any]) -> Trace:
    """An edit's launch under the trace, of some of its blocks where it is large. Raises LabError as `trace` does."""
    variant = made.variant()
    grid = op(made.op).grid(variant, args)
    elements = sum(v.size for v in args.values() if isinstance(v, np.ndarray))
    share = min(1.0, TRACED_ELEMENTS / max(1, elements))
    return trace(
        Source(made.text, f"{made.name}.cu", DEFINES), grid, variant.threads, args,
        shared_bytes=variant.shared_bytes(args), cooperative=variant.cooperative,
        blocks=max(TRACED_BLOCKS, int(grid * share)) if share < 1 else None,
    )  # fmt: skip


def _figures(t: Trace) -> dict[str, float]:
    figures: dict[str, float] = {}
    for kind in ("load", "store", "atomic"):
        requests, sectors = t.requests(kind), t.sectors(kind)
        figures |= {
            f"{kind} requests": requests,
            f"{kind} sectors": sectors,
            f"sectors a {kind} request": sectors / requests if requests else 0.0,
        }
    shared = [row for row in t.lines if row.space == "shared"]
    return figures | {
        "shared-memory wavefronts": sum(r.wavefronts for r in shared),
        "bank conflicts": sum(r.bank_conflicts for r in shared),
        "barriers": sum(r.barriers for r in t.flow),
        "shuffles": sum(r.shuffles for r in t.flow),
        "products of Tensor Cores": sum(r.products for r in t.flow),
        "divergent branches": sum(r.divergent_branches for r in t.flow),
    }
