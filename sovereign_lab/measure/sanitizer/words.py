"""A finding of the sanitizer in words: who did what to which array, at which line, and what to do about it."""

import re
from dataclasses import dataclass
from math import prod

from sovereign_lab.devices.device import WARP
from sovereign_lab.measure.sanitizer.run import (
    ATOMIC,
    DYNAMIC_SHARED,
    GLOBAL,
    NOWHERE,
    STATIC_SHARED,
    VOLATILE,
    WRITE,
    Array,
    Fact,
    Launch,
    Place,
)

BARRIERS, PLACES = "05_a_warp_a_row.ipynb", "03_the_double_offset.ipynb"
# The notebook that teaches what is behind each kind of finding; the gravest kinds first.
CHAPTERS = {
    "out of bounds": PLACES,
    "misaligned": "12_float4.ipynb",
    "trap": "02_first_working_path.ipynb",
    "deadlock": BARRIERS,
    "spin": BARRIERS,
    "timeout": BARRIERS,
    "barrier": BARRIERS,
    "shuffle": BARRIERS,
    "race": BARRIERS,
    "uninitialised": PLACES,
    "unwritten": "02_first_working_path.ipynb",
    "lane order": BARRIERS,
}
NULL_BYTES = 4096


@dataclass(frozen=True)
class Told:
    """A finding in words; see Finding in measure/sanitizer.py."""

    kind: str
    line: int
    explanation: str
    array: str | None = None
    lane: int | None = None
    warp: int | None = None
    block: int | None = None
    other_line: int | None = None
    count: int = 1
    where: str = ""  # a file other than the kernel's

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two findings the same place: for a race, whichever of its lines came first."""
        lines = frozenset((self.line, self.other_line or self.line))
        apart = self.explanation if not self.line and self.kind != "race" else ""
        return self.kind, self.array, lines, self.where, apart

    @property
    def evidence(self) -> str:
        """The part of a lane-order finding that says what differs."""
        return self.explanation.split(". CUDA promises")[0]


@dataclass(frozen=True)
class _Thread:
    lane: int
    warp: int
    block: int
    words: str

    @classmethod
    def of(cls, number: int, launch: Launch) -> "_Thread":
        block, thread = divmod(number, prod(launch.block))
        warp, lane = divmod(thread, WARP)
        return cls(
            lane, warp, block, f"lane {lane} of warp {warp} in block {_block(block, launch)}"
        )


def _block(linear: int, launch: Launch) -> str:
    x, y, _ = launch.grid
    index = linear % x, linear // x % y, linear // (x * y)
    return str(linear) if launch.grid[1:] == (1, 1) else str(index)


def tell(fact: Fact, arrays: tuple[Array, ...], launch: Launch) -> Told:
    """One finding of the checks in words."""
    thread = _Thread.of(fact.thread, launch)
    if fact.kind == "index":
        return _index(fact, arrays, thread, launch)
    array, offset = _array_at(fact, arrays)
    words = {
        "out of bounds": _out_of_bounds,
        "uninitialised": _uninitialised,
        "race": _race,
        "barrier": _barrier,
        "misaligned": _misaligned,
        "spin": _spin,
        "timeout": _timeout,
    }[fact.kind](fact, array, offset, thread, launch)
    return Told(
        kind=fact.kind,
        line=0 if fact.place.file else fact.place.line,
        explanation=words,
        array=array.name if array else None,
        lane=thread.lane,
        warp=thread.warp,
        block=thread.block,
        other_line=fact.other_place.line if fact.kind in ("race", "barrier") else None,
        count=fact.count,
        where=f"{fact.place.file}:{fact.place.line}" if fact.place.file else "",
    )


def _array_at(fact: Fact, arrays: tuple[Array, ...]) -> tuple[Array | None, int]:
    """The array that was meant, the nearest one, and the access's offset in it."""
    spaces = {NOWHERE: (GLOBAL, STATIC_SHARED)}.get(fact.space, (fact.space,))
    if not fact.address and fact.space != DYNAMIC_SHARED:
        return None, 0
    near = [a for a in arrays if a.space in spaces and (a.nbytes or a.space == DYNAMIC_SHARED)]
    if not near:
        return None, 0

    def distance(a: Array) -> int:
        return max(a.address - fact.address, fact.address - (a.address + a.nbytes) + 1, 0)

    nearest = min(near, key=distance)
    # So far off, the nearest array is no clue.
    if fact.space == NOWHERE and distance(nearest) > 1 << 32:
        return None, 0
    return nearest, fact.address - nearest.address


