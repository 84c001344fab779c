"""Who can be in a story: where each kind lives, what it can carry, and what it can do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """`carries`: the size of thing that it can carry, 1 (a coin) to 3 (an umbrella).

    `hands`: it has hands or clever paws, and so can make and mend things and play the fiddle.
    `at_home_in`: what it cannot fear, of "water", "heights" and "dark". `elder`: grown up, and so
    only ever a helper. `pronoun`: "he" or "she" where only one fits.
    """

    noun: str
    places: tuple[str, ...]
    home: str
    carries: int = 3
    hands: bool = True
    bird: bool = False
    human: bool = False
    elder: bool = False
    at_home_in: tuple[str, ...] = ()
    pronoun: str | None = None


def _animal(noun: str, places: str, home: str, carries: int = 3, at_home_in: str = "") -> Kind:
    return Kind(noun, tuple(places.split()), home, carries, at_home_in=tuple(at_home_in.split()))


def _hoofed(noun: str, places: str, home: str, at_home_in: str = "") -> Kind:
    places_, at_home = tuple(places.split()), tuple(at_home_in.split())
    return Kind(noun, places_, home, hands=False, at_home_in=at_home)


def _bird(noun: str, places: str, home: str, carries: int, at_home_in: str = "") -> Kind:
    at_home = ("heights", *at_home_in.split())
    pronoun = "she" if noun == "hen" else None
    places_ = tuple(places.split())
    return Kind(
        noun, places_, home, carries, hands=False, bird=True, at_home_in=at_home, pronoun=pronoun
    )


_EVERYWHERE = ("village", "farm", "garden", "beach", "mill", "hill", "orchard", "river", "snow")


def _person(noun: str, places: str = "", pronoun: str | None = None) -> Kind:
    where, elder = tuple(places.split()) or _EVERYWHERE, pronoun is None
    return Kind(noun, where, "little house", human=True, elder=elder, pronoun=pronoun)


KINDS = (
    _person("girl", pronoun="she"),
    _person("boy", pronoun="he"),
    _animal("fox", "wood meadow hill snow", "warm den"),
    _animal("wolf", "wood hill snow", "rocky den"),
    _animal("bear", "wood river hill snow", "cosy cave", at_home_in="dark"),
    _animal("badger", "wood hill meadow", "deep den", at_home_in="dark"),
    _animal("rabbit", "wood meadow garden hill", "snug burrow"),
    _animal("hare", "meadow hill snow", "grassy hollow"),
    _animal("squirrel", "wood orchard garden", "hollow tree", 2, "heights"),
    _animal("hedgehog", "wood garden orchard meadow", "heap of leaves", 2),
    _animal("mouse", "wood meadow garden farm mill village", "tiny house", 1),
    _animal("mole", "garden meadow orchard", "round burrow", 2, "dark"),
    _animal("raccoon", "wood river village", "hollow tree", at_home_in="heights dark"),
    _animal("otter", "river pond beach", "den in the bank", at_home_in="water"),
    _animal("beaver", "river pond", "house of sticks", at_home_in="water"),
    _animal("frog", "pond river garden", "hole in the bank", 1, "water"),
    _animal("toad", "pond garden wood", "damp hollow", 1, "water dark"),
    _animal("cat", "village farm garden mill beach", "little house", at_home_in="heights"),
    _animal("puppy", "farm village beach garden", "cosy kennel", 2),
    _animal("monkey", "orchard village", "house in a tree", at_home_in="heights"),
    _hoofed("pig", "farm orchard", "clean sty"),
    _hoofed("goat", "hill farm meadow", "wooden shed", "heights"),
    _hoofed("lamb", "meadow hill farm", "warm shed"),
    _hoofed("pony", "farm meadow", "warm stable"),
    _hoofed("donkey", "mill farm hill", "small stable"),
    _bird("duck", "pond river farm", "nest in the reeds", 2, "water"),
    _bird("goose", "pond farm meadow", "nest in the grass", 2, "water geese"),
    _bird("hen", "farm garden orchard", "tidy coop", 2),
    _bird("owl", "wood mill hill", "hollow tree", 2, "dark"),
    _bird("crow", "hill farm wood", "big nest", 2),
    _bird("robin", "garden orchard wood snow", "round nest", 1),
    _bird("sparrow", "village garden mill", "nest under the roof", 1),
    _person("baker", "village mill"),
    _person("miller", "mill"),
    _person("farmer", "farm orchard hill snow"),
    _person("gardener", "garden orchard village"),
    _person("sailor", "beach river village"),
    _person("shepherd", "hill snow farm"),
    _person("carpenter", "village mill farm"),
    _person("teacher", "village beach river garden"),
    _person("painter", "beach river orchard garden"),
)
HEROES = tuple(kind for kind in KINDS if not kind.elder)
