"""`sovereign-lab models`: list, fetch and make model files."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sovereign_lab.cli.app import models_app


@models_app.command("list")
def list_models() -> None:
    """Show the catalog, and which of its files are on this machine."""
    from sovereign_lab.models.catalog import DEFAULT, cache_dir, entries

    table = Table(caption=f"cache: {cache_dir()}", caption_justify="left")
    for heading in ("name", "what", "from", "here"):
        table.add_column(heading, overflow="fold")
    for entry in entries():
        name = f"{entry.name} (default)" if entry.name == DEFAULT else entry.name
        here = "yes" if entry.present else "no"
        table.add_row(escape(name), escape(entry.description), escape(entry.where), here)
    Console(highlight=False).print(table)


@models_app.command()
def pull(name: Annotated[str, typer.Argument(help="A name from `models list`.")]) -> None:
    """Put a model's file into the cache and print its path."""
    from sovereign_lab.models.catalog import resolve

    print(resolve(name, progress=True))


@models_app.command()
def synth(
    name: Annotated[str, typer.Argument(help="A shape, with or without `synthetic:` before it.")],
) -> None:
    """Write a model of true shape and random weights into the cache and print its path."""
    from sovereign_lab.models.catalog import resolve

    print(resolve(f"synthetic:{name.removeprefix('synthetic:')}", progress=True))
