"""Predictions that a learner commits before anything is measured, and how they came out."""

from collections.abc import Mapping

from sovereign_lab.notebook.table import Table

CLOSE = 1.1


def judge(predicted: Mapping[str, float | None], found: Mapping[str, float]) -> Table:
    """Each prediction beside what was found. Names in `predicted` that `found` lacks raise KeyError."""
    rows = [
        [name, "none yet" if mine is None else f"{mine:g}", f"{found[name]:.4g}", _verdict(mine, found[name])]
        for name, mine in predicted.items()
    ]  # fmt: skip
    return Table(["question", "your prediction", "found", "verdict"], rows)


def _verdict(mine: float | None, truth: float) -> str:
    if mine is None:
        return "commit a number first, then run again"
    if mine == truth:
        return "exact"
    if mine <= 0 or truth <= 0:
        return "wrong sign"
    ratio = max(mine / truth, truth / mine)
    if ratio <= CLOSE:
        return "close: within 10 %"
    return f"{'too high' if mine > truth else 'too low'}, by a factor of {ratio:.1f}"
