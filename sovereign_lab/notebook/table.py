"""A small table that reads as HTML in a notebook and as text everywhere else."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Table:
    """Rows of cells under a head; cells are text, formatted by whoever knows their unit."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __repr__(self) -> str:
        lines = [self.head, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            inner = "".join(f"<{tag} style='text-align:left'>{escape(c)}</{tag}>" for c in cells)
            return f"<tr>{inner}</tr>"

        body = "".join(line(row, "td") for row in self.rows)
        return f"<table><thead>{line(self.head, 'th')}</thead><tbody>{body}</tbody></table>"
