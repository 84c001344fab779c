"""The storyteller (MIT): the small model that ships with the lab; see `recipes.storyteller`."""

from pathlib import Path

from sovereign_lab.errors import LabError

FILE = "storyteller-q4_0.gguf"
DESCRIPTION = "Storyteller, tells short children's stories, in Q4_0 (MIT), 4 MB"
WHERE = "part of the lab"

_PACKAGE = Path(__file__).resolve().parent.parent
# A wheel carries the file inside the package; in a clone it lies in data/, beside its card.
_PLACES = (_PACKAGE / "data" / FILE, _PACKAGE.parent / "data" / "storyteller" / FILE)


def present() -> Path | None:
    """The file in this installation, None where it is missing."""
    return next((path for path in _PLACES if path.is_file()), None)


def make(progress: bool = False) -> Path:
    """It cannot be fetched from anywhere: raises LabError that says how to get it back."""
    raise LabError(
        f"{FILE} is missing from this installation of the lab, which it is a part of: install the "
        "lab again, or run `git checkout data/storyteller` in a clone"
    )
