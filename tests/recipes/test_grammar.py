"""Thousands of stories: well-formed, distinct, fitting together, and true to their hero to the end."""

import random
import re
import time
from collections import Counter
from functools import cache
from types import ModuleType

import pytest

from sovereign_lab.recipes.storyteller.grammar import (
    Story,
    combinations,
    consistency,
    names,
    scenes,
    write_story,
)
from sovereign_lab.recipes.storyteller.grammar.cast import held_out
from sovereign_lab.recipes.storyteller.grammar.kinds import HEROES, KINDS
from sovereign_lab.recipes.storyteller.grammar.places import BY_KEY, PLACES
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
from sovereign_lab.recipes.storyteller.grammar.shapes import a, beat
from sovereign_lab.recipes.storyteller.grammar.story import PLOTS, WORDS
from sovereign_lab.recipes.storyteller.grammar.things import BY_NOUN, THINGS
from sovereign_lab.recipes.storyteller.grammar.traits import TRAITS

SEEDS = 20_000
KIND = {kind.noun: kind for kind in KINDS}
PLOT_MODULES = (contest, fear, gift, lost, mend, promise, quarrel, stranger, wish)


@cache
def stories() -> tuple[Story, ...]:
    return tuple(write_story(random.Random(seed)) for seed in range(SEEDS))


@cache
def held_out_stories() -> tuple[Story, ...]:
    return tuple(write_story(random.Random(seed), held_out=True) for seed in range(2_000))


def thing_of(story: Story) -> str:
    return story.object.split()[-1]


def test_the_same_seed_tells_the_same_story() -> None:
    assert write_story(random.Random(7)) == write_story(random.Random(7))


def test_every_story_is_another() -> None:
    assert len({story.text for story in stories()}) == SEEDS


def test_even_the_last_paragraphs_are_mostly_new() -> None:
    endings = {story.text.rsplit("\n", 1)[1] for story in stories()}
    assert len(endings) > 0.97 * SEEDS


def test_there_are_tens_of_millions_of_casts_before_any_wording() -> None:
    assert combinations() > 10_000_000


def test_every_part_of_the_world_is_used() -> None:
    assert {story.plot for story in stories()} == {plot.name for plot in PLOTS}
    assert {story.hero_kind for story in stories()} == {kind.noun for kind in HEROES}
    assert {story.helper_kind for story in stories()} == {kind.noun for kind in KINDS}
    assert {thing_of(story) for story in stories()} == {thing.noun for thing in THINGS}
    assert {story.place for story in stories()} == {name for p in PLACES for name in p.names}
    assert {story.trait for story in stories()} == {t.adjective for t in TRAITS} | {None}
    assert {story.hero for story in stories()} == names.ALL


def test_no_plot_dominates() -> None:
    counts = Counter(story.plot for story in stories())
    assert min(counts.values()) > 0.5 * SEEDS / len(PLOTS)
    assert max(counts.values()) < 1.5 * SEEDS / len(PLOTS)


def test_lengths() -> None:
    lengths = [len(story.text.split()) for story in stories()]
    assert all(length in WORDS for length in lengths)
    assert max(lengths) > 1.5 * min(lengths)


def test_text_is_clean() -> None:
    for story in stories():
        text = story.text
        assert text.isascii()
        assert not re.search(r"  |\n\n|\n | \n|^\s|\s$|[{}\[\]|]| [,.!?]|,,", text), text
        for paragraph in text.split("\n"):
            assert paragraph.count('"') % 2 == 0, paragraph
            assert re.search(r"[.!?]\"?$", paragraph), paragraph


def test_sentences_begin_with_capitals() -> None:
    for story in stories():
        for paragraph in story.text.split("\n"):
            # After an end mark inside quotes, 'said Ben' may follow in lower case.
            for sentence in re.split(r"(?<=[.!?]) ", paragraph):
                assert re.match(r'"?[A-Z]', sentence), sentence


def test_no_capitals_inside_sentences_but_names() -> None:
    for story in stories():
        inside = re.findall(r"(?<=[a-z,;] )[A-Z][a-z]+", story.text)
        assert set(inside) <= {story.hero, story.helper, "I"}, story.text


def test_a_and_an() -> None:
    for story in stories():
        wrong = re.findall(
            r"\b(?:a [aeiou]\w*|an [^aeiouh\W]\w*|a an?|an? the)\b", story.text, re.I
        )
        assert not wrong, (wrong, story.text)


def test_words_are_not_doubled() -> None:
    allowed = {"had", "that"}
    for story in stories():
        for word in re.findall(r"\b(\w+) \1\b", story.text):
            assert word in allowed or f"{word} {word}, {word}" in story.text, (word, story.text)


def test_the_opening_names_hero_and_thing_in_up_to_three_sentences() -> None:
    for story in stories():
        assert story.text.startswith(story.opening)
        assert story.hero in story.opening and story.object in story.opening
        # What is said inside quotes is part of its sentence.
        bare = re.sub(r'"[^"]*"', "speech", story.opening)
        assert 1 <= len(re.findall(r"[.!?](?: |$)", bare)) <= 3, story.opening


def test_every_story_is_consistent() -> None:
    for story in (*stories()[:6_000], *held_out_stories()):
        verdict = consistency(story.text, story.hero, story.object, story.pronoun)
        assert verdict.holds, (verdict, story.text)
        assert set(re.findall(r"[A-Z][a-z]+", story.text)) & names.ALL == {story.hero, story.helper}


def test_held_out_pairs_stay_out() -> None:
    def is_held_out(story: Story) -> bool:
        return held_out(story.hero, BY_NOUN[thing_of(story)])

    assert not any(map(is_held_out, stories()))
    assert all(map(is_held_out, held_out_stories()))
    out = [held_out(name, thing) for name in names.ALL for thing in THINGS]
    assert 0.04 < sum(out) / len(out) < 0.06
    assert {story.plot for story in held_out_stories()} == {plot.name for plot in PLOTS}


def test_heroes_and_helpers_fit_place_and_thing() -> None:
    place_of = {name: place.key for place in PLACES for name in place.names}
    for story in stories():
        hero, helper, thing = (
            KIND[story.hero_kind],
            KIND[story.helper_kind],
            BY_NOUN[thing_of(story)],
        )
        assert place_of[story.place] in hero.places and place_of[story.place] in helper.places
        assert hero.carries >= thing.size
        assert hero.hands or not thing.hands
        assert hero.human or not helper.human
        assert story.pronoun == (hero.pronoun or story.pronoun)
        if story.plot in ("gift", "mend", "wish"):
            assert hero.hands


def test_the_world_is_well_formed() -> None:
    assert all(place in BY_KEY for kind in KINDS for place in kind.places)
    assert not set(names.BOYS) & set(names.GIRLS)
    assert len(names.ALL) > 250
    assert len(BY_NOUN) == len(THINGS)
    assert set(BY_NOUN) >= stranger.NOUNS
    for thing in THINGS:
        assert "{it}" in thing.use and "{it}" in thing.used
        assert not thing.homemade or (thing.stuff is not None and thing.stuff.made)


def shared_beats(module: ModuleType) -> list[tuple[str, int]]:
    """(name, number of shapes) of the beats that a module names."""
    return [
        (name, len(value))
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, tuple) and isinstance(value[0], tuple)
    ]


@pytest.mark.parametrize("module", [scenes, *PLOT_MODULES], ids=lambda m: m.__name__.split(".")[-1])
def test_every_beat_has_six_shapes_or_more(module: ModuleType) -> None:
    beats = shared_beats(module)
    assert beats
    assert all(shapes >= 6 for _, shapes in beats), beats


def test_speed() -> None:
    rng = random.Random(3)
    start = time.process_time()
    for _ in range(1_000):
        write_story(rng)
    # Thousands a second where nothing else runs; the bound allows for a busy machine.
    assert 1_000 / (time.process_time() - start) > 1_000


def test_brackets_are_spelled_out() -> None:
    assert beat("{hero} [ran|hopped] [home|away].") == (
        ("{hero} ran home.", "{hero} ran away.", "{hero} hopped home.", "{hero} hopped away."),
    )


def test_articles() -> None:
    assert a("fox") == "a fox"
    assert a("old fox") == "an old fox"


TALE = (
    "Nell was a mouse who lived by the old mill. She had a red kite. "
    "One day, the kite was gone. Nell looked and looked. "
    "Then she met Otto the badger. He had seen it in a tree. "
    "Nell climbed up and got the red kite. That night, Nell slept well."
)


def test_consistency_accepts_what_holds() -> None:
    assert consistency(TALE, "Nell", "red kite", "she").holds
    assert consistency(TALE, "Nell", "red kite", "she", helper="Otto").holds


def test_consistency_sees_the_hero_change() -> None:
    verdict = consistency(
        TALE.replace("Nell climbed", "Tess climbed").replace("Nell slept", "Tess slept"),
        "Nell",
        "red kite",
    )
    assert not verdict.hero_at_end and verdict.foreign_names == ("Tess",)


def test_consistency_sees_the_thing_change() -> None:
    verdict = consistency(
        TALE.replace("got the red kite", "got the silver bell"), "Nell", "red kite"
    )
    assert not verdict.object_at_end and verdict.foreign_objects == ("bell",)


def test_consistency_sees_another_adjective() -> None:
    verdict = consistency(TALE.replace("got the red", "got the blue"), "Nell", "red kite")
    assert verdict.foreign_objects == ("blue kite",) and not verdict.holds


def test_consistency_sees_names_that_are_no_names() -> None:
    verdict = consistency(TALE.replace("and got", "and Blork got"), "Nell", "red kite")
    assert verdict.foreign_names == ("Blork",)


def test_consistency_sees_wrong_pronouns_while_the_hero_is_alone() -> None:
    verdict = consistency(TALE.replace("She had", "He had"), "Nell", "red kite", "she")
    assert verdict.wrong_pronouns == ("he",)
    assert consistency(TALE.replace("She had", "He had"), "Nell", "red kite").holds


@pytest.mark.parametrize("text", ["", "Nell.", "no names at all", '"', "Nell had a red kite"])
def test_consistency_takes_any_text(text: str) -> None:
    assert isinstance(consistency(text, "Nell", "red kite", "she").holds, bool)
