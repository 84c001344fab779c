"""The hero breaks something that belongs to the friend, and mends it only after telling the truth."""

from sovereign_lab.recipes.storyteller.grammar import scenes
from sovereign_lab.recipes.storyteller.grammar.cast import Cast, Needs
from sovereign_lab.recipes.storyteller.grammar.plot import Plot, Telling, telling
from sovereign_lab.recipes.storyteller.grammar.shapes import beat

BORROWED = beat(
    "{His} friend {friend_the} had lent {him} {a_thing}.",
    "{friend_the} had {a_thing}, and now and then {hero} was allowed to borrow it.",
    "{day}, {friend_the} let {hero} borrow {a_thing}.",
    '"You may borrow my {thing}," said {friend_the} to {hero} {day}.',
    "{friend}, {a_friend}, was very proud of {a_thing}, but {f_he} lent it to {hero}.",
    "{friend_the} had asked {hero} to look after {a_thing}.",
)
VALUE = beat(
    '"Please be careful with it," {friend} had said.',
    "{friend} loved that {noun}, because it had been a present.",
    '"I will be careful," {hero} had said.',
    "There was not another one like it in the whole world.",
    "It had been in {friend}'s family for a long time.",
    "Nobody could have been more careful with it than {friend}.",
)
USING = beat(
    "{hero} only wanted to {use}, just once.",
    "All went well, until {hero} turned around too fast.",
    "{hero} held it up to look at it in the sun.",
    "{hero} wanted to show it to the whole world.",
    "For a while, {hero} was very careful with it. And then it happened.",
    "{hero} did not mean any harm.",
)
OH_NO = beat(
    '"Oh no," whispered {hero}. "What will {friend} say?"',
    "{hero} turned hot and cold.",
    '"Maybe nobody will see," thought {hero}.',
    "{hero} looked around. Nobody had seen it.",
    '"I must mend it before {friend} comes," said {hero}.',
    "For a moment, {hero} did not breathe.",
)
ALONE = beat(
    "{hero} took it home to mend it in secret.",
    "{hero} covered it with leaves and took it home.",
    '"I can mend it," said {hero}. "Nobody has to know."',
    "So {he} shut the door and set to work.",
    "Mending it could not be so hard, {he} thought.",
    "{hero} sat down in a corner and began.",
)
NEXT = beat(
    "Then {he} tried again.",
    "The second try was no better.",
    '"Once more," said {hero}.',
    "So {he} tried something else.",
    "That was not all.",
    "And it got worse.",
)
ADVISER = beat(
    "{giver} found {him} there and saw the broken {noun}.",
    "Then {giver} came in and looked at the {noun}, and then at {hero}.",
    "In the evening, {he} told {giver} everything.",
    "At last, {he} went to {giver} and held out the {noun}.",
    "{giver} heard {him} sigh and came to look.",
    "That night {hero} could not sleep, so {he} told {giver} about it.",
)
TRUTH = beat(
    '"A thing that is broken can be mended," said {giver}. "But first you have to say it."',
    '"A secret gets heavier every day," said {giver}. "Tell {friend}."',
    '"Does {friend} know?" asked {giver}. "No? Then that is where you must begin."',
    '"You cannot mend it with a lie," said {giver}.',
    '"It is hard to say sorry," said {giver}, "but only for as long as it takes to say it."',
    '"I broke many things when I was small," said {giver}. "I always told, in the end."',
)
CONFESSION = beat(
    '{hero} went to {friend}. "I broke your {noun}," {he} said. "I am so sorry."',
    '"Something bad has happened," {hero} told {friend}. "Your {noun} is broken, and I did it."',
    "{hero} stood before {friend} and told {f_him} the whole story. {He} left nothing out.",
    '{hero}\'s heart beat like mad. "{friend}," {he} said, "it was me. I broke it."',
    "{hero} held out the broken {noun}, and for a while {he} could not speak. Then {he} said sorry.",
    '"Please do not be angry," said {hero} to {friend}. "I broke your {noun}, and I hid it."',
)
FORGIVEN = beat(
    '{friend} was sad, but not for long. "Let us mend it together," {f_he} said.',
    '"Thank you for telling me," said {friend}. "I know how to mend it. Come and help."',
    '"Oh, my poor {noun}," said {friend}. Then {f_he} looked at {hero}. "Oh, my poor {hero}," {f_he} said.',
    '{friend} was quiet for a moment. "I broke it once myself," {f_he} said. "Shall we mend it?"',
    '"{A_noun} is only {a_noun}," said {friend}. "You are my friend."',
    '"I wish you had told me at once," said {friend}. "But come, there are two of us now."',
)
END = beat(
    "The {thing} was almost as good as new. Only {trace} showed where it had been broken.",
    "If you look at the {thing} today, you can see {trace}. {friend} says that is the best part of it.",
    'Only {trace} was left. "Now it is even more beautiful," said {friend}, looking at the {thing}.',
    "There was {trace} on the {thing} ever after, and whenever {hero} saw it, {he} had to smile.",
    '"This will always make me think of you," said {friend}, and pointed at the {noun}. There was {trace} on it.',
    "On the {noun} there was now {trace}. They were both very proud of it.",
)
LAST = beat(
    "{hero} never kept a secret like that again.",
    "And the next day, {friend} lent {hero} the {noun} again.",
    "{hero}'s heart was as light as a leaf.",
    '"May I borrow it again?" asked {hero}. "Of course," said {friend}.',
    "That night, {hero} slept like a stone.",
    "And whenever {friend} {friend_used_the}, {hero} was there too.",
    "{hero} still borrowed things after that, but when something broke, {he} said so.",
)


def tell(cast: Cast) -> Telling:
    stuff = cast.thing.stuff
    assert stuff is not None  # PLOT's needs say so
    opening, _ = scenes.opening_and_echo(cast, BORROWED)
    trace = cast.one_of(cast.one_of(stuff.trace))
    accident = cast.tell(*cast.maybe(USING, 0.9), stuff.breaks, *cast.maybe(OH_NO, 0.9))
    failures = cast.shuffled(stuff.mend_fails, scenes.making_goes_wrong(cast))
    tries = cast.tell(
        ALONE, failures[0], *cast.maybe(NEXT, 0.9), failures[1], *cast.maybe(scenes.GIVING_UP, 0.4)
    )
    truth = cast.tell(ADVISER, TRUTH)
    together = cast.tell(CONFESSION, FORGIVEN, stuff.mended)
    end = cast.tell(END, LAST, trace=trace)
    value = cast.tell(*cast.maybe(VALUE, 0.7))
    if cast.chance(0.5):
        return telling(opening, value, accident, tries, truth, together, end)
    return telling(opening, value, f"{accident} {tries}", truth, f"{together} {end}")


PLOT = Plot("mend", Needs(thing=lambda thing: thing.stuff is not None, hands=True), True, tell)
