"""What a hero is like: a weakness that spoils every kind of try, until the hero turns it round."""

from dataclasses import dataclass

from sovereign_lab.recipes.storyteller.grammar.shapes import Beat, beat


@dataclass(frozen=True)
class Manner:
    """One way in which a trait shows at the beginning, and its echo at the end."""

    says: Beat
    echo: Beat


def manner(says: str, echo: str) -> Manner:
    return Manner(beat(says), beat(echo))


@dataclass(frozen=True)
class Trait:
    """`search`, `make`, `work` and `road` tell how the trait spoils looking for the {noun} {spot},
    making or mending something, a job, and a walk. In `advice`, {said} becomes "said" and the name
    of whoever gives it. `change` is what the hero does next, and `after` how it ends where no echo
    of the beginning is told.
    """

    adjective: str
    manners: tuple[Manner, ...]
    search: Beat
    make: Beat
    work: Beat
    road: Beat
    advice: Beat
    change: Beat
    after: Beat


TRAITS = (
    Trait(
        "hasty",
        manners=(
            manner(
                "{He} was always in a hurry.",
                "{hero} was still in a hurry most days, but never so much that {he} forgot to look.",
            ),
            manner(
                "{He} never walked when {he} could run.",
                "And {hero} walked home, for once, and did not run.",
            ),
            manner(
                "{He} did everything fast, even eating and sleeping.",
                "{hero} ate {his} supper slowly that night, and it tasted twice as good.",
            ),
            manner(
                "{He} was so quick that {he} often had to do things twice.",
                "And this time {hero} did not have to do it twice.",
            ),
            manner(
                "Nobody was faster than {hero}, and nobody fell over so often.",
                "{hero} was still the fastest of all, but {he} did not fall over so often.",
            ),
            manner(
                "{He} ran down every path and slid around every corner.",
                "{hero} still slid around corners, but {he} looked around them first.",
            ),
        ),
        search=beat(
            "{hero} looked {spot}, but so fast that {he} saw nothing.",
            "{hero} looked {spot} for one blink. One blink was not enough.",
            "{hero} ran past, took a quick look {spot} and ran on.",
            "{hero} turned over everything {spot} in one go, and after that {he} saw less than before.",
            "{hero} was {spot} and gone again before the dust had settled, and so {he} missed everything.",
        ),
        make=beat(
            "{hero} worked so fast that everything came out crooked.",
            "{hero} began with the end, because the end was the best part. That did not work.",
            "{hero} could not wait for the glue to dry, so nothing held.",
            "{hero} left out every second step to save time. It did not save any.",
            "{hero} was finished in a minute, and a minute later it fell apart.",
        ),
        work=beat(
            "{hero} did it so fast that [all of it|half of it] had to be done again.",
            "{hero} was done in no time, but so was the work, and it was done badly.",
            "{hero} ran and ran, and forgot the most important part.",
            "{hero} raced through it like the wind, and it looked as if the wind had done it.",
            "{hero} tried to do both ends at once, and met {himself} in the middle.",
        ),
        road=beat(
            "{hero} ran so fast that {he} took the wrong turn and had to run all the way back.",
            "{hero} jumped before {he} looked, and landed in a ditch.",
            "{hero} took a short cut, and the short cut was very long.",
            "{hero} was so fast that {he} ran right past the bridge.",
            "{hero} started to run, stopped to tie up the bundle, ran again, and lost {his} way twice.",
        ),
        advice=beat(
            '"You run too fast to see where you are," {said}. "Go slowly, and look twice."',
            '"Slow down," {said}. "The slow snail gets home too."',
            '"First look, then think, and then run," {said}. "Not the other way round."',
            '"Take one step at a time," {said}. "It is faster in the end."',
        ),
        change=beat(
            "For once, {hero} did not hurry.",
            "{hero} took a deep breath and went slowly, one thing at a time.",
            "{hero} counted to ten before {he} began. It was hard, but {he} did it.",
            "This time {hero} went as slowly as a snail.",
        ),
        after=beat(
            "{hero} had learned that slow can be quick.",
            "From then on, {hero} ran only when there was time to run.",
            "And when {hero} was in a hurry again, {he} counted to ten first.",
            "{hero} was still fast after that, but {he} always looked twice.",
        ),
    ),
    Trait(
        "clumsy",
        manners=(
            manner(
                "{He} tripped over everything, even over {his} own feet.",
                "{hero} tripped over {his} own feet on the way home, and laughed about it.",
            ),
            manner(
                "{He} bumped into trees, doors and anything that stood still.",
                "On the way home, {hero} bumped into only one tree.",
            ),
            manner(
                "{He} was kind but clumsy, and things fell down wherever {he} went.",
                "Things still fell down wherever {hero} went, but never the things that mattered.",
            ),
            manner(
                "If there was a puddle, {hero} fell into it.",
                "There were still puddles, and {hero} still fell into them, but not every time.",
            ),
            manner(
                "When {hero} came in, everyone held on to their plates.",
                "When {hero} came in that night, nobody held on to the plates.",
            ),
            manner(
                "{He} had four bumps on {his} head, one for each door.",
                "{hero} did not get one new bump that day.",
            ),
        ),
        search=beat(
            "{hero} wanted to look {spot}, but {he} tripped and landed on {his} nose.",
            "{hero} looked {spot} and bumped {his} head. Now {he} saw stars, but no {noun}.",
            "{hero} looked {spot}, slipped, and slid into a puddle.",
            "{hero} leaned over to look {spot}, leaned too far, and rolled away like a barrel.",
            "{hero} looked {spot}, but first {he} knocked everything over, and then {he} had to pick it all up.",
        ),
        make=beat(
            "{hero} knocked over the glue, and then {he} stepped in it.",
            "{hero} dropped everything, picked it up, and dropped it again.",
            "{hero} leaned on the table, and the table fell over.",
            "{hero} stepped back to look at it, and stepped right on it.",
            "{hero} hit everything but the right spot, and most of all {his} own foot.",
        ),
        work=beat(
            "{hero} tripped over the step, and everything had to be done again.",
            "{hero} bumped into the door, and everything fell down.",
            "{hero} did it well, but then {he} slipped and sat down in the middle of it.",
            "{hero} tripped over {his} own feet, and all the work was undone in a moment.",
            "{hero} got tangled up in it from head to foot and had to be pulled out.",
        ),
        road=beat(
            "{hero} tripped over a root and rolled all the way down into a ditch.",
            "{hero} slipped and landed in a puddle with a splash.",
            "{hero} walked into a fence post, said sorry to it, and walked into the next one.",
            "{hero} tripped, rolled down the slope, and had to climb it all over again.",
            "{hero} looked up at a bird and walked straight into a tree.",
        ),
        advice=beat(
            '"Look at your feet, not at the clouds," {said}. "Small steps do not trip."',
            '"You try to do three things at once," {said}. "Do one thing, and then the next."',
            '"Everybody falls," {said}. "Stand still for a moment before you begin."',
            '"Slow feet are sure feet," {said}. "Try it."',
        ),
        change=beat(
            "{hero} stood quite still for a moment. Then {he} took small, careful steps.",
            "{hero} looked at {his} feet, and this time {he} did not trip.",
            "This time {hero} did one thing, and then the next, and nothing fell down.",
            "{hero} moved as carefully as if {he} were walking on eggs.",
        ),
        after=beat(
            "After that, {hero} took small steps when it mattered.",
            "And when {hero} tripped again, {he} only laughed.",
            "{hero} still fell over now and then, but {he} always got up with a smile.",
            "{hero} was still clumsy, but never when it was important.",
        ),
    ),
    Trait(
        "shy",
        manners=(
            manner(
                "{He} was so shy that {he} spoke only in a whisper.",
                "{hero} still whispered, but now and then {he} said something out loud.",
            ),
            manner(
                "When visitors came, {hero} hid behind the door.",
                "And when visitors came, {hero} did not hide, or not for long.",
            ),
            manner(
                "{He} liked to talk to beetles, because beetles did not ask questions.",
                "{hero} still talked to beetles, but not only to beetles.",
            ),
            manner(
                "{He} had a very small voice, and {he} did not use it much.",
                "{hero} still had a small voice, but now {he} used it.",
            ),
            manner(
                "{He} turned red whenever anyone looked at {him}.",
                "{hero} still turned red sometimes, but {he} did not mind so much.",
            ),
            manner(
                "When someone said hello, {hero} looked at the ground.",
                "And the next time someone said hello, {hero} said hello, too.",
            ),
        ),
        search=beat(
            "{hero} wanted to ask if anyone had seen it, but {he} hid {spot} instead.",
            "{hero} looked {spot}, but then someone came by, and {he} ran away.",
            "{hero} asked about the {noun} in such a small voice that nobody heard.",
            '{hero} looked {spot}, and when somebody asked what {he} was doing, {he} said, "Nothing," and left.',
            "A beetle lived {spot}, and {hero} was too shy to ask the beetle to move.",
        ),
        make=beat(
            "{hero} was too shy to ask how it was done. {He} guessed, and {he} guessed wrong.",
            "Someone came by and offered to help, but {hero} hid under the table.",
            "{hero} needed better tools, but {he} did not dare to ask for them.",
            "{hero} wrote a note to ask for help, and then {he} hid the note.",
            "{hero} heard a knock at the door, dropped everything, and crept under the bed.",
        ),
        work=beat(
            "{hero} did not know how, and {he} was too shy to ask.",
            "People stopped to watch, and {hero} ran away and hid.",
            "{hero} had a question, but {he} only whispered it, and nobody answered.",
            "{hero} waited for everyone to go away before {he} began, and nobody went away.",
            "{hero} was so afraid of being watched that {he} shook, and nothing went right.",
        ),
        road=beat(
            "Whenever someone came along, {hero} hid until they had passed. It took a long time.",
            "{hero} did not dare to ask the way, and so {he} took the wrong one.",
            "Some children were playing on the path, and {hero} took a long way around them.",
            "There was a busy corner ahead, and {hero} waited behind a bush until it was empty.",
            "{hero} heard voices, turned around, and took the longest way there was.",
        ),
        advice=beat(
            '"A small voice is big enough to ask for help," {said}.',
            '"It is all right to be shy," {said}. "But you have to ask, or nobody can help."',
            '"Most people are glad when someone asks them," {said}. "Try it."',
            '"I used to be shy too," {said}. "Say it once, and the second time is easy."',
        ),
        change=beat(
            '{hero} swallowed hard. "Please help me," {he} said in a small voice.',
            '{hero} turned red, but {he} said it out loud. "Will you help me?"',
            '{hero} closed {his} eyes. "I cannot do it alone," {he} said. It was easier than {he} had thought.',
            "{hero} took a deep breath and spoke up, for the first time that day.",
        ),
        after=beat(
            "{hero} was still shy after that, but {he} knew how to ask.",
            "{hero} was a little braver every day after that.",
            "The first word is the hardest, and {hero} had said it.",
            "Being shy was not so bad, {hero} found, as long as you said so.",
        ),
    ),
    Trait(
        "proud",
        manners=(
            manner(
                "{He} never let anyone help {him}.",
                "After that, {hero} let others help {him}, at least now and then.",
            ),
            manner(
                '"I can do it alone," was what {he} said most.',
                '"I could do it alone," said {hero}, "but with a friend it is more fun."',
            ),
            manner(
                "{He} thought that {he} knew everything already.",
                "{hero} did not know everything any more, and that felt good.",
            ),
            manner(
                "{He} held {his} nose very high in the air.",
                "{hero} still held {his} nose high, but not so high that {he} could not see {his} friends.",
            ),
            manner(
                "{He} did not like to say please, and {he} did not like to say sorry.",
                "After that, {hero} said please at least once a day.",
            ),
            manner(
                "{He} never asked anyone anything.",
                "From then on, {hero} asked a question every day, just because {he} could.",
            ),
        ),
        search=beat(
            '"I do not need help," said {hero}, and {he} looked {spot} all alone. {He} found nothing.',
            "{hero} looked {spot}, but {he} held {his} nose so high that {he} could not see the ground.",
            'A beetle said, "I saw something." But {hero} did not ask beetles. {He} looked {spot} instead.',
            "{hero} looked {spot} as if the {noun} ought to come to {him}. It did not come.",
            '"Only I know how to look," said {hero}, and {he} looked {spot}. It turned out that {he} did not.',
        ),
        make=beat(
            '"I know how to do it," said {hero}. {He} did not know how to do it.',
            '"It is meant to look like that," said {hero}, but it was not.',
            "{hero} would not let anyone hold the other end, and so it slipped.",
            "{hero} threw away the plan, because {he} did not need a plan. {He} did need a plan.",
            '"Easy," said {hero}, and a moment later, "Oh."',
        ),
        work=beat(
            '"Nobody has to show me," said {hero}. Soon everything was upside down.',
            '"That is far too easy for me," said {hero}. It was not.',
            "{hero} did it {his} own way, and {his} own way was wrong.",
            "{hero} began before anyone could tell {him} how, and it went wrong at once.",
            '"I am the best at this," said {hero}. The work did not seem to know.',
        ),
        road=beat(
            '"I know the way," said {hero}, and {he} walked right past the sign.',
            '"I never get lost," said {hero}. An hour later {he} was very lost.',
            "Someone called out that it was the wrong way, but {hero} did not turn {his} head.",
            "There was a sign on a post, but {hero} said that signs were for others.",
            "{hero} could have asked a shepherd, but {he} held up {his} nose and went on, in the wrong direction.",
        ),
        advice=beat(
            '"Even the tallest tree needs the rain," {said}. "Why do you not ask for help?"',
            '"Nobody knows everything," {said}. "I do not, and you do not."',
            '"Two heads know more than one," {said}. "Even if the one is yours."',
            '"Please is a very short word," {said}. "It opens many doors."',
        ),
        change=beat(
            '"Please help me," said {hero}. The words were not so hard after all.',
            '{hero} looked at the ground. "I do not know how," {he} said. "Please show me."',
            '{hero} was quiet for a long time. Then {he} said, "Please."',
            '"Perhaps I do not know everything," said {hero}. "Will you help me?"',
        ),
        after=beat(
            "From then on, {hero} knew that two can do more than one.",
            "{hero} had said please, and the sky had not fallen down.",
            "{hero} was still proud, but now of {his} friends, too.",
            "After that, {hero} asked for help when {he} needed it.",
        ),
    ),
    Trait(
        "forgetful",
        manners=(
            manner(
                "{He} forgot everything, sometimes even {his} own name.",
                "{hero} still forgot {his} own name sometimes, but never that day.",
            ),
            manner(
                "{He} had a head like a sieve.",
                "{hero}'s head was still like a sieve, but that day stayed in it.",
            ),
            manner(
                "If {he} went out to get milk, {he} came home with mushrooms.",
                "{hero} still came home with mushrooms instead of milk, but nobody minded.",
            ),
            manner(
                "{He} made knots in a string to remember things, and then {he} forgot what they meant.",
                "{hero} made a knot in {his} string for that day, and {he} always knew what it meant.",
            ),
            manner(
                "{He} often stopped and asked {himself} what {he} was doing.",
                "{hero} still stopped to ask {himself} what {he} was doing, but now {he} mostly knew.",
            ),
            manner(
                "{He} said good morning in the evening, because {he} had forgotten to say it before.",
                '"Good morning," said {hero} that evening, and everyone laughed.',
            ),
        ),
        search=beat(
            "{hero} looked {spot}, and a little later {he} looked there again, because {he} had forgotten.",
            "{hero} looked {spot}, but on the way {he} had forgotten what {he} was looking for.",
            "{hero} looked {spot} four times, and each time {he} thought it was the first.",
            "{hero} looked {spot} and forgot to come back, until {he} heard {his} own tummy.",
            "{hero} knew that {he} wanted to look {spot}, but when {he} got there, {he} could not think why.",
        ),
        make=beat(
            "{hero} forgot where {he} had put the scissors. {He} was sitting on them.",
            "{hero} forgot the most important piece, and it all came apart.",
            "{hero} stopped to eat lunch and forgot how {he} had begun.",
            "{hero} remembered everything but the middle, and the middle was important.",
            "{hero} put one piece in a safe place, and forgot where the safe place was.",
        ),
        work=beat(
            "{hero} began well, but halfway through {he} forgot what {he} was doing.",
            "{hero} forgot what {he} had to do and did something else.",
            "{hero} did it twice, because {he} forgot that it was done.",
            "{hero} went to get what {he} needed, and came back with a carrot.",
            '{hero} said, "I must not forget the most important thing," and forgot it.',
        ),
        road=beat(
            "At the first corner {hero} forgot whether to go left or right, and {he} went wrong.",
            "Halfway there, {hero} forgot where {he} was going and turned around.",
            "{hero} stopped to think about where {he} was going, and forgot to go on.",
            "{hero} passed the same stone three times, because {he} had forgotten that {he} had seen it.",
            "{hero} forgot {his} lunch, went back for it, and then forgot it again.",
        ),
        advice=beat(
            '"Say it out loud," {said}. "What you say, you do not forget so fast."',
            '"Make a little song of it," {said}. "Songs stay in the head."',
            '"Begin at the beginning," {said}. "What came first? And what came next?"',
            '"Go back in your head, one step at a time," {said}.',
        ),
        change=beat(
            "{hero} said every step out loud, and this time {he} forgot nothing.",
            "{hero} made up a little song of all the steps and sang it again and again.",
            "{hero} shut {his} eyes and thought. Slowly, one thing after another came back to {him}.",
            '"First this, then that," said {hero}, again and again, so as not to forget.',
        ),
        after=beat(
            "After that, {hero} had a little song for everything.",
            "{hero} forgot many things in {his} life, but not this.",
            "{hero} still forgot a lot of things, but never that day.",
            "And what {hero} did not want to forget, {he} now said out loud.",
        ),
    ),
    Trait(
        "dreamy",
        manners=(
            manner(
                "{He} could look at the clouds for hours.",
                "Then at last {hero} lay down and looked at the clouds.",
            ),
            manner(
                "{He} was always thinking of something else.",
                "That night {hero} thought of one thing only, and it was a happy one.",
            ),
            manner(
                "When others worked, {hero} looked at the sky.",
                "{hero} looked at the sky again, but only when the work was done.",
            ),
            manner(
                "{He} knew the shape of every cloud, but not where {he} had left {his} lunch.",
                "And {hero} even knew where {he} had left {his} lunch.",
            ),
            manner(
                "You had to call {hero} three times before {he} heard you.",
                "From then on, you had to call {hero} only twice.",
            ),
            manner(
                "{He} dreamed at night, and {he} dreamed by day as well.",
                "{hero} kept {his} dreams for the night, or most of them.",
            ),
        ),
        search=beat(
            "{hero} looked {spot}, but there was such a fine beetle there that {he} forgot the {noun}.",
            "{hero} was going to look {spot}, but a cloud came by that looked like a whale.",
            "{hero} looked {spot} and dreamed that the {noun} was there. It was not.",
            "{hero} looked {spot} and saw how the light played there, and an hour went by.",
            "{hero} sat down {spot} to think, and {his} thoughts flew away like birds.",
        ),
        make=beat(
            "{hero} was thinking of clouds, and so {he} made everything the wrong way round.",
            "{hero} looked out of the window, and when {he} looked back, the glue was dry.",
            "{hero} dreamed of how fine it would be, and forgot to go on.",
            "{hero} began to hum, and then to dream, and when {he} woke up, {he} had done it all backward.",
            "{hero} saw a face in the pieces and told it a story, and got nothing done.",
        ),
        work=beat(
            "{hero} looked at a butterfly for an hour, and then the hour was gone.",
            "{hero} began to dream, and nothing got done.",
            "{hero} saw faces in the clouds and had to count them all.",
            "{hero} stopped to listen to a bird, and the bird had a very long song.",
            "{hero} was far away in {his} thoughts, and the work stayed where it was.",
        ),
        road=beat(
            "{hero} followed a butterfly and not the path.",
            "{hero} lay down to look at one small cloud, and then at the next.",
            "{hero} dreamed that {he} was already there, and walked right past the turn.",
            "{hero} watched {his} own shadow, and the shadow led {him} off the path.",
            "A leaf came floating down a ditch, and {hero} walked along with it, the wrong way.",
        ),
        advice=beat(
            '"Dreams are good," {said}. "But first look at what is in front of your nose."',
            '"The clouds can wait," {said}. "They have all day."',
            '"Keep one eye for the sky and one for the ground," {said}.',
            '"Think of one thing only," {said}. "When it is done, you may dream."',
        ),
        change=beat(
            "{hero} did not look at the clouds. {He} looked only at what was in front of {him}.",
            "A cloud like a whale sailed by, but {hero} did not even look up.",
            "{hero} thought of one thing only, and of nothing else.",
            "For once, {hero} kept {his} eyes and {his} mind in the same place.",
        ),
        after=beat(
            "{hero} still dreamed after that, but with one eye open.",
            "From then on, {hero} did things first and dreamed of them later.",
            "And the clouds? They had waited for {hero}.",
            "Now {hero} could dream again, and {he} did.",
        ),
    ),
    Trait(
        "chatty",
        manners=(
            manner(
                "{He} talked from morning till night.",
                "{hero} still talked from morning till night, but {he} stopped to listen now and then.",
            ),
            manner(
                "{He} talked to everyone, even to stones.",
                "{hero} told it all to the stones, and the stones listened.",
            ),
            manner(
                "{He} talked so much that nobody else could say a word.",
                "{hero} even let the others say a word, and sometimes two.",
            ),
            manner(
                "{He} even talked in {his} sleep.",
                "That night, {hero} told the whole story in {his} sleep.",
            ),
            manner(
                "{He} had a story for everything, and {he} told it twice.",
                "Of course, {hero} told this story twice as well, and the second time it was longer.",
            ),
            manner(
                "When {he} had nothing to say, {he} said it anyway.",
                "And when {hero} had nothing to say, {he} now said nothing, at least for a while.",
            ),
        ),
        search=beat(
            "{hero} looked {spot} and told a snail all about it. The snail fell asleep.",
            "{hero} asked everyone about the {noun}, but {he} talked on and did not hear what they said.",
            "{hero} looked {spot}, but {he} talked so much that {he} forgot to look.",
            "{hero} sat down {spot} and told the whole story to an ant. The ant had work to do.",
            "{hero} looked {spot}, talking all the time, and talked {himself} right past it.",
        ),
        make=beat(
            "{hero} talked so much that {he} did not see what went wrong.",
            "{hero} was told how to do it, but {he} was talking and did not hear.",
            "{hero} told the glue a long story, and by then the glue was dry.",
            "{hero} was just telling the table a joke when everything slipped.",
            "{hero} counted out loud, and talked in between, and lost count.",
        ),
        work=beat(
            "{hero} told the neighbours all about it, and then it was noon and nothing was done.",
            "{hero} talked and talked, and the work waited and waited.",
            "{hero} was told what to do, but {he} was talking and did it all wrong.",
            "{hero} stopped to tell a joke, and the joke was longer than the work.",
            "{hero} asked how it was done, and answered the question {himself}, and the answer was wrong.",
        ),
        road=beat(
            "{hero} met a snail, and told the snail {his} whole life. It took an hour.",
            "{hero} asked the way, but {he} kept talking and did not hear the answer.",
            "{hero} stopped to talk to every beetle on the path.",
            "{hero} met a goat who talked just as much, and neither of them could stop.",
            "{hero} talked to the scarecrow for half an hour before {he} noticed.",
        ),
        advice=beat(
            '"You have two ears and only one mouth," {said}. "Try to listen."',
            '"Hush," {said}. "When you are quiet, you can hear a lot."',
            '"Shut your mouth and open your eyes," {said}, not unkindly.',
            '"Let us be quiet for a moment," {said}. "Then we can think."',
        ),
        change=beat(
            "{hero} shut {his} mouth. It was the longest that {he} had ever been quiet.",
            "For once, {hero} did not say a word. {He} only listened.",
            "{hero} pressed {his} lips together, and suddenly {he} saw and heard much more.",
            "{hero} was as quiet as a mushroom.",
        ),
        after=beat(
            "{hero} still talked a lot after that, but {he} listened, too.",
            "And once a day, {hero} was quiet for as long as {he} could.",
            "Then {hero} talked about it for a whole week.",
            "{hero} had found out that there is a lot to hear.",
        ),
    ),
    Trait(
        "stubborn",
        manners=(
            manner(
                "When {he} had made up {his} mind, nobody could change it.",
                "Now and then, {hero} even changed {his} mind.",
            ),
            manner(
                "{He} said no before {he} had heard the question.",
                "After that, {hero} said no only when {he} had heard the question.",
            ),
            manner(
                "{He} always went straight ahead, even where there was a wall.",
                "{hero} still went straight ahead, but {he} went around the walls.",
            ),
            manner(
                "{He} always did things in the same way, even if it was the wrong way.",
                "From then on, {hero} did one thing in a new way every day.",
            ),
            manner(
                "You could sooner move a mountain than {hero}.",
                "The mountains did not move, but {hero} did, a little.",
            ),
            manner(
                '{He} had never in {his} life said, "You are right."',
                '"You are right," said {hero} that evening, and everyone was very surprised.',
            ),
        ),
        search=beat(
            "{hero} was sure that it was {spot}. {He} looked there five times, and five times it was not.",
            "{hero} looked {spot} and nowhere else, because that was where it had to be.",
            '"It must be {spot}," said {hero}, and would not hear of any other place.',
            "A bird said that there was nothing {spot}, and so {hero} looked there twice as long.",
            "{hero} looked {spot}, and because {he} had said that it was there, {he} would not leave.",
        ),
        make=beat(
            "It did not work, so {hero} did it again in just the same way. It did not work again.",
            "The piece did not fit, and {hero} pushed it in anyway. It broke.",
            '"It has to go this way," said {hero}, but it did not want to go that way.',
            "{hero} had begun with the wrong end, and {he} would not begin again.",
            '"I will not stop," said {hero}, even when there was nothing left to do it with.',
        ),
        work=beat(
            "{hero} was shown a better way, but {he} shook {his} head and did it the hard way.",
            "{hero} pulled where {he} should have pushed, and would not stop pulling.",
            "It went wrong, and {hero} did it the same way again.",
            '"This is how I have always done it," said {hero}, and it was why it had never worked.',
            "{hero} would not put down half of it, and so {he} dropped all of it.",
        ),
        road=beat(
            "{hero} would not go around the big puddle. {He} went through it and lost an hour.",
            "There was a new path, but {hero} took the old one, and the old one was closed.",
            "{hero} wanted to go straight ahead, and straight ahead there was a wall.",
            "There was an easy way and a hard way. {hero} had said hard, and so it was hard.",
            "The sign said left. {hero} went right, and would not turn back for a whole hour.",
        ),
        advice=beat(
            '"If the door is shut, try the window," {said}.',
            '"Water does not fight with the stone," {said}. "It goes around."',
            '"You have tried it one way," {said}. "There are a hundred others."',
            '"It is no shame to turn around," {said}.',
        ),
        change=beat(
            '"All right," said {hero} at last. "I will try it another way."',
            "It was hard for {hero} to turn around, but {he} did.",
            "{hero} wanted to say no. Then {he} thought about it, and said yes.",
            'For the first time in {his} life, {hero} said, "Perhaps I was wrong."',
        ),
        after=beat(
            "{hero} was still stubborn, but from then on {he} tried a thing twice and no more.",
            "After that, {hero} said yes now and then, just to see what would happen.",
            '"Perhaps" was a new word for {hero}, and {he} began to like it.',
            "{hero} had learned that there is more than one way.",
        ),
    ),
    Trait(
        "sleepy",
        manners=(
            manner(
                "{He} yawned all day long.",
                "{hero} yawned, but this time {he} had earned it.",
            ),
            manner(
                "{He} could fall asleep anywhere, even standing up.",
                "{hero} fell asleep standing up that night, with a smile on {his} face.",
            ),
            manner(
                "{He} got up late, and then {he} needed a nap.",
                "The next morning, {hero} got up early, and took a nap only after lunch.",
            ),
            manner(
                "{He} loved {his} bed more than most people love cake.",
                "{hero} still loved {his} bed, but now {he} loved the day as well.",
            ),
            manner(
                "{He} often fell asleep in the middle of a word.",
                '"What a beautiful d..." said {hero} that evening, and was asleep.',
            ),
            manner(
                "{He} had never seen the sun come up.",
                "The next morning, {hero} saw the sun come up for the first time.",
            ),
        ),
        search=beat(
            "{hero} wanted to look {spot}, but it was so soft there that {he} fell asleep.",
            "{hero} looked {spot} with half-closed eyes, and with half-closed eyes you see only half.",
            "{hero} sat down for a moment to think where to look, and slept until noon.",
            "{hero} looked {spot}, put down {his} head to see better, and was asleep.",
            "{hero} yawned so hard {spot} that {his} eyes were full of water, and {he} saw nothing.",
        ),
        make=beat(
            "{hero} fell asleep over the work, with {his} nose in the glue.",
            "{hero} yawned, and everything slipped and fell.",
            "{hero} lay down until the glue was dry, and slept right on top of it.",
            "{hero} closed {his} eyes for one moment, and the moment was an hour long.",
            "{hero} did the last part in {his} sleep, and it looked like it.",
        ),
        work=beat(
            "{hero} leaned on the wall for a moment, and slept until noon.",
            "{hero} did half of it, and then {he} lay down in the shade.",
            "{hero} yawned so often that there was no time for anything else.",
            "{hero} found a sunny corner, and that was the end of the work.",
            "{hero} counted what was left to do, as others count sheep, and fell asleep at nine.",
        ),
        road=beat(
            "{hero} sat down to rest, only for a moment, and slept for an hour.",
            "{hero} walked with {his} eyes half shut, and so {he} missed the turn.",
            "There was a patch of soft moss by the path, and {hero} could not walk past it.",
            "The sun was so warm that {hero} lay down in a hollow and slept until the ants woke {him}.",
            "{hero} walked and slept at the same time, and came out at the wrong end.",
        ),
        advice=beat(
            '"Wash your face with cold water," {said}. "You can sleep when it is done."',
            '"Sing something," {said}. "Nobody can sleep while singing."',
            '"Stand up straight," {said}. "The night is for sleeping, the day is for doing."',
            '"Open your eyes as wide as you can," {said}. "The day is shorter than you think."',
        ),
        change=beat(
            "{hero} washed {his} face with cold water, and now {he} was wide awake.",
            "{hero} sang as loud as {he} could, and did not yawn once.",
            "{hero} opened {his} eyes wide, wider than ever before.",
            "A nap would have been nice, but {hero} stayed on {his} feet.",
        ),
        after=beat(
            "And then, at last, {hero} slept, and {he} had earned it.",
            "{hero} yawned, smiled and slept like a stone that night.",
            "{hero} still took naps after that, but only when the work was done.",
            "That night, {hero} was tired in a good way.",
        ),
    ),
    Trait(
        "bossy",
        manners=(
            manner(
                "{He} liked to tell others what to do.",
                "After that, {hero} asked more and shouted less.",
            ),
            manner(
                "{He} told the birds when to sing and the snails when to hurry.",
                "{hero} still told the snails to hurry, but {he} said please.",
            ),
            manner(
                "{He} always wanted to go first.",
                "From then on, {hero} let others go first, at least on some days.",
            ),
            manner(
                '"Do it my way" was what {he} said most.',
                '"Let us do it your way," {hero} said now and then.',
            ),
            manner(
                "{He} thought that the sun came up because {he} said so.",
                "The sun went down that night without an order from {hero}, and it was beautiful.",
            ),
            manner(
                "{He} made the rules for every game, and {he} always won.",
                "Now others made the rules, too, and {hero} did not always win. It was more fun.",
            ),
        ),
        search=beat(
            '"You look there, and you look {spot}," {hero} told everyone. They all went home.',
            "{hero} told a snail to look {spot}. The snail crept into its house.",
            '"Everybody stop and look for my {noun}!" shouted {hero}. Nobody stopped.',
            '"Come out at once!" {hero} shouted {spot}. A frightened beetle came out, but no {noun}.',
            "{hero} told the sun to shine {spot}. The sun went behind a cloud.",
        ),
        make=beat(
            "Two neighbours came to help, but {hero} gave so many orders that they left.",
            '"Hold this, push that, faster!" cried {hero}, but there was no one left to hold it.',
            "{hero} told the glue to hurry up. Glue does not listen.",
            "{hero} told everyone else what to do, and in the end nobody had done the hard part.",
            '"You are doing it wrong," {hero} told {his} helpers, until there were no helpers.',
        ),
        work=beat(
            "{hero} told everybody else how to do it, and did nothing.",
            "{hero} gave orders all morning, and nobody did them.",
            "{hero} wanted to lead, but there was nobody behind {him}.",
            '"Faster!" {hero} told the clouds and the cows. They took their time.',
            "{hero} spent the morning making rules for the work, and the work was not done.",
        ),
        road=beat(
            '"Out of my way!" {hero} shouted at a bull. The bull did not move at all.',
            '"Carry me across!" {hero} told a swan, but the swan only laughed.',
            "{hero} told a stranger to show {him} the way, and the stranger pointed the wrong way.",
            "{hero} told the road to be shorter. It was just as long as before.",
            '"Make way!" cried {hero} to a flock of sheep, and the sheep made none.',
        ),
        advice=beat(
            '"Nobody likes orders," {said}. "Try asking."',
            '"You catch more flies with honey," {said}. "Be friendly."',
            '"Why not ask what the others think?" {said}.',
            '"Let someone else go first for once," {said}.',
        ),
        change=beat(
            '"What would you do?" asked {hero}. It was the first time {he} had ever asked that.',
            'This time {hero} did not give orders. "Would you help me, please?" {he} asked.',
            '"You go first," said {hero}, and it did not hurt at all.',
            "{hero} wanted to give an order, but {he} bit {his} tongue and asked instead.",
        ),
        after=beat(
            "{hero} found that a question gets more help than an order.",
            "After that, {hero} said please before everything.",
            "{hero} had stopped giving orders, and suddenly everyone wanted to help.",
            "And when {hero} wanted to give an order again, {he} counted to three and asked.",
        ),
    ),
    Trait(
        "hungry",
        manners=(
            manner(
                "{He} was always hungry.",
                "{hero} was still hungry every day, but now {he} knew how to wait.",
            ),
            manner(
                "{He} ate breakfast twice, just to be sure.",
                "The next day, {hero} ate breakfast only once, or almost.",
            ),
            manner(
                "{He} could smell a cake from a mile away.",
                "And then {hero} smelled a cake, and this time {he} had earned a piece.",
            ),
            manner(
                "{He} thought about lunch all morning and about supper all afternoon.",
                "{hero} had forgotten all about lunch, and so {he} ate it with {his} supper.",
            ),
            manner(
                "{His} tummy was like a hole with no bottom.",
                "That night, even the tummy of {hero} was full.",
            ),
            manner(
                "Before {he} did anything, {he} had to have a bite of bread.",
                "And then {hero} had a bite of bread, and another, and another.",
            ),
        ),
        search=beat(
            "{hero} wanted to look {spot}, but there were berries there, and {he} ate until it was late.",
            "{hero} looked {spot}, but {his} tummy growled so loud that {he} could not think.",
            "{hero} followed a good smell instead, and found only someone's soup.",
            "{hero} looked {spot}, but only for something to eat.",
            "{hero} sat down {spot} for a small bite, and the small bite became a big one.",
        ),
        make=beat(
            "{hero} stopped for lunch, and then for a second lunch.",
            "{hero} worked with jam on {his} fingers, and everything stuck to everything.",
            "{hero} could only think of cake, and so {he} did it all wrong.",
            "{hero} used up all the paste, because it tasted of flour.",
            "{hero} ran to see what was for supper, and left everything lying in the sun.",
        ),
        work=beat(
            "{hero} stopped to eat every few minutes, and the work did not get done.",
            "{hero} ate so much at noon that {he} could hardly move.",
            "{hero} followed the smell of pancakes and left the work half done.",
            "{hero} ate a bun with every step, and so {he} did not take many steps.",
            "{hero} took one short break for bread, and one for cheese, and one for plums.",
        ),
        road=beat(
            "There were blackberries by the path, and {hero} ate until {he} could hardly walk.",
            "{hero} smelled cake, and followed {his} nose the wrong way.",
            "{hero} stopped to eat {his} bread, and then {he} stopped to look for more.",
            "There was a plum tree by the path, and {hero} did not leave it while there were plums.",
            "{hero} smelled soup at an open window, and stayed for three helpings.",
        ),
        advice=beat(
            '"First the work, then the cake," {said}.',
            '"Your tummy can wait," {said}. "This cannot."',
            '"Think with your head, not with your tummy," {said}.',
            '"Supper tastes best when the work is done," {said}.',
        ),
        change=beat(
            "{hero}'s tummy growled, but {he} told it to be quiet.",
            "There was a smell of cake in the air, but {hero} did not turn around.",
            "{hero} put {his} bread away and did not take one bite.",
            "For a whole hour, {hero} did not think about food at all.",
        ),
        after=beat(
            "And then {hero} ate three plates of pancakes.",
            "Supper had never tasted so good to {hero}.",
            "That evening there was cake, and {hero} had the biggest piece.",
            "And for once, {hero} had something better than food to think about.",
        ),
    ),
    Trait(
        "grumpy",
        manners=(
            manner(
                "{He} grumbled all day, even when the sun was shining.",
                "{hero} still grumbled after that, but with a smile.",
            ),
            manner(
                "{He} found the sun too bright and the rain too wet.",
                "The rain was still too wet, but {hero} did not mind so much.",
            ),
            manner(
                "{He} was grumpy in the morning, and in the evening {he} was grumpier.",
                "From then on, {hero} was grumpy only before breakfast.",
            ),
            manner(
                '"Leave me alone" was what {he} said most.',
                '"Stay a little longer," {hero} said to everyone that evening.',
            ),
            manner(
                "{He} had not smiled since spring.",
                "And {hero} smiled, for the first time since spring.",
            ),
            manner(
                "{He} looked like three days of rain.",
                "{hero} did not look like rain any more. {He} looked like a fine day in summer.",
            ),
        ),
        search=beat(
            "{hero} grumbled so loud {spot} that everyone who might have helped ran away.",
            "{hero} looked {spot}, kicked a stone, and hurt {his} foot.",
            'A neighbour offered to look {spot}. "Leave me alone," said {hero}, and so the neighbour did.',
            "{hero} looked {spot} and found only something new to grumble about.",
            '"Who puts things {spot}?" grumbled {hero}, and stamped off before {he} had really looked.',
        ),
        make=beat(
            "{hero} got so cross that {he} threw it all into a corner.",
            '"Silly glue, silly table," said {hero}, and banged on it until it fell apart.',
            "Someone offered to help, but {hero} only growled.",
            "{hero} pulled too hard, because {he} was cross, and something went snap.",
            '"This is silly," said {hero}, and did it badly to prove it.',
        ),
        work=beat(
            "{hero} grumbled so much that the work took twice as long.",
            "{hero} kicked the wall because it was in the way, and had to rest {his} foot.",
            "{hero} frowned at the work, but frowning did not get it done.",
            "{hero} was so busy being cross that {he} did it all twice, and badly both times.",
            '"Why me?" said {hero}, forty times, and then it was evening.',
        ),
        road=beat(
            "{hero} was so cross that {he} stamped {his} foot, right into a puddle.",
            "Someone wanted to show {him} the way, but {hero} only growled, and got lost.",
            "{hero} kicked a stone, and then {he} had to hop all the way on one foot.",
            "A bird sang, and {hero} stopped to tell it to be quiet. The bird sang louder.",
            "{hero} was so busy grumbling at the sky that {he} walked into a ditch.",
        ),
        advice=beat(
            '"You look like a rainy day," {said}. "Try a smile. It costs nothing."',
            '"A friendly word is worth more than ten growls," {said}.',
            '"It is hard to help a thundercloud," {said}. "Would you like a bit of cake?"',
            '"I think you are not cross," {said}. "I think you are sad."',
        ),
        change=beat(
            '{hero} opened {his} mouth to grumble. "Thank you," {he} said instead.',
            "Slowly, one corner of {hero}'s mouth went up, and then the other.",
            '{hero} gave a small smile. It felt strange. "Let us try again," {he} said.',
            "{hero} tried very hard, and did not grumble for a whole hour.",
        ),
        after=beat(
            "It was hard for {hero} to frown after that.",
            "{hero} was not grumpy any more, or only a little.",
            "Even {hero}'s eyebrows looked friendly that evening.",
            "From that day on, {hero} grumbled less and laughed more.",
        ),
    ),
)
