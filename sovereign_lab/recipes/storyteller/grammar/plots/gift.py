"""A birthday present that the hero makes with their own hands, after everything went wrong."""

from sovereign_lab.recipes.storyteller.grammar import scenes
from sovereign_lab.recipes.storyteller.grammar.cast import Cast, Needs
from sovereign_lab.recipes.storyteller.grammar.plot import Plot, Telling, telling
from sovereign_lab.recipes.storyteller.grammar.shapes import beat

BIRTHDAY = beat(
    "{His} friend {friend_the} had wished for {a_thing} all year.",
    "{friend_the} had a birthday soon, and {hero} wanted to give {f_him} {a_thing}.",
    '"I wish I had {a_thing}," {friend_the} had once told {hero}.',
    "{hero} wanted to make {a_thing} for {friend_the}, who was {his} best friend.",
    "Soon it was the birthday of {friend_the}, and {hero} knew what {f_he} wanted, {a_thing}.",
    "{He} had a plan, to give {friend_the} {a_thing} for {f_his} birthday.",
)
NO_MONEY = beat(
    "But {hero} had no money, so {he} had to make it {himself}.",
    "Such a thing cost a lot, and {hero} had only two cents.",
    '"I will make it myself," said {hero}.',
    "It had to be a secret.",
    "There were only three days left.",
    '"It cannot be hard to make {a_noun}," said {hero}.',
)
START = beat(
    "{day}, {hero} shut the door and began.",
    "{day}, {hero} laid out everything that {he} needed and set to work.",
    "{day}, {he} started on the {noun}.",
    '{day}, {hero} hung a note on the door that said, "Do not come in!"',
    "{day}, {hero} set to work.",
    "{day}, there was a knocking and a rustling at {hero}'s house.",
)
NEXT = beat(
    "So {he} began again.",
    "The second try was no better.",
    "Then {he} tried it another way.",
    '"Once more," said {hero}.',
    "On the next day, {he} started from the beginning.",
    "That was the end of the first {noun}. {hero} began a second one.",
)
VISIT = beat(
    'There was a knock. "May I come in?" called {friend}. "No!" cried {hero}, and hid everything under the bed.',
    '{friend} came by. "Are you coming out to play?" {f_he} asked. "I cannot," said {hero}, '
    "and {friend} went away sadly.",
    '"What are you doing in there?" called {friend}. "Nothing," said {hero}.',
    "{friend} looked in at the window, but {hero} pulled the curtain shut.",
    '"Have I done something wrong?" asked {friend} through the door. {hero} bit {his} tongue.',
    "{friend} came to visit, and {hero} threw a cloth over the work just in time.",
)
ADVISER = beat(
    "{giver} looked at what was left of the {noun}.",
    "Then {giver} came in, and {hero} hid {his} face.",
    "In the evening, {giver} sat down beside {him}.",
    '"What is this going to be?" asked {giver}. "{A_noun}," said {hero} in a small voice.',
    "{hero} went to {giver} with the pieces.",
    '"I have nothing for {friend}," {hero} told {giver}, "and tomorrow is the birthday."',
)
HOW = beat(
    "Then {giver} showed {him} how to begin.",
    "Then {giver} lit the lamp and cleared the table.",
    "They sat down side by side and began again.",
    "And {giver} found some better tools in the cupboard.",
    "They made a pot of tea, and then they set to work.",
    "{giver} showed {him} how to do it, once, slowly.",
)
DONE = beat(
    "At midnight it was done. It was {a_thing}, and it was beautiful.",
    "And there it was, {a_thing}. It was a little crooked, but you had to love it.",
    "When the sun came up, {a_thing} stood on the table.",
    "It was not perfect, but it was {a_thing}, and {hero} had made it.",
    "{hero} stepped back to look. It was a real {thing}!",
    "At last, {hero} held up {a_thing} and could hardly believe it.",
)
GIVES = beat(
    'On the birthday, {hero} held out the {thing}. "I made it," {he} said.',
    '"For you," said {hero}, and gave {friend} the {thing}.',
    "{friend} took off the wrapping, and there was the {thing}.",
    "{hero} put the {thing} at the door, knocked, and hid behind a bush. {friend} came out and cried with joy.",
    '"So that was your secret!" said {friend}, when {f_he} saw the {thing}.',
    "{hero}'s heart beat fast when {friend} unwrapped the {thing}.",
)
LOVES = beat(
    '"It is the best {noun} in the world," said {friend}.',
    '"You remembered!" said {friend}.',
    "{friend} said nothing at all, but {f_his} eyes shone.",
    '"There is only one like it," said {friend}. "And it is mine."',
    "{friend} laughed and cried at the same time.",
    '"And I thought that you did not like me any more," said {friend}.',
)
END = beat(
    "That day {friend} {friend_used_the}, and {hero} stood by and was proud.",
    "One corner of the {thing} was a little crooked. {friend} liked that corner best, because it was so like {hero}.",
    '{friend} still has the {thing}. And when someone asks who made it, {f_he} says, "{hero} did."',
    "There were bigger presents that day, but the {thing} from {hero} was the one that {friend} loved best.",
    "And the next time {hero} made {a_noun}, it took only one day.",
    '"Will you show me how to make {a_noun}?" asked {friend}. And {hero} did.',
)


def tell(cast: Cast) -> Telling:
    stuff = cast.thing.stuff
    assert stuff is not None  # what is homemade is made of something
    opening, echo = scenes.opening_and_echo(cast, BIRTHDAY)
    first = cast.tell(*cast.maybe(NO_MONEY, 0.8))
    failures = cast.shuffled(stuff.make_fails, scenes.making_goes_wrong(cast))
    tries = cast.tell(START, failures[0], *cast.maybe(NEXT, 0.9), failures[1])
    visit = cast.tell(*cast.maybe(VISIT, 0.6), *cast.maybe(scenes.GIVING_UP, 0.4))
    advice = cast.tell(
        ADVISER, cast.trait.advice, *cast.maybe(HOW, 0.8), said=f"said {cast.slots['giver']}"
    )
    making = cast.tell(cast.trait.change, stuff.made, DONE)
    giving = cast.tell(GIVES, *cast.maybe(LOVES, 0.9))
    end = cast.tell(*cast.shuffled(END, echo))
    if cast.chance(0.5):
        return telling(opening, first, tries, visit, advice, making, giving, end)
    return telling(
        opening, first, f"{tries} {visit}".strip(), f"{advice} {making}", f"{giving} {end}"
    )


PLOT = Plot("gift", Needs(thing=lambda thing: thing.homemade, hands=True, new=True), True, tell)
