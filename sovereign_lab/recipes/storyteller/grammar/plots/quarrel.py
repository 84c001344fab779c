"""Two friends find one thing, and both want it."""

from sovereign_lab.recipes.storyteller.grammar import scenes
from sovereign_lab.recipes.storyteller.grammar.cast import Cast, Needs
from sovereign_lab.recipes.storyteller.grammar.plot import Plot, Telling, telling
from sovereign_lab.recipes.storyteller.grammar.shapes import beat

FRIENDS = beat(
    "{His} best friend was {friend_the}.",
    "{He} did everything together with {friend}, {a_friend}.",
    "Next door lived {friend_the}, and the two of them were best friends.",
    "You never saw {him} without {friend_the}.",
    "{friend_the} was {his} best friend, and had been for years.",
    "Every day {he} played with {friend}, {a_friend}.",
)
FOUND = beat(
    "{day}, {hero} and {friend} found {a_thing} {spot}.",
    "{day}, {hero} saw {a_thing} lying {spot}, and so did {friend}.",
    "{day}, {hero} was out walking with {friend}, and they found {a_thing}.",
    "{day}, {spot}, {hero} and {friend} came upon {a_thing}.",
    "{day}, they both stopped at once, for in front of them lay {a_thing}.",
    "Then, {day}, the two of them found {a_thing} {spot}.",
)
NOBODY = beat(
    "It belonged to nobody.",
    "They asked everyone, but nobody missed it.",
    "Nobody knew where it had come from.",
    "It was a little dusty, but as good as new.",
    "It had been lying there for a long time.",
    "They had never seen anything so fine.",
)
MINE = beat(
    '"It is mine," said {hero}. "No, it is mine," said {friend}.',
    '"I saw it first," said {hero}. "But I picked it up first," said {friend}.',
    '"Give me the {noun}!" cried {hero}. "Never!" cried {friend}.',
    "{hero} held the {noun} at one end, and {friend} held it at the other.",
    '"I need {a_noun} like that," said {friend}. "I need it more," said {hero}.',
    "They both had a hold on the {noun}, and neither would let go.",
)
PULL = beat(
    "They pulled until they both fell over.",
    "They shouted so loud that the birds flew away.",
    "They had never quarrelled before. It was not nice.",
    "They were both red in the face.",
    '"Then I am not your friend any more," said {friend}.',
    "They pulled, and they pushed, and the {noun} fell into the mud.",
)
TURNS = beat(
    "They tried to take turns. But {hero} said that {friend} had had it longer, and {friend} said the same.",
    "They threw a stone to see who should have it, but the stone got lost.",
    "They drew a line down the middle, but nobody can have half {a_noun}.",
    "{friend} had it in the morning, and {hero} in the afternoon. But in the afternoon it rained.",
    "They ran a race for it, but both of them came in first.",
    "They hid it so that nobody should have it. Then both of them went to look for it in secret.",
)
PARTED = beat(
    "In the end, {hero} took the {noun} home, and {friend} went away without a word.",
    "At last, {friend} turned around and went home, and {hero} had the {noun}.",
    '"Then keep your silly {noun}!" cried {friend}, and left. {hero} had it all to {himself}.',
    "{friend} let go so suddenly that {hero} sat down with a bump. Then {friend} walked away.",
    '"Take it," said {friend} in a sad voice, and went home alone.',
    "So {hero} had won. {friend} was gone, and the {noun} was there.",
)
LONELY = beat(
    "But it was no fun alone.",
    "{hero} {used}, but it was not as nice as {he} had thought.",
    "{hero} looked at the {noun}, and the {noun} said nothing.",
    "{hero} wanted to tell somebody about it. But whom?",
    "It was very quiet at {hero}'s house that night.",
    "Now {hero} had {a_noun}, but {he} had no friend.",
)
ADVISER = beat(
    '"Where is {friend}?" asked {giver}, and {hero} told the whole story.',
    "{giver} saw {his} long face.",
    "{hero} told {giver} about the quarrel.",
    "{giver} looked at the {noun}, and then at the empty place at the table.",
    '"You do not look like someone who has found {a_thing}," said {giver}. {hero} shook {his} head.',
    '"I won," {hero} told {giver}, and did not know why {he} felt so sad.',
)
BETTER = beat(
    '"There are many things in the world," said {giver}, "but there is only one {friend}."',
    '"{A_noun} cannot laugh with you," said {giver}.',
    '"Which would you rather lose?" asked {giver}. "The {noun} or {friend}?"',
    '"Two can be happy with one {noun}," said {giver}, "but one cannot be happy with half a friend."',
    '"It is easier to find {a_thing} than a friend," said {giver}.',
    '"What would happen if you used it together?" asked {giver}.',
)
GOES = beat(
    "{hero} took the {noun} and ran to {friend}.",
    "Early next morning, {hero} stood at {friend}'s door with the {noun}.",
    "So {hero} went out, with the {noun}, to look for {friend}.",
    "{hero} did not wait until morning. {He} took the {noun} and went.",
    "On the way, {hero} met {friend}, who was coming to see {him}.",
    "{hero} found {friend} {other_spot}, where {f_he} was sitting all alone.",
)
PEACE = beat(
    '"You can have it," said {hero}. "No, you," said {friend}. Then they both laughed.',
    '"I am sorry," said {hero}. "So am I," said {friend}, at the very same time.',
    '"I do not want the {noun} without you," said {hero}. {friend} gave {him} a hug.',
    '"Shall we share it?" asked {hero}. "I was going to ask that," said {friend}.',
    '"Here," said {hero}, and held out the {noun}. {friend} took one end and left {him} the other.',
    '"It is not mine," said {hero}. "It is ours." {friend} liked that word.',
)
PLAN = beat(
    "From then on, they had it together, side by side, every day.",
    "On some days it stayed with {hero}, and on some days with {friend}, and nobody counted.",
    "They made a place for it, just halfway between their two houses.",
    "And they found out that it was much better with two.",
    'They spent the whole day with it, and neither said "mine" even once.',
    "They lent it to others, too, and soon they had more friends than before.",
)
END = beat(
    "{hero} and {friend} had found {a_thing} that day, but that was not the best thing they had found.",
    "The {thing} is old now, but it still belongs to {hero} and {friend}.",
    'And when somebody asks, "Whose {thing} is that?" {hero} and {friend} both say, "Ours."',
    "{hero} and {friend} have quarrelled since then, but never again about the {thing}.",
    "So one {thing} made {hero} and {friend} happy, and that is more than most things can do.",
    "That night, {hero} dreamed of the {thing}, and {friend} was in the dream, too.",
)


def tell(cast: Cast) -> Telling:
    opening = cast.tell(scenes.HERO, FRIENDS, FOUND)
    nobody = cast.tell(*cast.maybe(NOBODY, 0.7))
    quarrel = cast.tell(MINE, *cast.maybe(PULL, 0.9))
    turns = cast.tell(TURNS)
    alone = cast.tell(PARTED, *cast.maybe(LONELY, 0.9))
    wisdom = cast.tell(ADVISER, BETTER)
    peace = cast.tell(GOES, PEACE)
    end = cast.tell(*cast.maybe(PLAN, 0.7), END)
    if cast.chance(0.5):
        return telling(opening, nobody, f"{quarrel} {turns}", alone, wisdom, peace, end)
    return telling(opening, nobody, quarrel, f"{turns} {alone}", wisdom, f"{peace} {end}")


PLOT = Plot("quarrel", Needs(), False, tell)
