"""What a plot is."""

from collections.abc import Callable
from dataclasses import dataclass

from sovereign_lab.recipes.storyteller.grammar.cast import Cast, Needs


@dataclass(frozen=True)
class Telling:
    """A told story: its opening, which names hero and thing, and the paragraphs, opening included."""

    opening: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    name: str
    needs: Needs
    shows_trait: bool  # its tries fail because of what the hero is like
    tell: Callable[[Cast], Telling]


def telling(opening: str, first: str, *rest: str) -> Telling:
    """`first` goes on in the paragraph of the opening; empty paragraphs are left out."""
    start = f"{opening} {first}" if first else opening
    return Telling(opening, (start, *(paragraph for paragraph in rest if paragraph)))
