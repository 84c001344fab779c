"""What a worker says it does, as the workbench tells it: the question that is being answered, and a sentence."""

import re

from sovereign_lab.measure.trial import COMPILER

_LAUNCH = re.compile(r"^Kernel \w+ (<<<.*?>>>)(?: at (.*))?")
_ROUND = re.compile(r"^(.*) \(round (\d+) of (\d+)\)$")


def progress(doing: str, name: str) -> tuple[str, str]:
    """The stage and a sentence without its full stop, of a kernel called `name`; "" for what says nothing of either.

    >>> progress("Kernel mine <<<4, 128>>> at rows = 7", "mine")
    ('right', 'Checking that it is right, at rows = 7')
    """
    if COMPILER in doing:
        return "compiles", f"Compiling {name}.cu"
    launch = _LAUNCH.match(doing)
    if launch and "in the sanitizer" in doing:
        return "safe", f"Checking that it is safe: {launch[1]} in the sanitizer"
    if launch and "to be timed" in doing:
        return "faster", f"Timing {launch[1]}, in turn with the parent"
    if launch and launch[2]:
        return "right", f"Checking that it is right, at {launch[2]}"
    if timed := _ROUND.match(doing):
        return "faster", f"Timing in the engine: {timed[1]}, round {timed[2]} of {timed[3]}"
    if doing.startswith(("Starting", "Opening")):
        return "", "Starting a process for the kernel"
    if doing.startswith(("A call", "The call")):
        return "", ""
    return "", doing
