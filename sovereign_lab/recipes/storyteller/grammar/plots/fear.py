"""The thing lies beyond what the hero fears most."""

from dataclasses import dataclass

from sovereign_lab.recipes.storyteller.grammar import scenes
from sovereign_lab.recipes.storyteller.grammar.cast import Cast, Needs
from sovereign_lab.recipes.storyteller.grammar.plot import Plot, Telling, telling
from sovereign_lab.recipes.storyteller.grammar.shapes import Beat, beat


@dataclass(frozen=True)
class Fear:
    """`known_as` is what kinds that cannot have this fear are at home in."""

    known_as: str
    says: Beat
    happens: Beat
    tries: Beat
    trick: Beat
    done: Beat
    after: Beat


FEARS = (
    Fear(
        "dark",
        says=beat(
            "{hero} was afraid of the dark.",
            "There was only one thing that {hero} did not like, and that was the dark.",
            "At night, {hero} pulled the covers over {his} ears, for fear of the dark.",
        ),
        happens=beat(
            "{day}, the {noun} {went} into an old cave, where it was as dark as night.",
            "{day}, the {noun} slipped away and {went} into a deep, dark hole under the rocks.",
            "{day}, the {noun} {went} down the steps into a cellar, and it was pitch dark down there.",
        ),
        tries=beat(
            "{hero} put one foot into the dark, heard a drip, and ran out again.",
            "{hero} shut {his} eyes and went in, but with shut eyes {he} only bumped {his} nose.",
            '"Hello?" called {hero}. "Hello, hello," said a deep voice in the dark. '
            "It was only the echo, but {hero} was already far away.",
            "{hero} tried to reach it with a long stick, but the stick was too short.",
            "{hero} told the {noun} to come out by itself. It stayed where it was.",
        ),
        trick=beat(
            '"The dark is only the day with its eyes shut," {said}. "Sing to it."',
            '"When I am afraid of the dark, I sing," {said}. "Try it."',
            '"I know the dark," {said}. "It is big, but it is quite friendly. Try a song."',
        ),
        done=beat(
            "{hero} began to sing, very softly, and took one step, and then another. "
            "{His} song filled the dark. Then {he} touched something. It was the {thing}!",
            "{hero} sang the silliest song {he} knew, and went in. By the second verse {he} was not "
            "afraid at all. By the third, {he} had found the {thing}.",
            "Step by step, {hero} went in, singing. Soon {his} eyes could see a little. "
            "And there was the {thing}, right in front of {him}.",
        ),
        after=beat(
            "That night, {hero} put out the light {himself}.",
            "And when it got dark, {hero} hummed {his} song and was not afraid.",
            "The dark was still dark, but now it was an old friend.",
        ),
    ),
    Fear(
        "water",
        says=beat(
            "{hero} was afraid of deep water.",
            "There was only one thing that {hero} did not like, and that was water.",
            "{hero} did not even like puddles, because {he} was so afraid of water.",
        ),
        happens=beat(
            "{day}, the {noun} {went} onto a flat rock in the middle of a stream.",
            "{day}, the {noun} {went} over to the other side of a stream, and there was no bridge.",
            "{day}, a naughty magpie dropped the {noun} on the far side of a stream.",
        ),
        tries=beat(
            "{hero} put one foot into the water and pulled it out again. It was cold and wet.",
            "{hero} threw stones into the stream to make a bridge, but the water washed them away.",
            "{hero} took a run, and stopped at the very edge, and took a run, and stopped again.",
            "{hero} walked up and down the bank, but the stream was just as wide everywhere.",
            "{hero} tried to hook it with a long branch, but the branch floated away.",
        ),
        trick=beat(
            '"Do not look at the water," {said}. "Look at the next stone, and count."',
            '"It is not one big stream," {said}. "It is only seven small steps. Count them."',
            '"I will stand right here," {said}. "Take one stone at a time, and count out loud."',
        ),
        done=beat(
            '"One," said {hero}, and stepped on the first stone. "Two," {he} said, and "three." '
            "At seven, {he} held the {thing}.",
            "{hero} looked at the first stone, and only at that. Then {he} looked at the next. "
            "Suddenly there were no more stones, and there was the {thing}!",
            "The first step was the worst. At the second, {his} knees shook. At the third, {he} got "
            "a wet foot, and it was only water. Then {he} had the {thing}!",
        ),
        after=beat(
            "On the way home, {hero} jumped into a puddle, just for fun.",
            "The next day, {hero} went back and dipped in one toe, and then another.",
            "The stream was still deep, but now {hero} knew the way across.",
        ),
    ),
    Fear(
        "heights",
        says=beat(
            "{hero} was afraid of high places.",
            "{hero} did not even climb onto a wall, because {he} was so afraid of falling.",
            "There was only one thing that {hero} did not like, and that was to be high up.",
        ),
        happens=beat(
            "{day}, a gust of wind took the {noun} and dropped it on a high, narrow ledge.",
            "{day}, a naughty magpie took the {noun} and left it on the top step of an old tower.",
            "{day}, the {noun} got stuck in the middle of a high rope bridge.",
        ),
        tries=beat(
            "{hero} went up three steps, looked down, and came back on {his} tummy.",
            "{hero} threw pine cones at it, but they all fell short.",
            "{hero} called to a bird for help, but the bird did not understand.",
            "{hero} waited for the {noun} to come down by itself. It did not.",
            "{hero} piled up stones to stand on, but the pile fell over.",
        ),
        trick=beat(
            '"Do not look down," {said}. "Look up, and tell me what you see."',
            '"Look only at the sky," {said}. "The sky is never too high."',
            '"I will hold the other end of this string," {said}. "Then you are not alone."',
        ),
        done=beat(
            "{hero} looked up. There was a cloud like a sheep. {He} took a step, and another, always "
            "looking at the sheep. Then {he} held the {thing}!",
            '"I see the sky," called {hero}, and went on. "I see a swallow." And then, "I see my {thing}!"',
            "Step by step, {hero} went, with shaking knees. {friend} talked to {him} all the time. "
            "Then {he} had the {thing}!",
        ),
        after=beat(
            "And from up there, {hero} could see {his} own house, and it was as small as a nut.",
            "{hero} stayed up there a little longer, because the view was so fine.",
            "{hero} never loved high places, but {he} knew that {he} could go there.",
        ),
    ),
    Fear(
        "thunder",
        says=beat(
            "{hero} was afraid of thunder.",
            "When there was thunder, {hero} hid under the bed.",
            "There was only one thing that {hero} did not like, and that was thunder.",
        ),
        happens=beat(
            "{day}, {hero} left the {noun} out in the grass, and then the first thunder rolled.",
            "{day}, the sky turned black. A storm was coming, and the {noun} was still outside.",
            "{day}, {hero} was safe inside when it began to thunder. But where was the {noun}? It was outside!",
        ),
        tries=beat(
            "{hero} opened the door, the thunder said boom, and {hero} shut the door again.",
            "{hero} put moss in {his} ears, but the thunder was louder than the moss.",
            "{hero} ran ten steps, and the lightning flashed. {He} ran back twice as fast.",
            "{hero} crept out under a big leaf, but {he} could not see the way.",
            '"Stop it!" {hero} shouted at the sky. The sky said boom.',
        ),
        trick=beat(
            '"It is only the clouds bumping their heads," {said}. "Shout boom right back."',
            '"Thunder is loud, but it never bit anyone," {said}. "Can you be as loud as that?"',
            '"I shout back at it," {said}. "Boom! Now you."',
        ),
        done=beat(
            '"Boom!" shouted {hero}, and ran. "Boom!" said the thunder. "Boom!" shouted {hero}, '
            "and grabbed the {thing}.",
            "{hero} took a deep breath and went out into the rain. Every time it thundered, {he} "
            "shouted back. Before the storm could answer, {he} had the {thing}!",
            "{hero} ran out, and the thunder roared, and {hero} roared too. It was almost fun. "
            "Wet to the skin, {he} came back with the {thing}.",
        ),
        after=beat(
            "When the next storm came, {hero} stood at the window and shouted boom.",
            "Far away, the thunder grumbled, as if it were a little afraid of {hero}.",
            "And after that, {hero} hid under the bed only when the storm was very big.",
        ),
    ),
    Fear(
        "geese",
        says=beat(
            "{hero} was afraid of the big white geese.",
            "There was only one thing that {hero} did not like, and that was the hissing of geese.",
            "{hero} went the long way round every day, because {he} was so afraid of the geese.",
        ),
        happens=beat(
            "{day}, the {noun} {went} right into the yard where the geese lived.",
            "{day}, {hero} put the {noun} down for a moment, and the geese came and sat around it.",
            "{day}, the {noun} {went} through a hole in the fence, and behind the fence lived the geese.",
        ),
        tries=beat(
            "{hero} crept up on tiptoe, but a goose hissed, and {he} ran.",
            "{hero} made a long nose at the geese. The geese did not like that.",
            "{hero} asked them very politely for the {noun}, but from so far away that they could not hear.",
            "{hero} waited for the geese to fall asleep, but one of them always kept an eye open.",
            "{hero} threw them some grass. They ate the grass and stayed where they were.",
        ),
        trick=beat(
            '"They hiss because they are afraid of you," {said}. "Walk slowly and say hello."',
            '"Make yourself tall," {said}, "and do not run. Geese only chase those who run."',
            '"I know those geese," {said}. "They like it when someone says good morning."',
        ),
        done=beat(
            '"Good morning," said {hero}, with a shaking voice, and walked on. The geese were so '
            "surprised that they let {him} pass. And there was the {thing}!",
            "{hero} made {himself} tall and walked, and did not run. The geese hissed once, stepped "
            "aside, and {he} picked up the {thing}.",
            "{hero} went in with small, slow steps. One goose looked at {him}, and {he} looked at the "
            "goose. Then the goose went away, and {hero} had the {thing}!",
        ),
        after=beat(
            "Every morning after that, {hero} said hello to the geese, and they said hello to {him}.",
            "The geese still hissed, but now {hero} knew why.",
            "From then on, {hero} took the short way, past the geese.",
        ),
    ),
)
CANNOT = beat(
    '"I cannot go there," said {hero}. "Never."',
    "{hero}'s knees began to shake.",
    "{hero}'s heart beat like mad.",
    "{hero} stood there and did not dare to move.",
    '"Anything but that," whispered {hero}.',
    "{hero} wanted the {noun} back. But {he} did not want to go there.",
)
AGAIN = beat(
    "Then {he} tried again.",
    '"I have to be clever," said {hero}.',
    "So {he} tried something else.",
    "The second try went no better.",
    "But the {noun} was still there, and so {he} tried once more.",
    '"Once more," {he} told {himself}.',
)
SAYS_WHAT = beat(
    '"I want to get my {noun}," said {hero}, "but I am afraid."',
    '"My {noun} is there, and I do not dare to get it," said {hero}.',
    '{hero} did not want to say it, but then {he} did. "I am scared," {he} whispered.',
    "{hero} told {friend} about the {noun}, and about being afraid.",
    '"You will laugh at me," said {hero}. But {friend} listened to it all and did not laugh.',
    '"I am not as brave as you are," said {hero}. "I cannot get my {noun}."',
)
ME_TOO = beat(
    '"Everyone is afraid of something," said {friend}.',
    '"I am afraid of spiders myself," said {friend}.',
    '"Only those who are afraid can be brave," said {friend}.',
    "{friend} nodded. Everyone knew what that was like.",
    '"That is nothing to be ashamed of," said {friend}.',
    '"I was afraid of that too, when I was little," said {friend}.',
)
PROUD = beat(
    '"I did it!" cried {hero}.',
    '"You did it," said {friend}. "All by yourself."',
    "{hero} was shaking, but {he} was laughing too.",
    '"Was that me?" asked {hero}.',
    "{friend} clapped and cheered.",
    "{hero} had never been so proud.",
)
END = beat(
    "{hero} went home with the {thing} and felt a little taller than before.",
    "That evening, {hero} {used_his}, and it was better than ever.",
    "And whenever {hero} saw the {thing}, {he} knew that {he} could be brave.",
    "{hero} kept the {thing} close. It was more than {a_noun} now.",
    "{hero} loved the {thing} more than ever, because {he} had been so brave for it.",
    'From then on, when {hero} was afraid, {he} looked at the {thing} and said, "I can do it."',
)


