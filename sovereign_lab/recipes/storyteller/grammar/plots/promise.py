"""The hero has promised to bring the friend something before dark, and the way is long."""

from sovereign_lab.recipes.storyteller.grammar import scenes
from sovereign_lab.recipes.storyteller.grammar.cast import Cast, Needs
from sovereign_lab.recipes.storyteller.grammar.plot import Plot, Telling, telling
from sovereign_lab.recipes.storyteller.grammar.shapes import beat

PROMISED = beat(
    '"Tomorrow I will bring you {a_thing}," {hero} had told {friend_the}.',
    "{He} had promised to bring {a_thing} to {friend_the}.",
    "{friend_the} was ill, and {hero} had promised to bring {f_him} {a_thing}.",
    "{friend_the} had a birthday, and {hero} had promised {f_him} {a_thing}.",
    "{He} had borrowed {a_thing} from {friend_the}, and {he} had promised to bring it back.",
    "{hero} had given {his} word to bring {a_thing} to {friend_the}.",
)
WHEN = beat(
    '"Before the sun goes down," {he} had said. "I promise."',
    "It had to be there before dark.",
    '"You can count on me," {he} had said.',
    '"I will believe it when I see it," {friend} had said.',
    "And a promise is a promise.",
    "{friend} lived a long way off.",
)
SET_OFF = beat(
    "{day}, {hero} set out with the {thing}.",
    "{day}, {hero} took the {thing} and shut the door behind {him}.",
    "{hero} wrapped up the {thing} and went on {his} way.",
    "So, {day}, {hero} took the {thing} and started to walk.",
    "{day}, it was time to go. {hero} picked up the {thing} and left.",
    "{day}, {hero} said goodbye to {giver} and took the {thing} along.",
)
NEXT = beat(
    "Then {he} went on.",
    "But {hero} had promised, so {he} went on.",
    "The way was still long.",
    "The sun moved across the sky.",
    "By then it was past noon.",
    "After that, {he} walked faster.",
)
TEMPTED = beat(
    'Some children called, "Come and play!" But {hero} shook {his} head.',
    "It began to rain, and {hero} hid the {noun} to keep it dry.",
    'A peddler offered {hero} ten sweet buns for the {noun}. "It is promised," said {hero}.',
    "It would have been so easy to turn around and go home.",
    '"I could go tomorrow," thought {hero}. "But I said today."',
    "{hero} looked at the {noun}. It would have been nice to keep it.",
)
LOW_SUN = beat(
    "Now the sun was low, and {hero} was still far away.",
    "The shadows were getting long, and {hero} wanted to cry.",
    '"I will never be there in time," said {hero}.',
    "Already the first bats were flying, and {hero} did not know the way.",
    "{hero} sat down on a stone, with the {noun} in front of {him}.",
    "The sun was going down, and {his} feet hurt.",
)
PASSER_BY = beat(
    "{a_passer_by} was sitting by the path. {hero} told {the_passer_by} about the promise.",
    "{a_passer_by} looked out of the grass and asked what was wrong. {hero} told the whole story.",
    'Then {a_passer_by} came along. "Is it far?" asked {hero}. "Not for those who keep their word."',
    '"Where are you going with that {noun}?" asked {a_passer_by}. "To {friend}," said {hero}, "but it is so far."',
    "There {he} met {a_passer_by}, who knew every path.",
    '"You look lost," said {a_passer_by}. {hero} nodded, and told about the promise.',
)
SHOWS_WAY = beat(
    "{the_passer_by} pointed out a path that {hero} had not seen.",
    "Then {the_passer_by} showed {him} a better way.",
    '"Now go past the big rock, and then always to the left," said {the_passer_by}.',
    '"It is not as far as you think," said {the_passer_by}.',
    "And {the_passer_by} went along as far as the next corner.",
    '"You can still do it," said {the_passer_by}.',
)
LAST_STRETCH = beat(
    "One more bend, one more bridge, and there was a light in a window.",
    "The old path led through the grass and over a stile, straight to the door.",
    "The sun touched the edge of the world. And there was the house!",
    "Left, right, left, right went {his} feet, until {he} saw smoke above the trees.",
    "{hero} did not stop again, and the last part of the way went like the wind.",
    "Just as the first light came on in the sky, {hero} knocked at the door.",
)
ARRIVAL = beat(
    '{friend} opened the door. "You came!" {f_he} said.',
    '"I thought that you had forgotten," said {friend}. "I promised," said {hero}.',
    '{friend} was standing at the gate. "I knew that you would come," {f_he} said.',
    '"Am I too late?" asked {hero}. "You are just in time," said {friend}.',
    "{friend} had been looking out of the window all day. How {f_he} smiled!",
    '"Here is your {thing}," said {hero}, out of breath. "I promised."',
)
THANKS = beat(
    "{friend} took the {thing} and held it close.",
    "{friend} made hot soup, and {hero} told {f_him} about the journey.",
    '{friend} gave {hero} a hug. "{A_noun} is good," {f_he} said, "but a friend who keeps a promise is better."',
    "{friend} turned the {noun} this way and that, and laughed with joy.",
    "{friend} could hardly believe that {hero} had walked all that way.",
    "{friend} put the {noun} in the best place in the house.",
)
END = beat(
    "And every time {friend} looked at the {thing}, {f_he} thought of {hero}, who kept {his} word.",
    "The next morning, {friend} {friend_used_the}, and {hero} sat beside {f_him}.",
    "{hero} was tired when {he} went home without the {thing}, but {he} sang all the way.",
    "Years later, {friend} still showed everyone the {thing}. "
    '"{hero} promised it," {f_he} said, "and {hero} brought it."',
    "And {hero}? {He} had no {noun} to carry now, and the way home was short.",
    "When {hero} made a promise after that, nobody doubted it. They all knew the story of the {thing}.",
)


def tell(cast: Cast) -> Telling:
    opening, echo = scenes.opening_and_echo(cast, PROMISED)
    when = cast.tell(*cast.maybe(WHEN, 0.8))
    start = cast.tell(SET_OFF, *cast.maybe(cast.place.scenes))
    failures = cast.shuffled(cast.place.road, cast.trait.road)
    middle = cast.tell(failures[0], *cast.maybe(NEXT, 0.8), failures[1])
    doubt = cast.tell(*cast.maybe(TEMPTED, 0.6), LOW_SUN)
    helped = cast.tell(PASSER_BY)
    advice = cast.tell(cast.trait.advice, said=f"said {cast.slots['the_passer_by']}")
    turn = cast.tell(cast.trait.change, SHOWS_WAY, LAST_STRETCH)
    arrival = cast.tell(ARRIVAL, *cast.maybe(THANKS, 0.9))
    end = cast.tell(*cast.shuffled(END, echo))
    if cast.chance(0.5):
        return telling(
            opening,
            when,
            f"{start} {middle}",
            f"{doubt} {helped}",
            f"{advice} {turn}",
            arrival,
            end,
        )
    return telling(
        opening, when, start, middle, doubt, f"{helped} {advice}", turn, f"{arrival} {end}"
    )


PLOT = Plot("promise", Needs(), True, tell)
