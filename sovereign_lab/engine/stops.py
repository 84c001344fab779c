"""Stop strings: a text ends where one of them begins, however tokens cut it into pieces."""

from collections.abc import Sequence

from sovereign_lab.errors import LabError


class StopStrings:
    """Lets pieces of text through up to the first stop string.

    `found` is that string once it is there, else None. What is shown does not depend on how the text is cut
    into pieces: the stop string that is complete first counts, and of two that end together the longer one.
    Raises LabError for an empty stop string, at which every text would end.
    """

    def __init__(self, stops: str | Sequence[str] = ()) -> None:
        self.found: str | None = None
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        self._held = ""
        if "" in self._stops:
            raise LabError("A stop string has at least one character; got an empty one.")

    def push(self, piece: str) -> str:
        """The text that can be shown now: all but an end that could still become a stop string."""
        text = self._held + piece
        places = [
            (at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0
        ]
        if places:
            _, start, self.found = min(places)
            self._held = ""
            return text[:start]
        cut = len(text) - self._undecided(text)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """What was held back, at the end of a text in which no stop string was found."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """The length of the longest end of `text` with which a stop string begins."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