def _verb(how: int, base: bool = False) -> str:
    verb = "update" if how & ATOMIC else "write" if how & WRITE else "read"
    return verb if base else f"{verb}s"


def _size(array: Array) -> str:
    count = array.nbytes // array.itemsize
    plural = "" if count == 1 else "es" if array.element.endswith("s") else "s"
    shared = ", shared" if array.space in (STATIC_SHARED, DYNAMIC_SHARED) else ""
    return (
        f"`{array.name}` ({count:,} {_plural(array.element) if plural else array.element}{shared})"
    )


def _plural(element: str) -> str:
    return "halves" if element == "half" else f"{element}s"


def _element(array: Array, offset: int) -> str:
    index, rest = divmod(offset, array.itemsize)
    if array.nbytes == array.itemsize and not index:
        return f"`{array.name}`"
    indices = []
    for size in reversed(array.rows):
        index, last = divmod(index, size)
        indices.append(last)
    shown = "".join(f"[{i}]" for i in (index, *reversed(indices)))
    return f"`{array.name}{shown}`" + (f" from its byte {rest} on" if rest else "")


def _bytes(count: int) -> str:
    return f"{count:,} byte{'' if count == 1 else 's'}"


def _at(place: Place) -> str:
    if place.file:
        return f"in {place.file}, line {place.line}"
    return f"at line {place.line}" if place.line else "at a line that is not known"


def _out_of_bounds(f: Fact, array: Array | None, offset: int, who: _Thread, launch: Launch) -> str:
    did = f"{who.words} {_verb(f.how)} {_bytes(f.size)}"
    if 0 <= f.address < NULL_BYTES and f.space == NOWHERE:
        return f"{did} through a null pointer, {_at(f.place)}; the launch ends there."
    if array is None:
        return f"{did} at address {f.address:#x}, far from any array, {_at(f.place)}; the launch ends there."
    if offset < 0:
        off = f"{_bytes(-offset)} before the start of"
    elif offset >= array.nbytes:
        off = (
            f"{_bytes(offset - array.nbytes)} past the end of"
            if offset > array.nbytes
            else "just past the end of"
        )
    else:
        off = f"the last {_bytes(offset + f.size - array.nbytes)} of them past the end of"
    index = "" if offset % array.itemsize else f" (as `{array.name}[{offset // array.itemsize}]`)"
    end = "; the launch ends there" if f.space == NOWHERE else ""
    return f"{did}, {off} {_size(array)}{index}, {_at(f.place)}{end}."


def _index(f: Fact, arrays: tuple[Array, ...], who: _Thread, launch: Launch) -> Told:
    """An index that the array's own type rules out: of shared memory, or of a thread's own array."""
    lines = launch.source.text.splitlines()
    here = "" if f.place.file or not 0 < f.place.line <= len(lines) else lines[f.place.line - 1]
    indexed = re.findall(r"\b(\w+)\s*\[", here)
    shared = {a.name: a for a in arrays if a.space == STATIC_SHARED}
    known = {a.name for a in arrays}
    names = [n for n in indexed if n in shared] or [n for n in indexed if n not in known]
    name = names[0] if names else None
    type_name = re.sub(r"\s+\[", "[", f.name.strip("'"))
    if name is None:
        what = f"an array of type {type_name}"
    elif name in shared:
        what = _size(shared[name])
    else:
        what = f"`{name}`, the thread's own {type_name}"
    return Told(
        kind="out of bounds",
        line=0 if f.place.file else f.place.line,
        explanation=f"{who.words} uses index {f.address} of {what}, {_at(f.place)}; the launch ends there.",
        array=name,
        lane=who.lane,
        warp=who.warp,
        block=who.block,
        count=f.count,
        where=f"{f.place.file}:{f.place.line}" if f.place.file else "",
    )


def _uninitialised(f: Fact, array: Array | None, offset: int, who: _Thread, launch: Launch) -> str:
    assert array is not None
    shared = array.space in (STATIC_SHARED, DYNAMIC_SHARED)
    advice = " Shared memory holds nothing at the start of a block." if shared else ""
    return (
        f"{who.words} reads {_bytes(f.size)} of {_size(array)} at {_element(array, offset)}, {_at(f.place)}, which "
        f"no thread has written.{advice}"
    )


