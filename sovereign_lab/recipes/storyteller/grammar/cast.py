"""The cast of one story: who, where and what, all of it fitting together, and how it speaks."""

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from sovereign_lab.recipes.storyteller.grammar.kinds import HEROES, KINDS, Kind
from sovereign_lab.recipes.storyteller.grammar.names import BOYS, GIRLS
from sovereign_lab.recipes.storyteller.grammar.places import BY_KEY, Place
from sovereign_lab.recipes.storyteller.grammar.shapes import Beat, a, capital
from sovereign_lab.recipes.storyteller.grammar.things import BLEW, DROPPED, ROLLED, THINGS, Thing
from sovereign_lab.recipes.storyteller.grammar.traits import TRAITS, Manner, Trait

HELD_OUT_PER_MILLE = 50

_PRONOUNS = {
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
}
_GIVERS = ("mother", "father", "grandmother", "grandfather", "aunt", "uncle")
_WEATHER = ("sunny", "grey", "cold", "bright", "misty", "quiet")
_DAYTIME = ("morning", "afternoon", "day")
_ADVISERS = ("toad", "tortoise", "crow", "ram", "goose")
_HERO_LOOKS = ("", "", "little ", "young ", "small ")
_FRIEND_LOOKS = ("kind", "cheerful", "friendly", "quiet")
_BREVITIES = (0.1, 0.4, 0.8, 1.1)
_WORN = ("old", "crumpled", "patched", "rusty", "lucky")
_YOUNG = ("girl", "boy", "puppy", "lamb")
_WENT = {ROLLED: "rolled", BLEW: "blew", DROPPED: "fell", None: "fell"}

T = TypeVar("T")


def held_out(name: str, thing: Thing) -> bool:
    """Whether this name and this thing are kept out of training: about 5 % of all pairs, by hash."""
    return zlib.crc32(f"{name} {thing.noun}".encode()) % 1000 < HELD_OUT_PER_MILLE


@dataclass(frozen=True)
class Needs:
    """What a plot asks of its hero, its helper and its thing."""

    thing: Callable[[Thing], bool] = lambda thing: True
    hands: bool = False  # hero and helper make or mend something
    new: bool = False  # the thing is made in the story, and so it is neither old nor patched


def phrases(thing: Thing, needs: Needs) -> tuple[str, ...]:
    """The thing with each of its adjectives that a plot can use: "red kite"."""
    return tuple(p for p in thing.phrases if not (needs.new and p.split()[0] in _WORN))


def can_have(kind: Kind, thing: Thing, needs: Needs) -> bool:
    """Whether `kind` can carry and use `thing`: a mouse has no umbrella, a goose plays no fiddle."""
    return (
        thing.size <= kind.carries
        and (kind.hands or not (thing.hands or needs.hands))
        and not (kind.bird and thing.not_for_birds)
    )


@cache
def heroes_and_things(needs: Needs) -> tuple[tuple[Kind, tuple[Thing, ...]], ...]:
    """Every kind that can be the hero, with the things it can have."""
    fitting = tuple(thing for thing in THINGS if needs.thing(thing))
    pairs = ((kind, tuple(t for t in fitting if can_have(kind, t, needs))) for kind in HEROES)
    return tuple((kind, things) for kind, things in pairs if things)


@cache
def friends(hero: Kind, place: str, thing: Thing, needs: Needs) -> tuple[Kind, ...]:
    """The kinds that `hero` can meet at `place`; animals keep to themselves, children do not."""
    return tuple(
        kind
        for kind in KINDS
        if place in kind.places
        and kind != hero
        and (hero.human or not kind.human)
        and can_have(kind, thing, needs)
    )


