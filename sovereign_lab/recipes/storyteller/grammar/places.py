"""Where stories happen: what can be found there, and what goes wrong there."""

from dataclasses import dataclass

from sovereign_lab.recipes.storyteller.grammar.shapes import Beat, beat


@dataclass(frozen=True)
class Place:
    """`low` and `high`: where a thing may lie, or hang when the wind has taken it.

    `search`: why looking for a thing fails here. `road`: why walking through it is hard.
    `scenes`: a sentence for the eye.
    """

    key: str
    preposition: str
    names: tuple[str, ...]
    low: tuple[str, ...]
    high: tuple[str, ...]
    search: Beat
    road: Beat
    scenes: Beat


PLACES = (
    Place(
        "wood",
        "in",
        ("the quiet wood", "the deep wood", "the green wood", "the old oak wood", "the pine wood"),
        (
            "under the ferns",
            "between the roots of an oak",
            "beside a fallen log",
            "under a heap of leaves",
            "behind a mossy stone",
        ),
        (
            "on a branch of the tallest pine",
            "high up in a birch tree",
            "on a twig of the old oak",
        ),
        search=beat(
            "The brambles were full of thorns, and {hero} had to [turn back|give up].",
            "Under the trees it was so dark that {hero} could not see {his} own feet.",
            "There were so many leaves on the ground that {hero} found only more leaves.",
            "{hero} looked behind one tree after another, but the wood had a thousand trees.",
            "{hero} crawled into a bush and came out with burrs from head to foot.",
        ),
        road=beat(
            "A big tree had fallen across the path, and {hero} had to go a long way round.",
            "The path split in two, and both ways looked the same.",
            "It grew so dark under the trees that {hero} lost the path.",
            "Brambles had grown over the path, and they held {hero} fast.",
        ),
        scenes=beat(
            "The sun fell through the leaves in little spots.",
            "Somewhere a woodpecker was knocking.",
            "The trees whispered in the wind.",
            "It smelled of moss and mushrooms.",
        ),
    ),
    Place(
        "pond",
        "by",
        ("the silver pond", "the willow pond", "the duck pond", "the green pond", "the round pond"),
        (
            "between the reeds",
            "under the willow",
            "beside a flat stone",
            "under the wooden bench",
            "in the soft mud by the water",
        ),
        (
            "on a branch of the willow",
            "on the tip of the tallest reed",
            "high up in the alder tree",
        ),
        search=beat(
            "The reeds were so tall that {hero} could see nothing but reeds.",
            "The mud was so soft that {hero} sank in up to {his} knees.",
            "The water was so cloudy that {hero} saw only a fish, and the fish knew nothing.",
            "{hero} asked the fish, but fish never answer.",
            "A mist lay over the water, and {hero} could not see to the other side.",
        ),
        road=beat(
            "The path by the water was deep in mud, and every step went slowly.",
            "Seven swans sat on the path, and they did not move for anyone.",
            "A thick mist came up from the water, and {hero} walked in a circle.",
            "The little bridge had lost a plank, and {hero} had to go the long way round.",
        ),
        scenes=beat(
            "The water lay as still as glass.",
            "Dragonflies danced over the water.",
            "Now and then a fish jumped.",
            "The reeds nodded in the wind.",
        ),
    ),
    Place(
        "river",
        "by",
        (
            "the wide river",
            "the slow river",
            "the winding river",
            "the stony river",
            "the old bridge",
        ),
        (
            "under the bridge",
            "between two big stones",
            "in the tall grass on the bank",
            "behind a heap of driftwood",
            "under a bush by the water",
        ),
        ("on a branch over the water", "high up in the poplar", "on the post of the bridge"),
        search=beat(
            "The grass on the bank was so tall that {hero} could not see over it.",
            "{hero} turned over a hundred stones, and under each stone lay another stone.",
            "The river ran so loud that {hero} could hardly think.",
            "The bank was so slippery that {hero} slid down it twice.",
            "The wet stones all shone in the sun, and {hero} was fooled by every one.",
        ),
        road=beat(
            "The river had washed away the path, and {hero} had to climb over the rocks.",
            "The bank was so slippery that {hero} slid back two steps for every three.",
            "The gate on the bridge was shut, and {hero} had to wait.",
            "The path turned with the river, left and right and left again, and it took forever.",
        ),
        scenes=beat(
            "The river hummed its long, low song.",
            "The water sparkled in the sun.",
            "Little waves slapped against the stones.",
            "A heron stood in the water on one leg.",
        ),
    ),
    Place(
        "meadow",
        "in",
        (
            "the sunny meadow",
            "the long meadow",
            "the clover meadow",
            "the misty meadow",
            "the flower meadow",
        ),
        (
            "between the daisies",
            "under a big dandelion",
            "in a patch of clover",
            "behind a molehill",
            "beside the old fence",
        ),
        ("on the old fence post", "high up in the lone apple tree", "on the tip of a thistle"),
        search=beat(
            "The grass was so tall that {hero} could not see {his} own feet.",
            "One patch of grass looked just like the next, and {hero} searched the same patch twice.",
            "A cross bee buzzed round and round, and {hero} had to run away.",
            "The thistles were too prickly, and {hero} had to [turn back|give up].",
            "There were a thousand flowers, and {hero} looked under only seven.",
        ),
        road=beat(
            "The grass was wet and heavy, and every step was hard.",
            "There was no path in the tall grass, and {hero} went in a circle.",
            "A row of thistles stood in the way, and {hero} had to go around them.",
            "The rain had made a lake of half the meadow, and {hero} had to go around it.",
        ),
        scenes=beat(
            "Bees hummed over the clover.",
            "The grass moved like waves.",
            "A lark sang high in the sky.",
            "The air smelled of hay.",
        ),
    ),
    Place(
        "hill",
        "on",
        (
            "the windy hill",
            "the green hill",
            "the round hill",
            "the rocky hill",
            "the hill behind the village",
        ),
        (
            "behind a grey rock",
            "in a crack between two rocks",
            "under a juniper bush",
            "at the foot of the hill",
            "in a patch of heather",
        ),
        ("on the crooked tree", "on the highest rock", "on the old signpost"),
        search=beat(
            "The wind was so strong that it pushed {hero} back down the hill.",
            "A cloud came down over the rocks, and {hero} could see nothing at all.",
            "{hero} climbed all the way up, but there was nothing there except the wind.",
            "There was a rock behind every rock, and {hero} grew tired of climbing.",
            "The slope was so steep that {hero} slid down it on {his} bottom.",
        ),
        road=beat(
            "The path was so steep that {hero} had to rest at every bend.",
            "The wind pushed so hard that {hero} went one step back for every two.",
            "A cloud came down over the path, and {hero} could not see the way.",
            "Loose stones rolled under {his} feet, and {hero} slid halfway down again.",
        ),
        scenes=beat(
            "From up there you could see half the world.",
            "The wind sang in the grass.",
            "White clouds sailed over the rocks.",
            "Far below, the houses looked like toys.",
        ),
    ),
    Place(
        "farm",
        "on",
        ("the old farm", "the little farm", "the busy farm", "the big farm", "the hillside farm"),
        (
            "under the hay",
            "behind the barn door",
            "beside the water trough",
            "under the old wagon",
            "in a corner of the barn",
        ),
        ("on the roof of the barn", "high up in the walnut tree", "on the tall gate"),
        search=beat(
            "The hay was piled so high that {hero} could have searched it for a year.",
            "The geese hissed and would not let {hero} into the yard.",
            "It was so dusty in the barn that {hero} could only sneeze.",
            "The cows stood in the way, and cows are never in a hurry.",
            "{hero} looked in the barn, but the door blew shut and it was pitch dark.",
        ),
        road=beat(
            "The cows were coming home, and {hero} had to wait until the last one had passed.",
            "The lane was deep in mud, and {hero} got stuck.",
            "The geese stood in the lane and hissed, and {hero} had to go around the barn.",
            "Someone had shut the big gate, and {hero} had to crawl under it.",
        ),
        scenes=beat(
            "The hens were scratching in the yard.",
            "It smelled of fresh hay.",
            "A cow mooed behind the barn.",
            "Swallows flew in and out of the barn.",
        ),
    ),
    Place(
        "orchard",
        "in",
        (
            "the apple orchard",
            "the old orchard",
            "the cherry orchard",
            "the sleepy orchard",
            "the pear orchard",
        ),
        (
            "in the grass under a tree",
            "beside the stone wall",
            "under a heap of fallen leaves",
            "between two crooked roots",
            "behind the ladder",
        ),
        (
            "on a branch of the oldest tree",
            "in the fork of a cherry tree",
            "on the stone wall",
        ),
        search=beat(
            "The grass was full of fallen apples, and {hero} picked up nothing but apples.",
            "The wasps were busy under the trees, and {hero} did not dare to go near.",
            "Every tree looked the same, and {hero} lost count of them.",
            "A ripe plum fell right on {his} nose, and {hero} had to sit down.",
            "The nettles by the wall stung, and {hero} had to [turn back|give up].",
        ),
        road=beat(
            "Ladders stood everywhere, and {hero} had to walk around every one.",
            "The wasps were buzzing over the path, and {hero} had to go the long way.",
            "Every row of trees looked the same, and {hero} took the wrong one.",
            "The gate in the wall was stuck, and {hero} had to push and pull.",
        ),
        scenes=beat(
            "The branches hung low with fruit.",
            "A blackbird sang in the oldest tree.",
            "The air smelled sweet.",
            "Yellow leaves drifted through the air.",
        ),
    ),
    Place(
        "garden",
        "in",
        (
            "the kitchen garden",
            "the wild garden",
            "the walled garden",
            "the rose garden",
            "the secret garden",
        ),
        (
            "between the cabbages",
            "under the rose bush",
            "behind the watering can",
            "under a big rhubarb leaf",
            "beside the garden wall",
        ),
        ("on the bean poles", "on the roof of the shed", "high up in the pear tree"),
        search=beat(
            "The rose bush was full of thorns, and {hero} had to [turn back|give up].",
            "The cabbages were so big that {hero} could not see between them.",
            "{hero} dug a hole in the earth and found only a worm, who was not pleased.",
            "Somebody had watered the beds, and {hero} got stuck in the mud.",
            "{hero} looked among the beans, but the beans had climbed over everything.",
        ),
        road=beat(
            "The beans had grown right across the path, and {hero} had to crawl.",
            "The path went round and round between the hedges, and {hero} got lost.",
            "The beds had just been watered, and the path was one long puddle.",
            "The garden gate was locked, and {hero} had to look for a hole in the hedge.",
        ),
        scenes=beat(
            "The roses were in bloom.",
            "Bees went from flower to flower.",
            "A snail was climbing up the wall.",
            "It smelled of mint and warm earth.",
        ),
    ),
    Place(
        "village",
        "in",
        (
            "the little village",
            "the quiet village",
            "the old town",
            "the market square",
            "the long street",
        ),
        (
            "under the baker's steps",
            "behind the fountain",
            "beside the old pump",
            "under a bench",
            "in the corner by the school",
        ),
        (
            "on the roof of the bakery",
            "high up in the chestnut tree",
            "on the church tower",
        ),
        search=beat(
            "There were so many legs in the street that {hero} could not see the ground.",
            "It was so noisy in the street that nobody heard {hero} ask.",
            "{hero} looked on every step of the street, and there were a hundred steps.",
            "A man was washing the street, and {hero} got wet to the skin.",
            "Everyone was in a rush, and nobody stopped to listen to {hero}.",
        ),
        road=beat(
            "There was a crowd in the street, and {hero} could not get through.",
            "The street was being mended, and {hero} had to go the long way round.",
            "All the little lanes looked the same, and {hero} came back to the fountain three times.",
            "A flock of sheep filled the whole street, and {hero} had to wait.",
        ),
        scenes=beat(
            "It smelled of fresh bread.",
            "Smoke rose from the chimneys.",
            "Pigeons sat on all the roofs.",
            "The fountain splashed all day long.",
        ),
    ),
    Place(
        "beach",
        "by",
        (
            "the sandy beach",
            "the blue bay",
            "the wide sea",
            "the old harbour",
            "the lighthouse",
        ),
        (
            "between two rocks",
            "under a heap of seaweed",
            "half under the sand",
            "behind the old nets",
            "in a little pool",
        ),
        ("on a high rock", "on the roof of the fishing hut", "on the harbour wall"),
        search=beat(
            "The waves had washed the sand smooth, and {hero} found nothing but sand.",
            "The wind blew sand into {his} eyes, and {hero} could not see.",
            "{hero} looked under the seaweed and found a crab, and the crab pinched.",
            "The sea was coming in, and {hero} had to run from the waves.",
            "The gulls screamed so loud that {hero} could hardly think.",
        ),
        road=beat(
            "The sand was so soft that {hero} sank in at every step.",
            "The sea had come in over the path, and {hero} had to climb over the rocks.",
            "The wind blew sand in {his} face, and {hero} had to walk with {his} eyes shut.",
            "A thick fog rolled in from the sea, and {hero} could not see the way.",
        ),
        scenes=beat(
            "The waves came and went, came and went.",
            "Gulls sailed over the water.",
            "It smelled of salt and seaweed.",
            "Far out, a white sail passed.",
        ),
    ),
    Place(
        "mill",
        "by",
        (
            "the old mill",
            "the white mill",
            "the water mill",
            "the windmill",
            "the mill on the hill",
        ),
        (
            "behind the flour sacks",
            "under the mill stairs",
            "beside the millstone",
            "in a crack in the floor",
            "in the grass by the mill door",
        ),
        ("on the roof of the mill", "on a beam under the roof", "high up in the elm"),
        search=beat(
            "There was so much flour in the air that {hero} could only sneeze.",
            "The mill went clack, clack, clack, and {hero} could hardly think.",
            "The sacks were too heavy, and {hero} could not move a single one.",
            "{hero} looked inside, and came out as white as a ghost, with nothing but flour.",
            "The stairs were so dark that {hero} felt nothing there but cobwebs.",
        ),
        road=beat(
            "Sacks of flour were piled across the path, and {hero} had to climb over them.",
            "The wheel splashed water over the path, and it was as slippery as soap.",
            "A line of donkeys with flour sacks came along the lane, and {hero} had to wait.",
            "The wind blew flour everywhere, and {hero} could not see the way.",
        ),
        scenes=beat(
            "The mill went clack, clack, clack.",
            "Flour dust danced in the sun.",
            "It smelled of warm bread.",
            "The big stones hummed and turned.",
        ),
    ),
    Place(
        "snow",
        "in",
        (
            "the snowy valley",
            "the white valley",
            "the land of snow",
            "the frozen valley",
            "the cold north",
        ),
        (
            "under a heap of snow",
            "beside the frozen stream",
            "behind a block of ice",
            "under a low fir branch",
            "in a deep footprint",
        ),
        ("on a branch of the tallest fir", "on the highest snowdrift", "on a snowy rock"),
        search=beat(
            "Everything was white, and {hero} could not tell one heap of snow from another.",
            "{hero} dug in the snow until {his} nose was blue, but found only more snow.",
            "The snow fell so thick that {hero} could not see three steps ahead.",
            "The ice was so slippery that {hero} sat down with a bump, again and again.",
            "The wind had covered all the tracks, even the ones that {hero} had just made.",
        ),
        road=beat(
            "The snow was so deep that {hero} sank in at every step.",
            "The path had vanished under the snow, and {hero} had to guess the way.",
            "The ice was so slippery that {hero} went one step forward and two steps back.",
            "It began to snow so hard that {hero} had to wait under a fir tree.",
        ),
        scenes=beat(
            "The snow sparkled in the sun.",
            "Icicles hung from every branch.",
            "It was so cold that breath turned to smoke.",
            "The whole valley lay still and white.",
        ),
    ),
)
BY_KEY = {place.key: place for place in PLACES}
