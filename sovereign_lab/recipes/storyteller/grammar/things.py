"""What stories are about: every thing that can be lost, wished for, broken, lent or won."""

from dataclasses import dataclass

from sovereign_lab.recipes.storyteller.grammar.shapes import Beat, beat


@dataclass(frozen=True)
class Stuff:
    """What a thing is made of: how it breaks, how mending and making go wrong, how they go right."""

    breaks: Beat
    mend_fails: Beat
    mended: Beat
    trace: Beat  # what can be seen of the mending ever after
    make_fails: Beat
    made: Beat


CLOTH = Stuff(
    breaks=beat(
        "Rrrip! The {noun} tore from one end to the other.",
        "There was a long, sad sound, and then there was a big hole in the {noun}.",
        "The {noun} caught on a nail and tore.",
        "It got caught on a thorn, and the thorn made a great hole in it.",
    ),
    mend_fails=beat(
        "{hero} tied the torn ends in a knot, but that made the {noun} look like a cabbage.",
        "{hero} tried to close the hole with pine pitch. Now everything stuck to the {noun}.",
        "{hero} pinned it together with thorns, but the thorns pricked and fell out.",
        "{hero} turned the {noun} around to hide the hole. Now the hole was on the other side.",
    ),
    mended=beat(
        "They sewed up the hole with small, even stitches, in and out, in and out.",
        "{friend} held the ends together, and {hero} sewed them up with strong thread.",
        "{friend} cut a patch, and {hero} sewed it over the hole, stitch by stitch.",
    ),
    trace=beat(
        "a row of tiny stitches",
        "a patch in the shape of a heart",
        "a thin, neat seam",
        "a small green patch",
    ),
    make_fails=beat(
        "{hero} cut the cloth too small, and it would have fitted a beetle.",
        "The thread got into a knot, and the knot got into a bigger knot.",
        "When it was done, {hero} saw that it was sewn to {his} own sleeve.",
        "{hero} sewed and sewed, but when {he} held it up, the sun shone through the holes.",
    ),
    made=beat(
        "{hero} cut the cloth and sewed it with small, even stitches.",
        "Stitch by stitch, the {noun} grew, until it was done.",
        "{hero} chose the softest cloth and the strongest thread, and sewed until evening.",
    ),
)
WOOD = Stuff(
    breaks=beat(
        "Crack! The {noun} broke in two.",
        "It fell on a stone, and a piece broke off.",
        "There was a loud snap, and there lay the {noun} in two pieces.",
        "The {noun} slipped and fell, and the wood split down the middle.",
    ),
    mend_fails=beat(
        "{hero} tied the pieces together with grass, but the grass broke.",
        "{hero} tried to stick the pieces together with honey, but then the ants came.",
        "{hero} pushed the pieces together and held them until {his} arms hurt. "
        "When {he} let go, they fell apart.",
        "{hero} stuck it together with mud, but the mud dried and crumbled.",
    ),
    mended=beat(
        "They glued the pieces, wound a thread around them and waited until the glue was hard.",
        "{friend} held the pieces still, and {hero} put on the glue, drop by drop.",
        "{hero} fitted the pieces together, and {friend} fixed them with two tiny nails.",
    ),
    trace=beat(
        "a thin line in the wood",
        "the head of a tiny nail",
        "a band of thread",
        "a small drop of glue",
    ),
    make_fails=beat(
        "{hero} carved and carved, until there was nothing left but a toothpick.",
        "The wood was too hard, and the knife only scratched it.",
        "{hero} nailed the pieces together, but one nail went through the table too.",
        "The glue was too thin, and everything fell apart again.",
    ),
    made=beat(
        "{hero} found a good piece of wood and carved it, chip by chip.",
        "{hero} sawed and carved and rubbed the wood until it was smooth.",
        "Chip by chip, the {noun} came out of the wood, as if it had been asleep in there.",
    ),
)
CLAY = Stuff(
    breaks=beat(
        "It slipped and fell. Crash! The {noun} lay in three pieces.",
        "The {noun} hit the floor, and a piece of the rim broke off.",
        "There was a crash, and then it was very quiet. The {noun} was broken.",
        "It bumped against a stone, and a long crack ran down its side.",
    ),
    mend_fails=beat(
        "{hero} stuck the pieces together with mud, but they fell apart again.",
        "{hero} tried jam, because jam is sticky. It was not sticky enough.",
        "{hero} tied a string around the {noun}, but it still leaked.",
        "{hero} put the {noun} on the shelf with the crack to the wall, but it fell over.",
    ),
    mended=beat(
        "They glued the pieces together, one by one, like a puzzle.",
        "{friend} held the {noun}, and {hero} filled the crack with white glue.",
        "{hero} found the pieces, {friend} found the glue, and soon the {noun} was whole again.",
    ),
    trace=beat(
        "a thin white line",
        "a small chip at the rim",
        "a crack in the shape of a smile",
        "a drop of glue, as small as a tear",
    ),
    make_fails=beat(
        "The clay was too wet, and everything sank down into a pancake.",
        "The clay was too dry, and it cracked all the way down.",
        "It leaned to the left, then to the right, and then it fell over.",
        "{hero} baked it in the fire, and it burst with a bang.",
    ),
    made=beat(
        "{hero} turned and smoothed the clay until it was round.",
        "{hero} kneaded the clay well, shaped it slowly and let it dry in the sun.",
        "Little by little, the lump of clay turned into {a_noun}.",
    ),
)
METAL = Stuff(
    breaks=beat(
        "Clang! It fell on the stones, and now the {noun} was bent.",
        "{hero} sat down, and {he} sat down right on the {noun}. It was quite flat.",
        "It rolled under the wheel of a wagon, and the wheel bent it.",
    ),
    mend_fails=beat(
        "{hero} beat it with a stone, but that only made more dents.",
        "{hero} bent it to the left. Then it was too far to the left.",
        "{hero} sat on the other side to bend it back. That did not help at all.",
        "{hero} rubbed it with sand. Now it was bent and scratched.",
    ),
    mended=beat(
        "They tapped it straight with a small hammer, tap, tap, tap.",
        "{friend} held it over the fire until it was soft, and {hero} bent it straight.",
        "{friend} held the {noun}, and {hero} tapped out every dent, one by one.",
    ),
    trace=beat("one tiny dent", "a small dent, just like a dimple", "a faint scratch"),
    make_fails=(),
    made=(),
)
PAPER = Stuff(
    breaks=beat(
        "Rrrip! The {noun} tore down the middle.",
        "It got wet, and when {hero} picked it up, it tore in two.",
        "A gust of wind pulled at it, and the paper tore.",
        "{hero} tripped and put a foot right through the {noun}.",
    ),
    mend_fails=beat(
        "{hero} stuck the paper together with honey, but then the bees came.",
        "{hero} tied the pieces together with string, and the string tore the paper even more.",
        "{hero} put a stone on it and hoped that it would grow together. It did not.",
        "{hero} folded the paper so that the tear was inside. Now it was only half as big.",
    ),
    mended=beat(
        "They pasted the torn paper together and let it dry in the sun.",
        "{friend} stirred the paste, and {hero} put a new piece of paper over the tear.",
        "{hero} held the edges together, and {friend} brushed on the paste.",
    ),
    trace=beat(
        "a thin line of paste",
        "a patch of new paper",
        "a small crooked line",
        "one corner that did not quite fit",
    ),
    make_fails=beat(
        "There was too much paste, and {hero} stuck to the table.",
        "{hero} cut the paper too small, and it was no bigger than a leaf.",
        "The wind took the paper before {hero} could fold it.",
        "{hero} painted the paper before it was dry, and all the colours ran.",
    ),
    made=beat(
        "{hero} folded the paper, pressed down every edge and pasted it well.",
        "{hero} cut the paper with care and let the paste dry.",
        "Fold by fold, the paper turned into {a_noun}.",
    ),
)

