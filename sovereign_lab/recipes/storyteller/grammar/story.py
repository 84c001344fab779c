"""Writing one story, and counting how many there are."""

import random
from dataclasses import dataclass

from sovereign_lab.recipes.storyteller.grammar.cast import (
    choose_cast,
    friends,
    heroes_and_things,
    phrases,
)
from sovereign_lab.recipes.storyteller.grammar.names import BOYS, GIRLS
from sovereign_lab.recipes.storyteller.grammar.places import BY_KEY
from sovereign_lab.recipes.storyteller.grammar.plots import (
    contest,
    fear,
    gift,
    lost,
    mend,
    promise,
    quarrel,
    stranger,
    wish,
)
from sovereign_lab.recipes.storyteller.grammar.traits import TRAITS

PLOTS = (
    lost.PLOT,
    wish.PLOT,
    mend.PLOT,
    fear.PLOT,
    promise.PLOT,
    stranger.PLOT,
    contest.PLOT,
    gift.PLOT,
    quarrel.PLOT,
)
WORDS = range(60, 251)


@dataclass(frozen=True)
class Story:
    """A story and what is in it.

    `text`: WORDS words in paragraphs that one newline parts, ASCII. `opening`: its first sentences,
    which name `hero` and `object`. `object` is the thing as it stands in the text ("red kite").
    `plot`, `trait` ("hasty"; None where the plot turns on something else), `hero_kind` and
    `helper_kind` ("fox") tell which parts were chosen.
    """

    text: str
    opening: str
    plot: str
    hero: str
    hero_kind: str
    pronoun: str
    trait: str | None
    helper: str
    helper_kind: str
    object: str
    place: str


def write_story(rng: random.Random, held_out: bool = False) -> Story:
    """The next story from `rng`: the same state of `rng`, the same story.

    About 5 % of the pairs of a hero's name and a thing are held out: they come only with
    `held_out`, and then only they come.
    """
    while True:
        plot = rng.choice(PLOTS)
        cast = choose_cast(rng, plot.needs, held_out)
        told = plot.tell(cast)
        text = "\n".join(told.paragraphs)
        if len(text.split()) in WORDS:
            break
    return Story(
        text=text,
        opening=told.opening,
        plot=plot.name,
        hero=cast.hero,
        hero_kind=cast.hero_kind.noun,
        pronoun=cast.pronoun,
        trait=cast.trait.adjective if plot.shows_trait else None,
        helper=cast.friend,
        helper_kind=cast.friend_kind.noun,
        object=cast.slots["thing"],
        place=cast.slots["place"],
    )


def combinations() -> int:
    """How many casts there are: plot, hero, trait, place, thing, helper's kind; no wording counted.

    The helper's name (some 150 more for each) is not counted either, nor is the held-out split
    taken off.
    """
    count = 0
    for plot in PLOTS:
        traits = len(TRAITS) if plot.shows_trait else 1
        for kind, things in heroes_and_things(plot.needs):
            named = {"he": len(BOYS), "she": len(GIRLS), None: len(BOYS) + len(GIRLS)}[kind.pronoun]
            for thing in things:
                for place in kind.places:
                    met = len(friends(kind, place, thing, plot.needs))
                    settings = len(BY_KEY[place].names) * len(phrases(thing, plot.needs)) * met
                    count += named * traits * settings
    return count
