"""`sovereign-lab notebooks`: a learner's own copies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sovereign_lab.cli.app import notebooks_app

OutputsOption = Annotated[
    bool, typer.Option("--outputs", help="With the outputs, which give the answers away.")
]


@notebooks_app.command("copy")
def copy_notebooks(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; it is made.")],
    chapter: Annotated[
        list[str] | None, typer.Option(help="A chapter, such as 05; may be repeated.")
    ] = None,
    outputs: OutputsOption = False,
) -> None:
    """Copy the notebooks, all or some, as they were before anybody ran them; what is there already stays."""
    from sovereign_lab.notebook import copies

    copied = copies.copy_notebooks(folder, chapter or [], outputs)
    for path in copied.made:
        print(path)
    if copied.kept:
        names = ", ".join(path.name for path in copied.kept)
        facts = Console(stderr=True, highlight=False)
        facts.print(f"there already, and left as they are: {escape(names)}")


@notebooks_app.command("reset")
def reset_notebook(
    notebook: Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `copy` made.")],
    outputs: OutputsOption = False,
) -> None:
    """Put a fresh copy in place of a notebook; the learner's own is kept beside it."""
    from sovereign_lab.notebook import copies

    mine = copies.reset_notebook(notebook, outputs)
    print(f"{notebook} is fresh again; what was in it is now {mine}")