ROLLED = "rolled"
BLEW = "blew"
DROPPED = "dropped"


@dataclass(frozen=True)
class Thing:
    """`use` and `used`: what its owner likes to do, and did, with `{it}`.

    `size`: 1 (a coin) to 3 (an umbrella). `lost`: how it gets lost, None where it cannot.
    `hands`: only who has hands can use it. `homemade`: a child can make it.
    """

    noun: str
    adjectives: tuple[str, ...]
    size: int
    lost: str | None
    stuff: Stuff | None
    use: str
    used: str
    hands: bool = False
    homemade: bool = False
    not_for_birds: bool = False

    @property
    def phrases(self) -> tuple[str, ...]:
        """The thing as it stands in a text: "red kite"."""
        return tuple(f"{adjective} {self.noun}" for adjective in self.adjectives)


def _thing(
    noun: str,
    adjectives: str,
    size: int,
    lost: str | None,
    stuff: Stuff | None,
    use: str,
    used: str = "",
    flags: str = "",
) -> Thing:
    """`use` names its verb first; where the past is not that verb with -ed, `used` tells it."""
    verb, rest = use.split(" ", 1)
    past = used or f"{verb.removesuffix('e')}ed"
    return Thing(
        noun,
        tuple(adjectives.split()),
        size,
        lost,
        stuff,
        use,
        f"{past} {rest}",
        hands="hands" in flags,
        homemade="homemade" in flags,
        not_for_birds="no-birds" in flags,
    )


