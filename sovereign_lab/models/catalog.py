"""A name becomes a GGUF file: made from a package, downloaded, synthesised, or simply a path."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sovereign_lab.errors import LabError
from sovereign_lab.models import smollm2, storyteller, synthetic, tinyllama
from sovereign_lab.models.cache import cache_dir

__all__ = ["DEFAULT", "Entry", "cache_dir", "entries", "resolve"]

DEFAULT = "storyteller"


class Entry(NamedTuple):
    """A line of the catalog: where the file comes from, and whether it is on this machine."""

    name: str
    description: str
    where: str
    present: bool


@dataclass(frozen=True)
class _Recipe:
    description: str
    where: str
    present: Callable[[], Path | None]
    """The finished file, None where it is yet to be made."""
    make: Callable[[bool], Path]
    """Make or fetch the file, showing progress or not."""


def resolve(name: str, progress: bool = False) -> Path:
    """The GGUF file for a catalog name, made or fetched if need be; or `name` itself as a path.

    Raises LabError for an unknown name or a missing file, and for whatever keeps the file from
    being made: no network, a full disk, a download that is not what it should be.
    """
    recipe = _recipes().get(name)
    if recipe is not None:
        return recipe.present() or recipe.make(progress)
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.suffix == ".gguf" or len(path.parts) > 1:
        raise LabError(f"there is no file {path}; give the path of a GGUF file, or a catalog name")
    raise LabError(
        f"there is no model {name!r}; the catalog has {', '.join(_recipes())}, or give a path"
    )


def entries() -> list[Entry]:
    """The catalog, in the order to show it."""
    return [
        Entry(name, recipe.description, recipe.where, recipe.present() is not None)
        for name, recipe in _recipes().items()
    ]


def _recipes() -> dict[str, _Recipe]:
    recipes = {
        DEFAULT: _Recipe(
            storyteller.DESCRIPTION, storyteller.WHERE, storyteller.present, storyteller.make
        ),
        "smollm2-135m": _Recipe(smollm2.DESCRIPTION, smollm2.WHERE, smollm2.present, smollm2.make),
        "tinyllama-1.1b": _Recipe(
            tinyllama.DESCRIPTION, tinyllama.WHERE, tinyllama.present, tinyllama.make
        ),
    }
    for name in synthetic.SHAPES:
        recipes[f"{synthetic.PREFIX}{name}"] = _synthetic(name)
    return recipes


def _synthetic(name: str) -> _Recipe:
    return _Recipe(
        f"{synthetic.SHAPES[name].describe()}; random weights, for speed work, not for text",
        "written here from a seed",
        lambda: synthetic.present(name),
        lambda progress: synthetic.make(name, progress),
    )
