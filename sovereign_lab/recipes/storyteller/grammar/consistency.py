"""Whether a story, of any origin, stays with the hero and the thing that it began with."""

import re
from dataclasses import dataclass

from sovereign_lab.recipes.storyteller.grammar import names
from sovereign_lab.recipes.storyteller.grammar.things import BY_NOUN

_WORD = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)*")
_CAPITALISED = re.compile(r"\b(?!I\b)[A-Z][A-Za-z]*")
# A capital after these opens a sentence or a speech, and need not be a name.
_OPENS_SENTENCE = re.compile(r"(?:^|[.!?\"'\n]|[.!?,]\" )\s*\"?$")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?]\")\s+")
_HE = frozenset(("he", "him", "his", "himself"))
_SHE = frozenset(("she", "her", "hers", "herself"))


@dataclass(frozen=True)
class Consistency:
    """What became of the hero and the thing.

    `hero_at_end`, `object_at_end`: they are named in the last third of the sentences.
    `foreign_names`: names beyond the hero and one helper, or first heard in the last third.
    `foreign_objects`: other things of the grammar, and the same thing with another adjective.
    `wrong_pronouns`: those of the other gender, before anyone but the hero is named.
    """

    hero_at_end: bool
    object_at_end: bool
    foreign_names: tuple[str, ...]
    foreign_objects: tuple[str, ...]
    wrong_pronouns: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return (
            self.hero_at_end
            and self.object_at_end
            and not (self.foreign_names or self.foreign_objects or self.wrong_pronouns)
        )


def consistency(
    story_text: str, hero: str, object: str, pronoun: str | None = None, helper: str | None = None
) -> Consistency:
    """Judges any text against the `hero` and the `object` ("red kite") that its opening names.

    With `pronoun` ("he" or "she") the hero's pronouns are judged as well. The helper is whoever is
    named next, or `helper`, where the caller knows the name.
    """
    sentences = _SENTENCE_END.split(story_text.strip())
    end_at = len(sentences) - max(2, len(sentences) // 3)
    body, end = " ".join(sentences[: max(end_at, 0)]), " ".join(sentences[max(end_at, 0) :])
    noun = object.split()[-1]
    others = [name for name in _names_in(story_text) if name != hero]
    allowed = {helper or (others[0] if others else None)}
    late = set(_names_in(end)) - set(_names_in(body)) - {hero}
    foreign = [name for name in dict.fromkeys(others) if name not in allowed or name in late]
    return Consistency(
        hero_at_end=_has_word(end, hero),
        object_at_end=_has_word(end, noun),
        foreign_names=tuple(foreign),
        foreign_objects=_foreign_objects(story_text, object),
        wrong_pronouns=_wrong_pronouns(story_text, others, pronoun),
    )


def _names_in(text: str) -> list[str]:
    """Names in the order of the text: known ones, and capitals where no sentence begins."""
    found = []
    for match in _CAPITALISED.finditer(text):
        word = match.group()
        before = text[max(0, match.start() - 4) : match.start()]
        if word in names.ALL or not _OPENS_SENTENCE.search(before):
            found.append(word)
    return found


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


def _foreign_objects(text: str, object: str) -> tuple[str, ...]:
    adjective, _, noun = object.rpartition(" ")
    foreign = []
    words = _WORD.findall(text)
    for before, other in zip(["", *words], words, strict=False):
        if other not in BY_NOUN:
            continue
        if other != noun:
            foreign.append(other)
        elif adjective and before != adjective and before in BY_NOUN[noun].adjectives:
            foreign.append(f"{before} {other}")
    return tuple(dict.fromkeys(foreign))


def _wrong_pronouns(text: str, others: list[str], pronoun: str | None) -> tuple[str, ...]:
    if pronoun is None:
        return ()
    alone = re.split(rf"\b{re.escape(others[0])}\b", text, maxsplit=1)[0] if others else text
    wrong = _SHE if pronoun == "he" else _HE
    words = (word.lower() for word in _WORD.findall(alone))
    return tuple(dict.fromkeys(word for word in words if word in wrong))