def _can_fear(cast: Cast, fear: Fear) -> bool:
    if fear.known_as == "geese" and cast.friend_kind.noun == "goose":
        return False
    return fear.known_as not in cast.hero_kind.at_home_in


def tell(cast: Cast) -> Telling:
    fear = cast.one_of([fear for fear in FEARS if _can_fear(cast, fear)])
    if cast.chance(0.5):
        opening = cast.tell(scenes.HERO, scenes.TREASURE)
        first = cast.tell(*cast.maybe(scenes.HABIT, 0.4), fear.says)
    else:
        opening = cast.tell(scenes.HERO, fear.says, scenes.TREASURE)
        first = cast.tell(*cast.maybe(scenes.HABIT, 0.5))
    trouble = cast.tell(fear.happens, *cast.maybe(CANNOT, 0.8))
    tries = cast.rng.sample(fear.tries, 2)
    failing = cast.tell(
        (tries[0],), *cast.maybe(AGAIN, 0.8), (tries[1],), *cast.maybe(scenes.GIVING_UP, 0.6)
    )
    meeting = cast.tell(scenes.MEETING, *cast.maybe(scenes.WHAT_IS_WRONG, 0.9), SAYS_WHAT)
    kind_word = cast.maybe(ME_TOO, 0.8)
    said = "{f_he} went on" if kind_word else "said {friend}"
    trick = cast.tell(*kind_word, fear.trick, said=said.format_map(cast.slots))
    deed = cast.tell(fear.done, *cast.maybe(PROUD, 0.8))
    end = cast.tell(fear.after, END) if cast.chance(0.6) else cast.tell(END, scenes.TOGETHER)
    if cast.chance(0.5):
        return telling(opening, first, f"{trouble} {failing}", meeting, trick, deed, end)
    return telling(opening, first, trouble, failing, f"{meeting} {trick}", f"{deed} {end}")


PLOT = Plot("fear", Needs(thing=lambda thing: thing.lost is not None), False, tell)
