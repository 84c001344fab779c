"""A treasure is lost; looking fails because of the place and of the hero, until a friend comes."""

from sovereign_lab.recipes.storyteller.grammar import scenes
from sovereign_lab.recipes.storyteller.grammar.cast import Cast, Needs
from sovereign_lab.recipes.storyteller.grammar.plot import Plot, Telling, telling
from sovereign_lab.recipes.storyteller.grammar.shapes import beat

GONE = beat(
    "{day}, the {thing} was gone.",
    "{day}, {hero} looked for the {thing}, and it was not there.",
    "But {day}, {hero} came home and saw that the {thing} was missing.",
    "{day}, {hero} wanted to {use_the}, but the {noun} was [gone|nowhere to be seen].",
    "{day}, {hero} woke up, stretched, and reached for the {thing}. It was gone.",
    "And then, {day}, the {thing} got lost.",
    "But {day}, something was not as it should be. The {thing} was gone.",
)
CRY = beat(
    '"My {noun}!" cried {hero}. "Where can it be?"',
    '"Oh no," said {hero}. "Where is my {noun}?"',
    '{hero} felt a lump in {his} throat. "I must find it," {he} said.',
    '"I had it yesterday," said {hero}. "It cannot be far."',
    '"I will not rest until I find my {noun}," said {hero}.',
    "{hero} looked at the empty place where it had been and wanted to cry.",
    '"{A_noun} does not walk away by itself," said {hero}.',
    "{hero} looked under the bed. There was dust under the bed, but no {noun}.",
)
BEGIN = beat(
    "{hero} went out to look for it.",
    "{He} began to search at once.",
    "So {hero} set out to find it.",
    "{He} looked left and right, up and down.",
    "{He} looked inside, and then {he} looked outside.",
    "{hero} asked the wind, but the wind said nothing.",
)
NEXT = beat(
    "Then {he} tried another place.",
    "But {hero} did not give up yet.",
    "There was still one more place to look.",
    '"I must look somewhere else," said {hero}.',
    "The search went on.",
    "After that, {he} tried once more.",
)
SAYS_WHAT = beat(
    '"I have lost my {thing}," said {hero}.',
    '"It is my {thing}," said {hero}. "I cannot find it anywhere."',
    '"My {thing} is gone," said {hero}, "and I have looked everywhere."',
    '"I am looking for my {thing}," said {hero}. "It was a present."',
    "{hero} told {friend} all about the {thing}.",
    '"Have you seen {a_thing}?" asked {hero}.',
    '"Without my {noun} I am only half as happy," said {hero}.',
)
THINKING = beat(
    '"Where were you when you last had it?" asked {friend}. They went back there together.',
    '"Let us go back to where you were yesterday," said {friend}.',
    "Then they went along the way that {hero} had gone the day before.",
    '"Four eyes see more than two," said {friend}, and they searched side by side.',
    "{hero} tried to remember the day before. Where had {he} been? Slowly they walked back there.",
    "{friend} looked on the left, and {hero} looked on the right.",
    "Together they began again, from the beginning.",
)
WHY = beat(
    "It had been there all the time.",
    "How often had {hero} walked past that place!",
    '"I was so close," said {hero}, and shook {his} head.',
    "{hero} laughed out loud.",
    "{hero} held the {noun} tight and did a little dance.",
    '"There you are," said {hero} to the {noun}.',
)
END = beat(
    "That evening, {hero} {used_his} again.",
    "[That night|At bedtime], {hero} put the {thing} right beside {his} bed.",
    "{hero} carried the {thing} home as carefully as an egg.",
    "And the {thing}? It was never lost again, or only once.",
    "Then {hero} let {friend} have the {noun} for a whole day, because that is what friends do.",
    "{hero} went home with the {thing}, and the way had never seemed so short.",
    "Now {hero} loved {his} {thing} even more than before.",
)


def tell(cast: Cast) -> Telling:
    opening, echo = scenes.opening_and_echo(cast, scenes.TREASURE)
    habit = cast.tell(*cast.maybe(scenes.HABIT, 0.6))
    gone = cast.tell(GONE, *cast.maybe(CRY, 0.85))
    failures = cast.shuffled(cast.place.search, cast.trait.search)
    tries = cast.tell(
        *cast.maybe(BEGIN, 0.8),
        failures[0],
        *cast.maybe(NEXT, 0.8),
        failures[1],
        *cast.maybe(scenes.GIVING_UP),
    )
    meeting = cast.tell(scenes.MEETING, *cast.maybe(scenes.WHAT_IS_WRONG, 0.9), SAYS_WHAT)
    advice = cast.tell(cast.trait.advice, said=f"said {cast.friend}")
    turn = cast.tell(cast.trait.change, THINKING)
    discovery = f"{scenes.found(cast)} {cast.tell(*cast.maybe(WHY, 0.7))}".strip()
    end = cast.tell(*cast.shuffled(END, echo), *cast.maybe(scenes.TOGETHER, 0.4))
    if cast.chance(0.5):
        return telling(opening, habit, gone, tries, meeting, f"{advice} {turn}", discovery, end)
    return telling(
        opening, habit, f"{gone} {tries}", f"{meeting} {advice}", f"{turn} {discovery}", end
    )


PLOT = Plot("lost", Needs(thing=lambda thing: thing.lost is not None), True, tell)