# fmt: off
THINGS = (
    _thing("ball", "red blue yellow striped bouncy", 2, ROLLED, None, "roll {it} along the path"),
    _thing("marble", "green blue glass shiny", 1, ROLLED, None, "watch {it} roll and shine"),
    _thing("button", "gold brass pearl blue round", 1, ROLLED, None, "polish {it} until it shone"),
    _thing("coin", "silver copper lucky old", 1, ROLLED, None, "turn {it} over and over"),
    _thing("pebble", "white smooth speckled round", 1, ROLLED, None, "roll {it} from side to side"),
    _thing("bell", "silver brass little golden", 1, ROLLED, METAL, "jingle {it} on every walk"),
    _thing("hoop", "wooden red big painted", 3, ROLLED, WOOD, "roll {it} down the path", "", "hands"),
    _thing("key", "golden rusty iron little", 1, DROPPED, None, "guess which door {it} would open"),
    _thing("locket", "silver golden little old", 1, DROPPED, METAL, "look inside {it}"),
    _thing("shell", "pink white spiral blue", 1, DROPPED, None, "listen to the sea in {it}"),
    _thing("badge", "tin gold shiny round", 1, DROPPED, METAL, "wear {it} like a captain", "wore"),
    _thing("necklace", "glass pearl silver blue", 1, DROPPED, None, "look at {it} from all sides"),
    _thing("ribbon", "red silk blue long", 1, BLEW, CLOTH, "dance with {it}"),
    _thing("feather", "white blue golden long", 1, BLEW, None, "float {it} on the wind", "", "no-birds"),
    _thing("map", "old secret crumpled yellow", 1, BLEW, PAPER, "plan great journeys with {it}", "planned"),
    _thing("star", "paper golden silver little", 1, BLEW, PAPER, "hang {it} over {his} bed", "hung", "homemade"),
    _thing("pinwheel", "red paper striped yellow", 1, BLEW, PAPER, "watch {it} turn in the wind", "", "homemade"),
    _thing("balloon", "red blue yellow round green", 2, BLEW, None, "watch {it} dance on its string"),
    _thing("hat", "blue straw woolly pointed green", 2, BLEW, CLOTH, "walk proudly about in {it}", "homemade"),
    _thing("cap", "red checked woolly blue", 1, BLEW, CLOTH, "skip along in {it}", "skipped", "homemade"),
    _thing("scarf", "red long woolly striped yellow", 2, BLEW, CLOTH, "wrap up warmly in {it}", "wrapped", "homemade"),
    _thing("cloak", "green warm long red", 3, DROPPED, CLOTH, "play knights in {it}", "homemade"),
    _thing("mitten", "red woolly warm green", 1, DROPPED, CLOTH, "warm one hand in {it}", "hands homemade"),
    _thing("blanket", "soft patchwork woolly blue", 3, DROPPED, CLOTH, "curl up under {it}", "homemade"),
    _thing("pillow", "soft round striped white", 2, DROPPED, CLOTH, "rest {his} head on {it}", "homemade"),
    _thing("bag", "green leather little patched", 2, DROPPED, CLOTH, "carry all {his} treasures in {it}", "carried",
            "homemade"),
    _thing("flag", "red blue checked striped", 2, BLEW, CLOTH, "wave {it} in the wind", "", "hands homemade"),
    _thing("doll", "rag little straw old", 1, DROPPED, CLOTH, "tell {it} all {his} secrets", "told", "homemade"),
    _thing("puppet", "funny little striped old", 1, DROPPED, CLOTH, "dance with {it}", "", "hands homemade"),
    _thing("kite", "red yellow blue paper striped", 3, BLEW, PAPER, "fly {it} in the wind", "flew",
            "hands homemade no-birds"),
    _thing("mask", "painted golden funny paper", 2, DROPPED, PAPER, "roar loudly behind {it}", "", "hands homemade"),
    _thing("crown", "paper golden little shiny", 1, DROPPED, PAPER, "sit very straight under {it}", "sat", "homemade"),
    _thing("book", "picture old thick little", 2, DROPPED, PAPER, "look at all the pictures in {it}"),
    _thing("lantern", "paper red little round", 2, DROPPED, PAPER, "read by the light of {it}", "read",
            "hands homemade"),
    _thing("umbrella", "red yellow black striped", 3, BLEW, CLOTH, "spin around under {it}", "spun", "hands"),
    _thing("boat", "toy wooden little blue", 2, DROPPED, WOOD, "sail {it} in every puddle", "", "hands homemade"),
    _thing("cart", "wooden red little toy", 3, ROLLED, WOOD, "pull {it} along the path", "", "hands homemade"),
    _thing("whistle", "wooden willow reed little", 1, DROPPED, WOOD, "blow a tune on {it}", "blew", "hands homemade"),
    _thing("flute", "wooden reed little long", 2, DROPPED, WOOD, "play a tune on {it}", "", "hands homemade"),
    _thing("fiddle", "old brown little shiny", 3, DROPPED, WOOD, "play a tune on {it}", "", "hands"),
    _thing("harp", "golden little old wooden", 3, DROPPED, WOOD, "play a tune on {it}", "", "hands"),
    _thing("drum", "red little round painted", 3, ROLLED, WOOD, "march up and down with {it}", "", "hands"),
    _thing("horn", "brass shiny curly hunting", 2, DROPPED, METAL, "blow long and loud on {it}", "blew", "hands"),
    _thing("trumpet", "toy brass golden tin", 2, DROPPED, METAL, "play a march on {it}", "", "hands"),
    _thing("clock", "little wooden round old", 3, None, WOOD, "listen to {it} tick", "", "hands"),
    _thing("spoon", "wooden carved little long", 1, DROPPED, WOOD, "eat porridge with {it}", "ate", "hands homemade"),
    _thing("cup", "blue white painted little", 1, ROLLED, CLAY, "drink milk from {it}", "drank", "hands homemade"),
    _thing("bowl", "blue round painted little", 2, ROLLED, CLAY, "eat porridge from {it}", "ate", "hands homemade"),
    _thing("teapot", "blue round painted brown", 2, None, CLAY, "make tea in {it}", "made", "hands homemade"),
    _thing("jug", "blue brown tall painted", 2, None, CLAY, "carry fresh water in {it}", "carried", "hands homemade"),
    _thing("vase", "blue tall painted green", 2, None, CLAY, "put flowers in {it}", "put", "hands homemade"),
    _thing("kettle", "copper black little iron", 3, None, METAL, "boil water in {it}", "", "hands"),
    _thing("chair", "little wooden red tiny", 3, None, WOOD, "sit on {it} for hours", "sat", "hands homemade"),
    _thing("stool", "little wooden round blue", 3, None, WOOD, "sit on {it} for hours", "sat", "hands homemade"),
    _thing("basket", "willow round straw little", 3, DROPPED, None, "carry apples in {it}", "carried", "hands"),
    _thing("bucket", "wooden tin little blue", 3, ROLLED, None, "carry water in {it}", "carried", "hands"),
    _thing("mirror", "little round silver old", 1, DROPPED, None, "smile into {it}", "", "hands"),
    _thing("compass", "brass old little round", 1, DROPPED, METAL, "play explorer with {it}", "", "hands"),
    _thing("telescope", "brass old long little", 2, ROLLED, METAL, "look at far-off things with {it}", "", "hands"),
    _thing("brush", "soft little long thin", 1, DROPPED, None, "paint the clouds with {it}", "", "hands"),
    _thing("pencil", "red blue short yellow", 1, ROLLED, None, "draw the clouds with {it}", "drew", "hands"),
)
# fmt: on
BY_NOUN = {thing.noun: thing for thing in THINGS}
