"""Beats and sentence shapes: how one thing is said in many ways.

A beat is one moment of a story. It is written as a few shapes, of which a story uses one:

    GONE = beat(
        "{day}, the {thing} was gone.",
        "{hero} [looked|searched] for the {thing}, and it was not there.",
    )

`{slots}` are filled from the story's cast; of `[one|another]` one is taken. A shape may hold
several sentences. The first letter is made a capital, so a slot such as `{day}` stays lower case.
"""

import itertools
import re

Shape = tuple[str, ...]  # every wording of one shape, brackets resolved
Beat = tuple[Shape, ...]

_BRACKETS = re.compile(r"\[([^\]]*)\]")


def beat(*shapes: str) -> Beat:
    """A beat of these shapes, with every `[one|another]` spelled out."""
    return tuple(_wordings(shape) for shape in shapes)


def _wordings(shape: str) -> Shape:
    pieces = _BRACKETS.split(shape)  # fixed text at even places, alternatives at odd ones
    options = [piece.split("|") if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return tuple("".join(parts) for parts in itertools.product(*options))


def capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def a(noun: str) -> str:
    """`noun` after its article; for the words of this grammar, spelling decides."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun
