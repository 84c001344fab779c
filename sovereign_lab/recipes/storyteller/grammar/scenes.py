"""Beats that many plots share: how a hero is introduced, how a friend comes along, how days pass."""

from sovereign_lab.recipes.storyteller.grammar.cast import Cast
from sovereign_lab.recipes.storyteller.grammar.shapes import Beat, beat
from sovereign_lab.recipes.storyteller.grammar.things import BLEW

HERO = beat(
    "{hero} was {a_kind} who lived {at_place}.",
    "Once there was {a_kind} called {hero}, who lived {at_place}.",
    "{at_place} lived {a_kind} named {hero}.",
    "There was once {a_kind} whose name was {hero}.",
    "There was {a_kind}, {hero}, who lived in a {home} {at_place}.",
    "Everyone {at_place} knew {hero_the}.",
    "[Not long ago|One spring], {a_kind} called {hero} came to live {at_place}.",
    "In a {home} {at_place} lived {a_kind} called {hero}.",
    "[Once upon a time|Long ago], {a_kind} named {hero} lived {at_place}.",
    "This is the story of {hero}, {a_kind} who lived {at_place}.",
)
HERO_AND_TRAIT = beat(
    "{hero} was {a_trait_kind} who lived {at_place}.",
    "Once there was {a_trait_kind} called {hero}.",
    "{at_place} lived {a_trait_kind} named {hero}.",
    "There was once {a_trait_kind} whose name was {hero}.",
    "In a {home} {at_place} lived {a_trait_kind} called {hero}.",
    "[Once upon a time|Long ago], {a_trait_kind} named {hero} lived {at_place}.",
    "This is the story of {hero}, {a_trait_kind}.",
)
TREASURE = beat(
    "The thing {he} loved best was {a_thing}.",
    "{hero} had {a_thing}, and {he} would not be without it.",
    "{His} greatest treasure was {a_thing}, a present from {giver}.",
    "On {his} birthday, {giver} had given {him} {a_thing}.",
    "{He} had {a_thing} that {giver} had given {him}.",
    "{He} had only one treasure, and that was {a_thing}.",
    "{He} did not own much, but {he} had {a_thing}.",
    "Of all the things {he} had, {he} loved {his} {thing} most.",
)
HABIT = beat(
    "[Every day|Every week|Whenever {he} could], {he} {used}.",
    "Nothing was better than to {use}.",
    "When there was time, {he} {used}.",
    "{He} liked to {use}, and {he} never got tired of that.",
    "{He} would not have given it away for all the gold in the world.",
    "{He} took good care of it.",
)
MEETING = beat(
    "Just then, {a_friend} called {friend} came by.",
    "On the way home, {hero} met {a_friend} named {friend}.",
    "Somebody coughed. It was {friend_the}.",
    "{a_friend} called {friend} had been watching from nearby.",
    "Then {hero} heard steps. It was {friend}, {a_friend}.",
    "Not far away, {a_friend} named {friend} was having a rest.",
    "Along came {friend}, {a_friend} whom {hero} knew well.",
    "{friend_the} had heard the noise and came to see.",
)
WHAT_IS_WRONG = beat(
    '"What is the matter?" asked {friend}.',
    '"You look as if you had swallowed a rain cloud," said {friend}.',
    '"What is wrong?" {friend} asked, and sat down beside {hero}.',
    '"Can I help you?" asked {friend}.',
    '"Is something wrong, {hero}?" asked {friend}.',
    '"That was a big sigh," said {friend}. "What is it about?"',
)
GIVING_UP = beat(
    "{hero} sat down and sighed.",
    '"It is no use," said {hero}.',
    "A tear ran down {hero}'s nose.",
    "{hero} felt very small.",
    '"I will never do it," said {hero}, and {he} put {his} head down.',
    "{hero} was tired, and it was getting late.",
    "By now {hero} was close to tears.",
)
TOGETHER = beat(
    "After that, {hero} and {friend} were friends.",
    "{hero} and {friend} have been friends ever since.",
    "From that day on, {friend} came to visit every week.",
    "{hero} thanked {friend} and gave {f_him} a big hug.",
    '"Thank you, {friend}," said {hero}. "Come and see me soon." And {friend} did.',
    "{hero} shared {his} supper with {friend}, and they talked until the moon rose.",
    '"I could not have done it without you," said {hero}. {friend} only smiled.',
)


def opening_and_echo(cast: Cast, about: Beat) -> tuple[str, Beat]:
    """Two or three sentences that name hero, trait and, in `about`, the thing; and the trait's end."""
    if cast.chance(0.25):
        return cast.tell(HERO_AND_TRAIT, about), cast.trait.after
    echo = cast.manner.echo if cast.chance(0.7) else cast.trait.after
    return cast.tell(HERO, cast.manner.says, about), echo


def making_goes_wrong(cast: Cast) -> Beat:
    """The trait's ways to spoil handiwork, without the glue where nothing is glued."""
    stuff = cast.thing.stuff
    glued = stuff is not None and any("glue" in w for shape in stuff.mended for w in shape)
    spoiled = cast.trait.make
    return spoiled if glued else tuple(s for s in spoiled if "glue" not in s[0])


FOUND_LOW = beat(
    "And there, {low}, lay the {thing}!",
    "{hero} bent down. {Low}, there was the {thing}!",
    "Something caught the light {low}. It was the {thing}!",
    "They looked {low}, and there it was, the {thing}!",
    '"Look!" cried {friend}. {Low} lay the {thing}.',
    "And where was the {thing}? It lay {low}, as if it had been waiting.",
)
FOUND_HIGH = beat(
    "And there, {high}, hung the {thing}!",
    "{friend} looked up and pointed. {High} hung the {thing}!",
    "Something moved {high}. It was the {thing}!",
    '"Look up!" cried {friend}. {High}, there was the {thing}.',
    "For the first time {hero} looked up. {High} hung the {thing}!",
    "And where was the {thing}? It hung {high} and waved to them.",
)
BRING_DOWN = beat(
    "With a long stick, they got it down.",
    "The next gust of wind blew it down, right in front of {hero}.",
    "{friend} gave a good push, and down it came.",
    "{hero} reached up, higher and higher, and got it.",
    "It took a while, but together they got it down.",
    "A little bird gave it a push, and it sailed down to {hero}.",
)


def found(cast: Cast) -> str:
    """The lost thing is found where such a thing ends up: low, or high when the wind took it."""
    if cast.thing.lost == BLEW:
        return cast.tell(FOUND_HIGH, BRING_DOWN)
    return cast.tell(FOUND_LOW)
