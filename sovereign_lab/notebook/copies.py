"""A learner's own copies of the notebooks: without outputs, so that a prediction comes before its answer."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat

from sovereign_lab.errors import LabError
from sovereign_lab.notebook.places import in_checkout


@dataclass(frozen=True)
class Copied:
    """What `copy_notebooks` did: files `made`, and files `kept` because they were there already."""

    made: tuple[Path, ...]
    kept: tuple[Path, ...]


def originals() -> dict[str, Path]:
    """The lab's notebooks by chapter ("00" to the last). Raises LabError where they are not there."""
    return {path.name[:2]: path for path in sorted(in_checkout("notebooks").glob("*.ipynb"))}


def copy_notebooks(folder: Path, chapters: Sequence[str] = (), outputs: bool = False) -> Copied:
    """Copy chapters (all by default) into `folder`, which is made; a file that is there already stays as it is.

    `outputs`: with what the cells print, as in the lab's own notebooks. Raises LabError for a chapter that there is
    not, and for a folder that is the lab's own.
    """
    sources = originals()
    unknown = [c for c in chapters if c not in sources]
    if unknown:
        raise LabError(f"There is no chapter {', '.join(unknown)}; there are {', '.join(sources)}.")
    folder = folder.expanduser()
    if folder.resolve() == in_checkout("notebooks").resolve():
        raise LabError(f"{folder} holds the lab's own notebooks; name a folder of yours.")
    if folder.exists() and not folder.is_dir():
        raise LabError(f"{folder} is a file; name a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    made, kept = [], []
    for chapter in chapters or sources:
        target = folder / sources[chapter].name
        if target.exists():
            kept.append(target)
        else:
            _write(sources[chapter], target, outputs)
            made.append(target)
    return Copied(tuple(made), tuple(kept))


def reset_notebook(notebook: Path, outputs: bool = False) -> Path:
    """Put a fresh copy in place of `notebook`; what was there is kept beside it, under the name that is returned.

    Raises LabError where `notebook` is not there, is none of the lab's by its name, or is the lab's own.
    """
    source = next((p for p in originals().values() if p.name == notebook.name), None)
    if not notebook.is_file():
        raise LabError(f"{notebook} is not there; `sovereign-lab notebooks copy DIR` makes copies.")
    if source is None:
        names = ", ".join(p.name for p in originals().values())
        raise LabError(f"{notebook.name} is none of the lab's notebooks; these are {names}.")
    if notebook.resolve() == source.resolve():
        raise LabError(f"{notebook} is the lab's own; `git checkout` brings it back.")
    number = 1
    while (mine := notebook.with_name(f"{notebook.stem}.mine-{number}.ipynb")).exists():
        number += 1
    shutil.copy2(notebook, mine)
    _write(source, notebook, outputs)
    return mine


def _write(source: Path, target: Path, outputs: bool) -> None:
    book = nbformat.read(source, as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code" and not outputs:
            cell.outputs, cell.execution_count = [], None
    # Whole or not at all: a learner's file is never half written.
    part = target.with_name(f".{target.name}.part")
    nbformat.write(book, part)
    part.replace(target)
