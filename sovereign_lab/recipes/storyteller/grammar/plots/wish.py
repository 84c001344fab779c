"""The hero wishes for something that the friend has, and has to work for it."""

from sovereign_lab.recipes.storyteller.grammar import scenes
from sovereign_lab.recipes.storyteller.grammar.cast import Cast, Needs
from sovereign_lab.recipes.storyteller.grammar.plot import Plot, Telling, telling
from sovereign_lab.recipes.storyteller.grammar.shapes import beat

WISH = beat(
    "More than anything, {he} wanted {a_thing}.",
    "{He} wished for only one thing, {a_thing}.",
    "Every night {he} dreamed of {a_thing}.",
    "{He} had always wanted {a_thing}.",
    "There was only one thing that {hero} wanted, and that was {a_thing}.",
    "For a long time, {he} had wished for {a_thing}.",
    "All year, {hero} had been thinking about {a_thing}.",
)
WHY = beat(
    "{He} wanted to {use}.",
    "How fine it would be to {use}!",
    '"If I had one," {he} said, "I would {use_my}."',
    "In {his} dreams, {he} {used}.",
    "But things like that do not grow on trees.",
    "{He} had asked the moon for it, but the moon had not answered.",
)
OWNER = beat(
    "{day}, {hero} saw just such {a_noun} in the window of {friend_the}.",
    "{day}, {a_friend} named {friend} came by with a big sack, and out of the sack came {a_noun}.",
    "Not far away lived {a_friend} called {friend}, who had just such {a_noun} on the shelf.",
    "{day}, {hero} met {friend}, {a_friend} who had {a_noun} just like that.",
    "Now {friend_the} had just such {a_noun}, and never used it.",
    "And {day}, there it was, on a wall, beside {a_friend} called {friend}.",
)
OFFER = beat(
    '"You may have it," said {friend}, "if you do three jobs for me."',
    '"Work for me until the sun goes down," said {friend}, "and it is yours."',
    '"How much is it?" asked {hero}. "One day of work," said {friend}.',
    '"I will give it to you," said {friend}, "if you help me today."',
    '"I need help," said {friend}. "Help me well, and the {noun} is yours."',
    '"What will you give me for it?" asked {friend}. "I have nothing," said {hero}, "but I can work."',
)
JOBS = beat(
    "First {hero} had to sweep the yard.",
    "First {hero} had to carry wood.",
    "First {hero} had to wash the windows.",
    "First {hero} had to weed the beans.",
    "First {hero} had to fetch water from the well.",
    "First {hero} had to beat the rugs.",
    "First {hero} had to dust the shelves.",
)
MORE_JOBS = beat(
    "Then {he} had to pick the peas.",
    "Then {he} had to paint the fence.",
    "Then {he} had to pile up the stones.",
    "Then {he} had to rake the leaves.",
    "Then {he} had to wash the pots.",
    "Then {he} had to clean the stairs.",
    "Then {he} had to carry flour sacks up the stairs.",
)
MISHAPS = beat(
    "It was harder than it looked, and {hero} was not half done when it was noon.",
    "A gust of wind came and undid everything that {hero} had done.",
    "Then it rained, and {hero} had to begin again.",
    "{hero} did {his} best, but {his} best was not very good yet.",
    "It was heavy work, and {hero} was soon out of breath.",
    "A cow came along and trampled on it all.",
    "{hero} got so dusty that {he} sneezed twenty times.",
)
NOT_YET = beat(
    "{friend} looked at it and slowly shook {f_his} head.",
    "{friend} watched it all and raised one eyebrow.",
    '"I want the {noun} so much," said {hero}, "and I do everything wrong."',
    "{hero} looked at the {noun}. It seemed farther away than ever.",
    "There was one job left.",
    "{hero} was close to giving up.",
)
LAST_JOB = beat(
    "The last job was to stack the wood. When {he} was done, not one log was out of line.",
    "The last job was to clean the big window. When {he} was done, you could see your face in it.",
    "The last job was to pick the cherries. When {he} was done, not one was left on the tree.",
    "The last job was to polish the door. When {he} was done, it shone like the sun.",
    "The last job was to plant a row of onions. When {he} was done, it was as straight as a string.",
    "The last job was to scrub the floor. When {he} was done, it was so clean that it squeaked.",
)
GIVEN = beat(
    '"That is well done," said {friend}. "Here is your {noun}."',
    '{friend} smiled. "You have earned it," {f_he} said, and gave {hero} the {thing}.',
    "Without a word, {friend} took the {thing} and put it into {hero}'s arms.",
    '"I could not have done it better," said {friend}. "Take it. It is yours."',
    '"Close your eyes," said {friend}. When {hero} opened them, there was the {thing}.',
    '"A promise is a promise," said {friend}, and handed over the {thing}.',
)
END = beat(
    "{hero} ran all the way home with the {thing}. That evening, {he} {used} again and again.",
    "Now {hero} had {his} wish, {a_thing}. And because {he} had worked for it, {he} loved it twice as much.",
    'When somebody asked, "Where did you get that {noun}?" {hero} said, "I earned it."',
    "{hero} did not have to dream of {a_thing} any more. Now it was there when {he} woke up.",
    "That night {hero} slept with the {thing} beside {him}, and dreamed of nothing at all.",
    "From then on, {hero} {used_the} as often as {he} liked.",
    "Every time {hero} looked at the {thing}, {he} thought of that day, and stood up a little straighter.",
)


def tell(cast: Cast) -> Telling:
    opening, echo = scenes.opening_and_echo(cast, WISH)
    offer = cast.tell(OWNER, OFFER)
    spoiled = cast.shuffled(MISHAPS, cast.trait.work)
    jobs = cast.tell(JOBS, spoiled[0], MORE_JOBS, spoiled[1], *cast.maybe(NOT_YET, 0.7))
    advice = cast.tell(cast.trait.advice, said=f"said {cast.friend}")
    turn = cast.tell(cast.trait.change, LAST_JOB)
    end = cast.tell(*cast.shuffled(END, echo), *cast.maybe(scenes.TOGETHER, 0.25))
    first = cast.tell(*cast.maybe(WHY, 0.7))
    if cast.chance(0.5):
        return telling(opening, first, offer, jobs, f"{advice} {turn}", cast.tell(GIVEN), end)
    return telling(opening, first, offer, f"{jobs} {advice}", f"{turn} {cast.tell(GIVEN)}", end)


PLOT = Plot("wish", Needs(hands=True), True, tell)