@dataclass(frozen=True)
class Cast:
    """Everything a plot needs: the chosen parts, and the words for every `{slot}`."""

    rng: random.Random
    hero: str
    hero_kind: Kind
    pronoun: str
    friend: str
    friend_kind: Kind
    trait: Trait
    manner: Manner
    place: Place
    thing: Thing
    brevity: float
    slots: dict[str, str]

    def tell(self, *beats: Beat, **more: str) -> str:
        """One sentence shape for each beat, filled in and joined; `more` are extra slots."""
        slots = {**self.slots, **more} if more else self.slots
        return " ".join([capital(self._wording(beat).format_map(slots)) for beat in beats])

    def _wording(self, beat: Beat) -> str:
        shape = self.one_of(beat)
        return shape[0] if len(shape) == 1 else self.one_of(shape)

    def one_of(self, options: Sequence[T]) -> T:
        # Several times faster than Random.choice, and a story takes over fifty of these.
        return options[int(self.rng.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def maybe(self, beat: Beat, probability: float = 0.5) -> tuple[Beat, ...]:
        """The beat, or nothing: `tell(A, *cast.maybe(B), C)`; nothing more often in a brief story."""
        return (beat,) if self.chance(probability * self.brevity) else ()

    def shuffled(self, *beats: Beat) -> list[Beat]:
        return self.rng.sample(beats, len(beats))


def choose_cast(rng: random.Random, needs: Needs, want_held_out: bool) -> Cast:
    """A cast that fits `needs`, of a hero and a thing that are held out, or are not."""
    pairs = heroes_and_things(needs)
    while True:
        hero_kind, things = rng.choice(pairs)
        thing = rng.choice(things)
        pronoun = hero_kind.pronoun or rng.choice(("he", "she"))
        hero = rng.choice(BOYS if pronoun == "he" else GIRLS)
        if held_out(hero, thing) != want_held_out:
            continue
        place = BY_KEY[rng.choice(hero_kind.places)]
        others = friends(hero_kind, place.key, thing, needs)
        if others:
            break
    friend_kind = rng.choice(others)
    # Mostly the other pronoun, so that it is clear who "she" is.
    other = "she" if pronoun == "he" else "he"
    friend_pronoun = friend_kind.pronoun or (other if rng.random() < 0.8 else pronoun)
    friend = hero
    while friend == hero:
        friend = rng.choice(BOYS if friend_pronoun == "he" else GIRLS)
    trait = rng.choice(TRAITS)
    manner = rng.choice(trait.manners)
    brevity = rng.choice(_BREVITIES)
    slots = _slots(rng, hero, hero_kind, pronoun, friend, friend_kind, friend_pronoun)
    slots |= _slots_of_place(rng, place) | _slots_of_thing(rng, thing, needs)
    slots["a_trait_kind"] = a(f"{trait.adjective} {hero_kind.noun}")
    # Slots whose words hold slots themselves.
    for slot, words in _slots_of_use(thing):
        slots[slot] = words.format_map(slots)
    theirs = {"it": f"the {thing.noun}", "his": slots["f_his"]}
    slots["friend_used_the"] = thing.used.format_map(theirs)
    return Cast(
        rng=rng,
        hero=hero,
        hero_kind=hero_kind,
        pronoun=pronoun,
        friend=friend,
        friend_kind=friend_kind,
        trait=trait,
        manner=manner,
        place=place,
        thing=thing,
        brevity=brevity,
        slots=slots,
    )


def _slots(
    rng: random.Random,
    hero: str,
    hero_kind: Kind,
    pronoun: str,
    friend: str,
    friend_kind: Kind,
    friend_pronoun: str,
) -> dict[str, str]:
    """Who: `{he}`, `{He}`, `{his}` are the hero's; `{f_he}`, `{f_his}` the friend's, and so on."""
    slots = {"hero": hero, "home": hero_kind.home}
    slots["hero_the"] = (
        f"{hero}, {a(hero_kind.noun)} of seven"
        if hero_kind.human
        else f"{hero} the {hero_kind.noun}"
    )
    slots["a_kind"] = a(rng.choice(_HERO_LOOKS) + hero_kind.noun)
    slots["friend"] = friend
    child = friend_kind.human and not friend_kind.elder
    slots["friend_the"] = (
        f"{friend} from next door" if child else f"{friend} the {friend_kind.noun}"
    )
    looks = _FRIEND_LOOKS if friend_kind.noun in _YOUNG else ("old", *_FRIEND_LOOKS)
    slots["a_friend"] = a(f"{rng.choice(looks)} {friend_kind.noun}")
    for word, mine in _PRONOUNS[pronoun].items():
        slots |= {word: mine, word.capitalize(): mine.capitalize()}
    for word, theirs in _PRONOUNS[friend_pronoun].items():
        slots |= {f"f_{word}": theirs, f"F_{word}": theirs.capitalize()}
    slots["giver"] = f"{slots['his']} {rng.choice(_GIVERS)}"
    advisers = [kind for kind in _ADVISERS if kind not in (hero_kind.noun, friend_kind.noun)]
    passer_by = rng.choice(advisers)
    return slots | {"a_passer_by": f"an old {passer_by}", "the_passer_by": f"the old {passer_by}"}


def _slots_of_place(rng: random.Random, place: Place) -> dict[str, str]:
    name = rng.choice(place.names)
    spots = rng.sample(place.low, 3)
    high = rng.choice(place.high)
    return {
        "place": name,
        "at_place": f"{place.preposition} {name}",
        "spot": spots[0],
        "other_spot": spots[1],
        "low": spots[2],
        "Low": capital(spots[2]),
        "high": high,
        "High": capital(high),
    }


def _slots_of_thing(rng: random.Random, thing: Thing, needs: Needs) -> dict[str, str]:
    phrase = rng.choice(phrases(thing, needs))
    weather = "windy" if thing.lost == BLEW else rng.choice(_WEATHER)
    return {
        "noun": thing.noun,
        "a_noun": a(thing.noun),
        "A_noun": capital(a(thing.noun)),
        "thing": phrase,
        "a_thing": a(phrase),
        "day": f"one {weather} {rng.choice(_DAYTIME)}",
        "went": _WENT[thing.lost],
    }


def _slots_of_use(thing: Thing) -> Iterator[tuple[str, str]]:
    for slot, words in (("use", thing.use), ("used", thing.used)):
        yield slot, words.replace("{it}", "it")
        yield f"{slot}_the", words.replace("{it}", f"the {thing.noun}")
        yield f"{slot}_his", words.replace("{it}", f"{{his}} {thing.noun}")
    # In the hero's own speech.
    yield "use_my", thing.use.replace("{it}", "it").replace("{his}", "my")
