"""From places in a compiled kernel to lines of its source."""

import re
from collections.abc import Iterable
from pathlib import Path

from sovereign_lab.measure.binutils import inlined_frames, run_tool

COUNTS_BY = "Counting by source line needs"
# Jumps that depend on something: x86-64's jcc, and those of aarch64.
_CONDITIONAL = re.compile(r"j(?!mp)[a-z]+|b\.[a-z]+|cbn?z|tbn?z")


def lines_of_calls(library: Path, places: Iterable[int], name: str) -> dict[int, int]:
    """The source line of each call, by its return address in the library.

    Of the frames that are inlined there, the innermost that lies in the file `name` counts; 0 where none does. Raises
    LabError where binutils are missing.
    """
    # A return address is behind the call, so one less is in it.
    return _lines(library, {place: place - 1 for place in places}, name)


def lines_of_branches(library: Path, places: Iterable[int], name: str) -> dict[int, int]:
    """The source line of the jump that ends each basic block, by the return address of the call that starts it."""
    wanted = set(places)
    if not wanted:
        return {}
    jumps: dict[int, int] = {}
    block = None
    code = run_tool("objdump", ["-d", "--no-show-raw-insn", str(library)], "", COUNTS_BY)
    for line in code.splitlines():
        address, _, text = line.partition(":")
        instruction = text.split()
        if not instruction:
            continue
        if "__sanitizer_cov_trace_pc" in text:
            block = None
        elif address.strip() and block is None:
            # The first instruction behind the call: its address is where the call returns to.
            block = int(address, 16) if re.fullmatch(r"[0-9a-f]+", address.strip()) else None
        if block in wanted and _CONDITIONAL.fullmatch(instruction[0]):
            jumps[block] = int(address, 16)
    # A block that ends without a jump of its own falls into the next one's: it is told by its start.
    return _lines(library, {place: jumps.get(place, place - 1) for place in wanted}, name)


def _lines(library: Path, addresses: dict[int, int], name: str) -> dict[int, int]:
    lines: dict[int, int] = {}
    chains = inlined_frames(library, addresses.values(), COUNTS_BY)
    for place, chain in zip(addresses, chains, strict=True):
        mine = re.search(rf"{re.escape(name)}:(\d+)", chain)
        lines[place] = int(mine.group(1)) if mine else 0
    return lines
