"""A stranger is in need, and only the thing that the hero loves best will help."""

from dataclasses import dataclass

from sovereign_lab.recipes.storyteller.grammar import scenes
from sovereign_lab.recipes.storyteller.grammar.cast import Cast, Needs
from sovereign_lab.recipes.storyteller.grammar.plot import Plot, Telling, telling
from sovereign_lab.recipes.storyteller.grammar.shapes import Beat, beat


@dataclass(frozen=True)
class Need:
    """Trouble that certain things, named by their nouns, are good for."""

    nouns: tuple[str, ...]
    trouble: Beat
    says: Beat
    tries: Beat
    helped: Beat


NEEDS = (
    Need(
        ("umbrella", "cloak"),
        trouble=beat(
            "It had rained all day, and {f_he} was wet to the skin.",
            "The rain was coming down like a river, and {f_he} had a long way to go.",
            "A cold rain was falling, and {f_he} shook from head to foot.",
        ),
        says=beat(
            '"I have to get home before night," said {friend}, "but the rain will not stop."',
            '"I am so wet that I could be a fish," said {friend}. "And I still have far to go."',
            '"My children are waiting for me," said {friend}, "and it rains and rains."',
        ),
        tries=beat(
            "{hero} gave {friend} a big leaf, but the rain went right through it.",
            "They waited under a tree, but soon it rained under the tree as well.",
            '{hero} asked the rain to stop. "Drip, drip," said the rain.',
            "They ran a little way, but the rain ran with them.",
        ),
        helped=beat(
            "The rain drummed on the {noun}, and under it {friend} was dry.",
            "Under the {noun}, not a single drop fell on {friend}.",
            "Now it could rain as much as it liked. {friend} had the {thing}.",
        ),
    ),
    Need(
        ("blanket", "cloak", "scarf", "mitten", "cap"),
        trouble=beat(
            "The wind was icy, and {f_he} was blue with cold.",
            "It was freezing that day, and {f_he} shook so much that {f_his} teeth clacked.",
            "{F_he} had walked through the cold all night.",
        ),
        says=beat(
            '"I am so c-c-cold," said {friend}.',
            '"I cannot feel my own nose," said {friend}. "Is there somewhere warm?"',
            '"If I could get warm, I could go on," said {friend}.',
        ),
        tries=beat(
            "{hero} told {friend} to hop up and down, but {f_he} was too tired to hop.",
            "{hero} tried to make a fire, but the wood was wet and only smoked.",
            "{hero} gave {friend} some hay to sit in, but the wind blew it away.",
            "{hero} told {friend} a story about the hot sun, but that warms only the ears.",
        ),
        helped=beat(
            "Slowly, {friend} stopped shaking. The {noun} was as warm as toast.",
            'A little colour came back into {friend}\'s face. "That feels good," {f_he} said.',
            "With the {thing}, {friend} felt as if spring had come.",
        ),
    ),
    Need(
        ("lantern",),
        trouble=beat(
            "Night was falling, and {f_he} had lost {f_his} way in the dark.",
            "It was a night without a moon, and {f_he} had walked into three trees.",
            "It was getting dark, and {f_he} still had far to go.",
        ),
        says=beat(
            '"I cannot see my own feet," said {friend}, "and I have to get home."',
            '"Where is the path?" asked {friend}. "I cannot see it any more."',
            '"My mother is waiting for me," said {friend}, "but it is so dark."',
        ),
        tries=beat(
            "{hero} tried to tell {friend} the way, but it had too many turns.",
            "They waited for the moon, but the moon stayed behind the clouds.",
            "{hero} caught a firefly, but the firefly wanted to sleep.",
            "{hero} walked ahead, and they both fell into a ditch.",
        ),
        helped=beat(
            "The {noun} threw a warm light on the path, and {friend} could see every stone.",
            "The dark took a step back, and there was the path at {friend}'s feet.",
            "Soon the {thing} was only a small, bright dot, and {friend} was on the way home.",
        ),
    ),
    Need(
        ("map", "compass"),
        trouble=beat(
            "{F_he} had been walking in circles for three days.",
            "{F_he} had come from far away and did not know the way.",
            "{F_he} was looking left and right and looked quite lost.",
        ),
        says=beat(
            '"I want to go to the sea," said {friend}, "but every path leads back here."',
            '"I am looking for my sister\'s house," said {friend}. "It must be somewhere."',
            '"Is this the way over the mountains?" asked {friend}. It was not.',
        ),
        tries=beat(
            "{hero} told {friend} the way, but after the tenth turn they were both confused.",
            "They asked a snail, but the snail had never been farther than the next cabbage.",
            "{hero} drew the way in the sand, but the wind blew it away.",
            "They followed a cloud, but the cloud did not know the way either.",
        ),
        helped=beat(
            'With the {noun}, it was easy. "That way!" said {friend}.',
            "{friend} looked at the {noun}, turned around once, and knew where to go.",
            'The {thing} showed the way. "Now I cannot go wrong," said {friend}.',
        ),
    ),
    Need(
        ("basket", "cart", "bag"),
        trouble=beat(
            "{F_he} was carrying a heap of apples, and they kept falling down.",
            "{F_he} had picked so many plums that {f_he} could not carry them home.",
            "{F_his} sack had burst, and there were potatoes all over the path.",
        ),
        says=beat(
            '"Whenever I pick up one, I drop two," said {friend}.',
            '"I have to take them to market," said {friend}, "but I have only two arms."',
            '"They are for my little brothers," said {friend}. "What shall I do?"',
        ),
        tries=beat(
            "{hero} carried some of it, but {he} dropped as many as {he} picked up.",
            "They tied up the hole in the sack with grass, but it burst again.",
            "They tried to roll everything along the path, but it rolled into the ditch.",
            "They put some of it on their heads, and that did not work at all.",
        ),
        helped=beat(
            "Everything went into the {noun}, and not one thing fell out.",
            "The {noun} was just big enough. {friend} could hardly believe it.",
            "Now it was easy. The {thing} held it all.",
        ),
    ),
    Need(
        ("whistle", "horn", "trumpet", "bell", "drum"),
        trouble=beat(
            "{F_he} had lost {f_his} little brother in the fog.",
            "{F_his} brothers and sisters had run off into the mist, and {f_he} had no voice left to call them.",
            "{F_his} friends had gone on ahead, and now {f_he} could not find them in the mist.",
        ),
        says=beat(
            '"I have called and called," said {friend} in a hoarse voice.',
            '"They must be near," said {friend}, "but they cannot hear me."',
            '"My voice is gone," whispered {friend}, "and I cannot see a thing."',
        ),
        tries=beat(
            "{hero} shouted as loud as {he} could, but the wind blew the words away.",
            "{hero} climbed on a rock to look around, but there was only grey mist.",
            "They banged two stones together, but that was no louder than a woodpecker.",
            "They waved their arms, but nobody can see arms in the mist.",
        ),
        helped=beat(
            "The sound of the {noun} went far and wide. And then there came an answer!",
            "You could hear the {noun} from one end of the land to the other. Soon there were steps.",
            "Loud and clear, the {thing} called through the mist, and everyone came running.",
        ),
    ),
    Need(
        ("flute", "fiddle", "harp", "book", "puppet", "doll"),
        trouble=beat(
            "{F_he} was far from home and very sad.",
            "{F_he} had hurt {f_his} leg and had to lie still for a whole week.",
            "{F_he} did not say a word, but there were tears in {f_his} eyes.",
        ),
        says=beat(
            '"I miss my home," said {friend}.',
            '"The days are so long," said {friend}, "and nothing makes me smile."',
            '"I do not know why I am sad," said {friend}. "I just am."',
        ),
        tries=beat(
            "{hero} told a joke, but {friend} did not laugh.",
            "{hero} stood on {his} head, but {friend} only sighed.",
            "{hero} brought {friend} a cake, but {f_he} was not hungry.",
            "{hero} picked some flowers, but they made {friend} sneeze.",
        ),
        helped=beat(
            "And with the {noun}, {friend} forgot {f_his} sorrow, and at last {f_he} smiled.",
            "{friend} held the {noun}, and the corners of {f_his} mouth went up.",
            "From morning till night, {friend} had the {thing}, and the days were not so long any more.",
        ),
    ),
)
NOUNS = frozenset(noun for need in NEEDS for noun in need.nouns)
KEPT = beat(
    "{He} never let anyone touch it.",
    "{He} did not lend it to anyone, not even for an hour.",
    '"It is mine," {he} always said, "and only mine."',
    "When others asked for it, {hero} held it behind {his} back.",
    "{He} was so afraid of losing it that {he} showed it to nobody.",
    "{He} shared {his} bread and {his} cake, but never that.",
)
ARRIVES = beat(
    "{day}, there was a knock at the door. Outside stood {a_friend} called {friend}.",
    "{day}, {a_friend} named {friend} came along the path.",
    "{day}, {hero} met a stranger. It was {a_friend} called {friend}.",
    '{day}, {hero} found {a_friend} sitting {spot}. "My name is {friend}," said the stranger.',
    "{day}, a stranger came by, {a_friend} whose name was {friend}.",
    '{day}, somebody called, "Is anyone there?" It was {a_friend} named {friend}.',
)
NEXT = beat(
    "Then {hero} had another idea.",
    "So they tried something else.",
    '"Wait," said {hero}, "I know what to do."',
    "That was no good, and so they tried again.",
    "{hero} thought hard.",
    "But {hero} did not give up.",
)
INNER = beat(
    "{hero} thought of the {thing}. But what if it got lost?",
    'There was the {thing}. "But it is mine," thought {hero}.',
    "{hero} looked at the {noun}, and then at {friend}, and then at the {noun} again.",
    "There was one thing that would help. {hero} knew it very well, and said nothing for a while.",
    "The {noun} would have been just right. But {hero} had never lent it to anyone.",
    "{hero} took one step to the {noun}, and one step back.",
)
DECISION = beat(
    '"Take my {noun}," said {hero}, very fast, before {he} could change {his} mind.',
    'Then {hero} fetched the {thing}. "You need it more than I do," {he} said.',
    '"Here," said {hero}, and held out the {thing}. "Bring it back when you can."',
    "Slowly, {hero} put the {thing} into {friend}'s arms.",
    '"What good is {a_noun} if it helps nobody?" said {hero}. "Take it."',
    "{hero} gave {friend} the {thing}, and it did not hurt as much as {he} had thought.",
)
WAITING = beat(
    "Then {friend} went away, and a week went by. {hero} looked out every day.",
    "{friend} went on, and {hero} waited. One day passed, and then another.",
    "For many days {hero} heard nothing of {friend}, and the place of the {noun} was empty.",
    '"You will never see it again," said the neighbours when {friend} had gone. {hero} was not so sure.',
    "The next morning {friend} was gone, and so was the {noun}.",
    "{friend} promised to come back, and was gone. {hero} often thought of the {noun}.",
)
RETURN = beat(
    "But one morning {friend} stood at the door again, with the {thing} and a big cake.",
    'Then {friend} came back with the {noun}. "It saved my life," {f_he} said.',
    "Then, one evening, there were steps. It was {friend}, with the {thing} and with three friends.",
    "And then {friend} came back. The {thing} had not one scratch, and there was a bunch of flowers with it.",
    "And one fine day there it was, the {thing}, and {friend} was with it, and they had a feast.",
    'But {friend} kept {f_his} word. "Here is your {noun}," {f_he} said, "and here is a pot of honey."',
)
END = beat(
    "From then on, {hero} lent the {thing} to anyone who needed it, and it always came back.",
    "{hero} still loved {his} {thing}, but now {he} loved to share it, too.",
    "Now when {hero} {used_the}, {friend} was there, and it was twice as much fun.",
    "{hero} had lent {a_noun} and found a friend.",
    '"It is mine," {hero} said of the {thing} after that, "and so it can be yours for a while."',
    "The {thing} was a little worn by now, and {hero} liked it better that way.",
)


def tell(cast: Cast) -> Telling:
    need = cast.one_of([need for need in NEEDS if cast.thing.noun in need.nouns])
    opening = cast.tell(scenes.HERO, scenes.TREASURE)
    first = cast.tell(*cast.shuffled(KEPT, *cast.maybe(scenes.HABIT, 0.4)))
    meeting = cast.tell(ARRIVES, need.trouble, need.says)
    tries = cast.rng.sample(need.tries, 2)
    failing = cast.tell((tries[0],), *cast.maybe(NEXT, 0.9), (tries[1],))
    giving = cast.tell(INNER, DECISION, need.helped)
    back = cast.tell(WAITING, RETURN)
    end = cast.tell(END, *cast.maybe(scenes.TOGETHER))
    if cast.chance(0.5):
        return telling(opening, first, meeting, failing, giving, back, end)
    return telling(opening, first, f"{meeting} {failing}", giving, f"{back} {end}")


PLOT = Plot("stranger", Needs(thing=lambda thing: thing.noun in NOUNS), False, tell)
