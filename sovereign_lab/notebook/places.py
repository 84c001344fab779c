"""Folders that the notebooks read: of the checkout, or of an installed package, which has copies of them."""

from pathlib import Path

from sovereign_lab.errors import LabError

PACKAGE = Path(__file__).resolve().parent.parent
ROOTS = (PACKAGE.parent, PACKAGE)


def in_checkout(place: str) -> Path:
    """A file or folder by its place in the checkout. Raises LabError where it is not there."""
    for root in ROOTS:
        if (root / place).exists():
            return root / place
    raise LabError(f"The lab's {place} is not there; install the lab again.")
