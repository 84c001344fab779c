"""`sovereign-lab ledger`: the experiments that were made, for the terminal and for a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sovereign_lab.cli.app import app

if TYPE_CHECKING:
    from sovereign_lab.measure.ledger import Ledger


class Format(StrEnum):
    """How the ledger is written."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    html = "html"


@app.command("ledger")
def show_ledger(
    path: Annotated[
        Path | None,
        typer.Option(help="The ledger's file; SOVEREIGN_LEDGER or ./sovereign-lab.sqlite3 if not."),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How it is written.")] = Format.table,
    output: Annotated[
        Path | None, typer.Option(help="The file to write, in place of printing.")
    ] = None,
    number: Annotated[
        int | None, typer.Option("--experiment", metavar="N", help="One experiment alone.")
    ] = None,
) -> None:
    """Show the experiments: what was predicted, what came out, and what was decided.

    One experiment's table says everything that is known of it; in the other formats it is one line.
    """
    from dataclasses import replace

    from sovereign_lab.errors import LabError
    from sovereign_lab.measure.ledger import ledger

    found = ledger(path)
    if path is not None and not found.path.exists():
        raise LabError(f"There is no ledger {found.path}.")
    if number is not None and form is Format.table:
        text = f"{found.entry(number)!r}\n"
    else:
        shown = found if number is None else replace(found, entries=(found.entry(number),))
        text = _written(shown, form)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text, encoding="utf-8")
        print(output)


def _written(found: Ledger, form: Format) -> str:
    if form is Format.table:
        return f"{found!r}\n"
    return {"markdown": found.markdown, "csv": found.csv, "html": found.html}[form]()
