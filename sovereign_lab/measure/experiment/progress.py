"""How far an experiment is: told by its worker in words, shown to who watches as a bar."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

_ROUND = re.compile(r"\(round (\d+) of \d+\)$")
SHOWN_AFTER = 1.0  # seconds: a short run shows nothing


def round_words(what: str, number: int, rounds: int) -> str:
    """What is measured in a round, numbered from 1; `bar` reads it."""
    return f"{what} (round {number} of {rounds})"


def watched() -> bool:
    """Whether a person watches: at a terminal, or at a notebook that could ask them for input.

    Programs that execute notebooks, and keep or compare what these print, say that nobody can be asked.
    """
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython.get_ipython(), "kernel", None) if ipython else None
    if kernel is None:
        return sys.stderr.isatty()
    return bool(kernel.get_parent("shell").get("content", {}).get("allow_stdin"))


@contextmanager
def bar(rounds: int, shown: bool) -> Iterator[Callable[[str], None]]:
    """A bar of rounds for the time of a `with` block; it gives the function to be called with each step's words."""
    with tqdm(
        total=rounds, unit="round", disable=not shown, leave=False, delay=SHOWN_AFTER
    ) as drawn:

        def tell(what: str) -> None:
            found = _ROUND.search(what)
            drawn.set_postfix_str(what[: found.start()].rstrip() if found else what, refresh=False)
            drawn.update(int(found.group(1)) - 1 - drawn.n if found else 0)

        yield tell
