"""`sovereign-lab doctor`: what of this machine the lab can use."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from sovereign_lab.cli.app import JSONOption, app


@app.command()
def doctor(as_json: JSONOption = False) -> None:
    """Show what of this machine the lab can use, and what to do about the rest; 1 where it cannot run."""
    from sovereign_lab.checkup import doctor

    report = doctor()
    if as_json:
        print(json.dumps(report.record()))
    else:
        Console(highlight=False).print(report)
    raise typer.Exit(0 if report.ok else 1)
