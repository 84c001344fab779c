"""The command `sovereign-lab`: generate text, look at the machine and at model files, manage these.

Results go to stdout, everything about them (progress, notices, figures) to stderr, so that a pipe
gets the text or the JSON object and nothing else. The rooms are imported inside the commands: help
is instant, and a command needs only what it uses.
"""

from __future__ import annotations

import errno
import sys
from importlib import import_module

from sovereign_lab.cli.app import app, debug_wanted
from sovereign_lab.errors import LabError

# Each puts its commands on the application; help lists them in this order.
for _name in (
    "run",
    "ladder",
    "bench",
    "ledger",
    "instruments",
    "inspect",
    "models",
    "notebooks",
    "doctor",
):
    import_module(f"{__name__}.{_name}")


def _sentence(error: Exception) -> str:
    """The error as one sentence that says what to do."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = f" while writing {error.filename}" if error.filename else ""
        return f"the disk is full{where}; free some space or point XDG_CACHE_HOME to another disk"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "this machine has too little memory for that; try a smaller model"
    return str(error)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line (sys.argv by default) and return the exit status.

    An error that a person can act on is told in one sentence; with --debug it is raised.
    """
    try:
        app(arguments)
    except SystemExit as end:
        if end.code == 130:
            print("\nInterrupted.", file=sys.stderr)
        return end.code if isinstance(end.code, int) else 0
    except (LabError, OSError, MemoryError) as error:
        if debug_wanted.get():
            raise
        print(f"error: {_sentence(error)}", file=sys.stderr)
        return 1
    return 0
