"""The `%%kernel` cell of a committed chapter: its kernel, and the counts on its card.

nbval compares the card with a fresh run's, so prose that is held to the card is held to the trace.
"""

import re
from pathlib import Path
from typing import Any

import nbformat

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def _cell(chapter: str) -> Any:
    (path,) = NOTEBOOKS.glob(f"{chapter}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    (cell,) = (c for c in cells if c.source.startswith("%%kernel "))
    return cell


def kernel_source(chapter: str) -> str:
    """The CUDA source of the cell, without the magic's line."""
    source: str = _cell(chapter).source
    return source.partition("\n")[2]


def counts(chapter: str) -> dict[str, tuple[float, float]]:
    """Each figure that the card counted, of the parent and of the edit."""
    card: str = _cell(chapter).outputs[0].data["text/plain"]
    lines = re.findall(r"^(\S.*?) {2,}([\d.,]+) {2,}([\d.,]+)$", card, flags=re.M)
    assert lines, f"no counts on the card of chapter {chapter}"
    return {what: (_number(parent), _number(mine)) for what, parent, mine in lines}


def a_row(chapter: str, rows: int) -> dict[str, tuple[float, float]]:
    """`counts`, by row."""
    return {what: (old / rows, new / rows) for what, (old, new) in counts(chapter).items()}


def _number(text: str) -> float:
    return float(text.replace(",", ""))