def _race(f: Fact, array: Array | None, offset: int, who: _Thread, launch: Launch) -> str:
    assert array is not None
    other = _Thread.of(f.other_thread, launch)
    same_line = f.place == f.other_place
    apart = "the same line" if same_line else _at(f.other_place)[3:]
    also = (
        " also"
        if f.how & WRITE and f.other_how & WRITE and not (f.how | f.other_how) & ATOMIC
        else ""
    )
    if who.block != other.block:
        why = "Blocks run in any order: only a grid sync, or another launch, lies between them for certain."
    elif who.warp != other.warp:
        why = "No __syncthreads lies between the two."
    else:
        why = (
            "Neither a __syncthreads nor a __syncwarp lies between the two; shuffles and votes order no memory, and "
            "the lanes of a warp need not be in step."
        )
    if same_line and also:
        why = f"They write different values, and which one stays is chance. {why}"
    if (f.how | f.other_how) & ATOMIC and not f.how & f.other_how & ATOMIC:
        why = f"Only one of the two is atomic. {why}"
    if (f.how ^ f.other_how) & VOLATILE:
        why = f"Only one of the two is volatile. {why}"
    return (
        f"{who.words} {_verb(f.how)} {_element(array, offset)} {_at(f.place)}, which {other.words}{also} "
        f"{_verb(f.other_how)} at {apart}. {why}"
    )


def _barrier(f: Fact, array: Array | None, offset: int, who: _Thread, launch: Launch) -> str:
    return (
        f"{who.words} comes to {f.name} {_at(f.place)} while other threads of its block wait in {f.other_name} "
        f"{_at(f.other_place)}. A barrier in a branch must be reached by all threads of the block or by none: move it "
        "out of the branch."
    )


def _misaligned(f: Fact, array: Array | None, offset: int, who: _Thread, launch: Launch) -> str:
    where = (
        f"{_element(array, offset)}, byte {offset} of {_size(array)}"
        if array
        else f"address {f.address:#x}"
    )
    type_name = f.name.strip("'").removeprefix("const ").removeprefix("struct ")
    return (
        f"{who.words} {_verb(f.how)} {type_name} at {where}, {_at(f.place)}: that is not a multiple of {f.size} bytes, "
        "and a GPU faults; the launch ends there."
    )


def _spin(f: Fact, array: Array | None, offset: int, who: _Thread, launch: Launch) -> str:
    reads = f" and reads {_element(array, offset)} again and again" if array else ""
    return (
        f"{who.words} runs {_at(f.place)}{reads}, for {launch.timeout:g} s without a barrier or an end. A loop that "
        "waits for another thread never ends here, where a lane runs until it waits at a barrier, and may never end on "
        "a GPU. Wait with __syncthreads, __syncwarp or a grid sync."
    )


def _timeout(f: Fact, array: Array | None, offset: int, who: _Thread, launch: Launch) -> str:
    return (
        f"the launch did not end within {launch.timeout:g} s; {who.words} was {_at(f.place)}. Make the launch smaller, "
        "or give it more time with `timeout`."
    )


# ---- the runtime's own diagnoses ----

_PLACE = re.compile(r"(\S+) at (\S+?):(\d+)")
_BLOCK = re.compile(r"block \((\d+),(\d+),(\d+)\)")


def tell_fault(report: str, launch: Launch) -> Told:
    """The runtime's diagnosis of a launch that could not go on, as a finding."""
    places = [
        (name, int(line)) if file == launch.source.name else (f"{name} in {file}", 0)
        for name, file, line in _PLACE.findall(report)
    ]
    lines = [line for _, line in places]
    other = re.search(r"meets \S+ at line (\d+)", report)
    others = [int(other.group(1))] if other else [n for n in lines if n != lines[0]]
    where = _BLOCK.search(report)
    x, y, z = (int(v) for v in where.groups("0")) if where else (0, 0, 0)
    first = re.search(r"lane (\d+) of warp (\d+)", report)
    waiting = re.search(r"warp (\d+), lanes (\d+)\S* (?:wait|never came)", report)
    if first:
        lane, warp = int(first.group(1)), int(first.group(2))
    elif waiting:
        warp, lane = int(waiting.group(1)), int(waiting.group(2))
    else:
        lane, warp = None, None
    kind = (
        "trap"
        if "__trap at" in report
        else "deadlock"
        if report.startswith("deadlock")
        else "barrier"
        if "grid sync" in report
        else "misaligned"
        if "a matrix starts at" in report
        else "shuffle"
    )
    return Told(
        kind=kind,
        line=lines[0] if lines else 0,
        explanation=f"{report.rstrip('.')}.",
        lane=lane,
        warp=warp,
        block=x + launch.grid[0] * (y + launch.grid[1] * z),
        other_line=others[0] if others else None,
    )
