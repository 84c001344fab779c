"""A contest, with the thing as its prize: to win it, or to stop and help."""

from dataclasses import dataclass

from sovereign_lab.recipes.storyteller.grammar import scenes
from sovereign_lab.recipes.storyteller.grammar.cast import Cast, Needs
from sovereign_lab.recipes.storyteller.grammar.plot import Plot, Telling, telling
from sovereign_lab.recipes.storyteller.grammar.shapes import Beat, beat


@dataclass(frozen=True)
class Contest:
    """`called` completes "there was to be ..."; `practice` and `trial` fail; `won` needs a change.

    `stops`: the friend is in trouble in the middle of it, and the hero helps and does not win.
    """

    called: str
    practice: Beat
    practises_like_a: str  # the field of Trait that spoils it: "road" or "work"
    begins: Beat
    won: Beat
    stops: Beat


CONTESTS = (
    Contest(
        "a great race around the fields",
        practice=beat(
            "On the first day, {hero} ran so hard that {he} got a stitch and had to lie down.",
            "On the first day, {hero} ran as far as the first tree, and then {he} had no breath left.",
            "On the first day, {hero} ran over stones and hurt {his} foot.",
            "On the first day, a beetle was faster than {hero}.",
        ),
        practises_like_a="road",
        begins=beat(
            '"One, two, three, go!" cried the old ram, and off they went.',
            "Somebody clapped, and they all ran off in a cloud of dust.",
            "There were twelve runners, and everyone came to watch.",
        ),
        won=beat(
            "At the last bend {hero} was third. Then {he} was second. And then there was nobody in front of {him}.",
            "One by one, {hero} passed them all, and at the end {he} was first by the tip of {his} nose.",
            "The others had run too fast at first and grew tired. {hero} still had strength left, and won.",
        ),
        stops=beat(
            "At the last bend, {hero} was first. Then {he} heard a cry. {friend} had fallen and hurt {f_his} knee. "
            "{hero} turned around and helped {f_him} up, and all the others ran past.",
            "{hero} and {friend} were ahead of all the others when {friend} fell into a ditch. "
            "{hero} stopped, pulled {f_him} out, and they came in last, side by side.",
            "{hero} could already see the end. But {friend} was sitting by the path with a thorn in {f_his} foot. "
            "{hero} stopped and pulled it out, and others won.",
        ),
    ),
    Contest(
        "a contest for the highest tower of stones",
        practice=beat(
            "On the first day, {his} tower fell over at the fourth stone.",
            "On the first day, {hero} put a round stone at the bottom, and everything rolled away.",
            "On the first day, {hero} built and built, and then a sparrow sat down on it, and it fell.",
            "On the first day, {hero} could find no flat stones, and with the others it did not hold.",
        ),
        practises_like_a="work",
        begins=beat(
            "Everyone had a heap of stones, and nobody said a word.",
            "Then the contest began. Stone upon stone, the towers grew.",
            "There were twelve builders, and everyone came to watch.",
        ),
        won=beat(
            "The others' towers shook and fell, one after another. The tower of {hero} stood.",
            "Flat stones first, small stones last. When {hero} was done, the tower was higher than {he} was.",
            "A gust of wind came, and all the towers fell but one. It was the tower that {hero} had built.",
        ),
        stops=beat(
            "{hero} had only one more stone to go. Then the tower next to {him} began to lean, right over {friend}. "
            "{hero} jumped up and held it, and {his} own tower fell down.",
            "Then {friend} began to cry, for {f_his} tower had fallen. {hero} gave {friend} the best flat "
            "stones, and had none left to win with.",
            "{friend} had hurt {f_his} foot and could not go on. {hero} left {his} own tower and helped {f_him}, "
            "and then the time was up.",
        ),
    ),
    Contest(
        "a contest for the finest song",
        practice=beat(
            "On the first day, {his} song was so high that it ended in a squeak.",
            "On the first day, the crickets in the ditch sang louder than {hero}.",
            "On the first day, {hero} knew the first line and the last, but nothing in between.",
            "On the first day, {hero} sang so loud that the milk turned sour.",
        ),
        practises_like_a="work",
        begins=beat(
            "One after another, they stepped up and sang. Then it was {his} turn.",
            "All the seats were full, and it was so quiet that you could hear the grass grow.",
            "There were twelve singers, and everyone came to listen.",
        ),
        won=beat(
            "{hero} sang of home, simply and clearly, and when {he} stopped, nobody moved. Then they all cheered.",
            "The song of {hero} was not loud and not long, but in the back row somebody wiped away a tear. It won.",
            "{hero} sang, and by the second verse everyone was humming along. Nobody asked who had won.",
        ),
        stops=beat(
            "Just before {his} turn, {hero} heard that {friend} had lost {f_his} voice. {hero} gave {friend} all the "
            "warm honey milk. Then {friend} sang, and {hero} could only croak.",
            "In the middle of {f_his} song, {friend} forgot {f_his} words. {hero} whispered them to {f_him}, line by "
            "line, though it was against the rules for {hero}, and {he} could not win any more.",
            "{friend} was so scared that {f_he} could not sing a note. {hero} went up and sang with {f_him}, "
            "and so {hero} had no song of {his} own.",
        ),
    ),
)
PRIZE = beat(
    "{He} had heard of a contest, and the first prize was {a_thing}.",
    "On the wall hung a sheet of paper that said that the first prize was {a_thing}.",
    "{He} dreamed of {a_thing}, for that was the prize in the summer contest.",
    '"Whoever wins gets {a_thing}," the neighbours said, and {hero} pricked up {his} ears.',
    "There was going to be a contest, and {hero} wanted to win the prize, {a_thing}.",
    "The prize at the summer feast was {a_thing}, and {hero} could think of nothing else.",
)
EVENT = beat(
    "There was to be {contest}.",
    "To get it, you had to win {contest}.",
    "In three days, there would be {contest}.",
    "Everyone could take part in {contest}.",
    "The whole land was getting ready for {contest}.",
    "It was the prize in {contest}.",
)
RESOLVE = beat(
    '"I will win that {noun}," said {hero}.',
    '"That {noun} is meant for me," said {hero}.',
    "{hero} made up {his} mind to practise every day.",
    '"I have never won anything," said {hero}. "But I can try."',
    "{hero} already saw {himself} going home with the {noun}.",
    '"If I win, I will {use_my} every day," said {hero}.',
)
SECOND_DAY = beat(
    "On the second day, it was no better.",
    "The next day, {he} tried again.",
    "The second day began well.",
    "On the next day, {hero} got up early.",
    '"Tomorrow it will be better," {he} said. But was it?',
    "But {hero} did not give up.",
)
FRIEND = beat(
    "{friend_the}, who wanted to win as well, had been watching.",
    "{a_friend} called {friend} was practising nearby.",
    "{friend_the} came to practise, too.",
    "Beside {him}, {a_friend} named {friend} was resting in the shade.",
    "There {he} met {friend}, {a_friend} who was also taking part.",
    '"Shall we practise together?" asked {friend_the}.',
)
BETTER = beat(
    "On the third day, it went much better.",
    "And slowly, it began to go well.",
    "From then on, every try was a little better than the last.",
    '"That was good!" cried {friend}.',
    "Suddenly everything went right.",
    "{hero} and {friend} practised side by side until the evening.",
)
GETS_PRIZE = beat(
    "So {hero} got the {thing}, and {friend} was the first to cheer.",
    '"First prize for {hero}!" called the judge, and held up the {thing}.',
    'The judge handed {hero} the {thing}. "Well done!" cried {friend}.',
    "Everyone clapped, {friend} loudest of all, and {hero} was given the {thing}.",
    "{hero} could not believe it, not even with the {thing} in {his} arms.",
    '"Is it really mine?" asked {hero}. It was. The {thing} had found its owner.',
)
NO_PRIZE = beat(
    "{hero} looked at the prize and swallowed. Then the judge stood up. "
    '"Winning is easy," the judge said. "Stopping to help is hard. The {thing} goes to {hero}."',
    '"That was that," thought {hero}. But the winner had seen it all, and brought {him} the {thing}. '
    '"You have earned it more than I have," the winner said.',
    'But the judge climbed on the table. "Who thinks that {hero} should have the {noun}?" '
    "Everyone cheered.",
    "Somebody else won, and {hero} clapped for the winner. But in the evening there was a knock at the door, "
    'and on the step lay the {thing}. "For a good friend," said a note.',
    "{friend} told everyone what {hero} had done. And so there was a second first prize that day, and "
    "{hero} had the {thing} after all.",
    'The winner already had such {a_noun} at home. "Give it to {hero}," said the winner, and so they did.',
)
END = beat(
    "That evening, {hero} {used_his}, and {friend} was allowed to try, too.",
    "The {thing} was the finest prize that {hero} ever won, and {friend} the finest friend.",
    "And when {hero} looked at the {thing}, {he} did not think of winning, but of {friend}.",
    "{hero} and {friend} took turns with the {thing} all summer long.",
    "The next year there was another contest. But {hero} already had {his} {thing}, and so {he} only cheered.",
    "{hero} fell asleep that night beside the {thing}, with a smile on {his} face.",
)


def tell(cast: Cast) -> Telling:
    contest = cast.one_of(CONTESTS)
    opening, echo = scenes.opening_and_echo(cast, PRIZE)
    first = cast.tell(EVENT, RESOLVE, contest=contest.called)
    spoiled = cast.trait.road if contest.practises_like_a == "road" else cast.trait.work
    practice = cast.tell(
        contest.practice, *cast.maybe(SECOND_DAY, 0.9), spoiled, *cast.maybe(scenes.GIVING_UP, 0.4)
    )
    advice = cast.tell(FRIEND, cast.trait.advice, said=f"said {cast.friend}")
    change = cast.tell(cast.trait.change, BETTER)
    if cast.chance(0.5):
        day = cast.tell(contest.begins, contest.won)
        prize = cast.tell(GETS_PRIZE)
    else:
        day = cast.tell(contest.begins, contest.stops)
        prize = cast.tell(NO_PRIZE)
    end = cast.tell(*cast.shuffled(END, echo))
    if cast.chance(0.5):
        return telling(opening, first, practice, f"{advice} {change}", f"{day} {prize}", end)
    return telling(opening, first, f"{practice} {advice}", f"{change} {day}", f"{prize} {end}")


PLOT = Plot("contest", Needs(), True, tell)
