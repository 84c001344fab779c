"""Folders of the checkout that the notebooks read; they are not part of an installed package."""

from pathlib import Path

from sovereign_lab.errors import LabError

CHECKOUT = Path(__file__).resolve().parent.parent.parent


def in_checkout(place: str) -> Path:
    """A file of the checkout. Raises LabError where it is not there."""
    path = CHECKOUT / place
    if not path.exists():
        raise LabError(
            f"{place} lies in the lab's checkout, and is not there; install the lab from its checkout: "
            "pip install -e ."
        )
    return path
