"""`sl.explore_warp`: the 32 addresses of one request against the sectors of 32 bytes that memory moves for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sovereign_lab.devices.device import WARP
from sovereign_lab.errors import LabError
from sovereign_lab.measure.memory_trace import LINE_BYTES, SECTOR_BYTES
from sovereign_lab.notebook.panels.controls import Choice, Control, Slider, Values
from sovereign_lab.notebook.panels.svg import (
    BLUE,
    FAINT,
    MONOSPACE,
    ON_BLUE,
    ORANGE,
    picture,
    rect,
    text,
)
from sovereign_lab.notebook.panels.widget import WIDE, Drawing, Exploration, Explorer

MOST_STRIDE, MOST_OFFSET = 1024, 128
SIZES = (1, 2, 4, 8, 16)  # bytes that one load instruction takes a lane
MOST_ROWS = 32
YOURS = "yours"


@dataclass(frozen=True)
class Pattern:
    """Where the lanes of a warp load from: lane `l` takes `size` bytes at `offset` + (l % `lanes`) * `stride`.

    All in bytes from a place that 128 divides, as device arrays begin. `lanes`: after so many the addresses repeat.
    """

    stride: int = 4
    offset: int = 0
    size: int = 4
    lanes: int = WARP

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise LabError(f"A lane loads 1, 2, 4, 8 or 16 bytes; got {self.size}.")
        if not 1 <= self.lanes <= WARP:
            raise LabError(f"Addresses repeat after 1 to {WARP} lanes; got {self.lanes}.")
        if self.stride < 0 or self.offset < 0:
            raise LabError(f"Stride and offset are 0 or more; got {self.stride} and {self.offset}.")

    @property
    def addresses(self) -> tuple[int, ...]:
        """The first byte of each of the 32 lanes."""
        return tuple(self.offset + lane % self.lanes * self.stride for lane in range(WARP))

    @property
    def natural(self) -> bool:
        """Whether every address is a multiple of the size, which a load of several bytes needs on a GPU."""
        return self.offset % self.size == 0 and (self.lanes == 1 or self.stride % self.size == 0)


# By what the lab's kernels do, in the order of the ladder: (op, variant, the load's text in its source, array).
PRESETS: Mapping[str, tuple[str, Pattern]] = {
    "gemv-x-strided": ("GEMV, a block a lane: x", Pattern(stride=128)),
    "gemv-w-strided": (
        "GEMV, a block a lane: a byte of W",
        Pattern(stride=18, offset=2, size=1),
    ),
    "gemv-x-coalesced": ("GEMV, coalesced: x", Pattern()),
    "gemv-w-coalesced": (
        "GEMV, coalesced: two lanes a byte of W",
        Pattern(stride=1, offset=2, size=1, lanes=16),
    ),
    "gemv-x-float4": ("GEMV, float4: x", Pattern(stride=16, size=16)),
    "logits-w-rows": ("logits, a row a thread: W, rows of 256", Pattern(stride=1024)),
    "logits-x-broadcast": ("logits, a row a thread: x", Pattern(stride=0)),
    "attention-keys": ("attention: a key in fp16", Pattern(stride=2, size=2)),
    "shifted": ("coalesced, one element off", Pattern(offset=4)),
}


@dataclass(frozen=True)
class WarpRequest:
    """One load of a warp, exact by address: `sectors` and `lines` it touches, in ascending order."""

    pattern: Pattern
    sectors: tuple[int, ...]
    lines: tuple[int, ...]
    wanted: int
    ideal: int

    @property
    def moved(self) -> int:
        """Bytes: 32 a sector."""
        return len(self.sectors) * SECTOR_BYTES


def warp_request(pattern: Pattern) -> WarpRequest:
    """What the request touches. `wanted`: distinct bytes; `ideal`: sectors that hold so many bytes side by side."""
    ends = [(a, a + pattern.size - 1) for a in pattern.addresses]
    touched = {s for a, z in ends for s in range(a // SECTOR_BYTES, z // SECTOR_BYTES + 1)}
    wanted = len({byte for a, z in ends for byte in range(a, z + 1)})
    lines = {s * SECTOR_BYTES // LINE_BYTES for s in touched}
    return WarpRequest(
        pattern, tuple(sorted(touched)), tuple(sorted(lines)), wanted, -(-wanted // SECTOR_BYTES)
    )


def draw_warp(pattern: Pattern, width: int = WIDE) -> Drawing:
    """A row a line of 128 bytes; orange sectors are moved, blue marks are what lanes asked for."""
    found = warp_request(pattern)
    shown = found.lines[:MOST_ROWS]
    left, top, row = 64, 34, 26 if len(shown) <= 10 else 17
    scale = (width - left - 14) / LINE_BYTES
    parts = [text(left + b * scale, 14, str(b), "middle", 11) for b in range(0, LINE_BYTES + 1, 32)]
    parts.append(text(left - 8, 14, "byte", "end", 11))
    for i, line in enumerate(shown):
        y = top + i * row - 10
        parts.append(text(left - 8, y + row / 2 + 4, f"+{line * LINE_BYTES:,}", "end", 11))
        for start in range(0, LINE_BYTES, SECTOR_BYTES):
            moved = (line * LINE_BYTES + start) // SECTOR_BYTES in found.sectors
            parts.append(rect(
                left + start * scale, y + 1, SECTOR_BYTES * scale, row - 2, stroke=FAINT,
                fill=ORANGE if moved else "none", fill_opacity=0.32,
            ))  # fmt: skip
    row_of = {line: i for i, line in enumerate(shown)}
    for address, lanes in _lanes_by_address(pattern).items():
        parts += _mark(address, lanes, pattern.size, row_of, left, top, row, scale)
    height = top + len(shown) * row
    if len(found.lines) > len(shown):
        parts.append(
            text(left, height + 4, f"and {len(found.lines) - len(shown)} more lines", size=11)
        )
        height += 16
    label = f"{_count(len(found.sectors), 'sector')} of 32 bytes in {_count(len(found.lines), 'line')} of 128"
    facts = [
        ["sectors a request", f"{len(found.sectors)}, in {_count(len(found.lines), 'line')} of 128 bytes"],
        ["least for these bytes", _count(found.ideal, "sector")],
        ["bytes moved", f"{found.moved:,} for {found.wanted:,} wanted: {found.wanted / found.moved:.1%} used"],
        [
            "address of lane l",
            f"{pattern.offset} + {'l' if pattern.lanes == WARP else f'(l % {pattern.lanes})'} x {pattern.stride}, "
            f"{_count(pattern.size, 'byte')}",
        ],
    ]  # fmt: skip
    note = "Exact by address. Orange: a sector that memory moves. Blue: bytes that a lane asks for."
    if not pattern.natural:
        note += (
            f" On a GPU a load of {pattern.size} bytes faults at an address that {pattern.size} does not divide; "
            "a compiler then loads the bytes apart."
        )
    return Drawing(picture(parts, width, height, label), facts, note)


def _lanes_by_address(pattern: Pattern) -> dict[int, list[int]]:
    lanes: dict[int, list[int]] = {}
    for lane, address in enumerate(pattern.addresses):
        lanes.setdefault(address, []).append(lane)
    return lanes


def _mark(
    address: int, lanes: Sequence[int], size: int, row_of: Mapping[int, int],
    left: float, top: float, row: float, scale: float,
) -> list[str]:  # fmt: skip
    """A lane's bytes: two marks where they cross into the next line."""
    parts, start = [], address
    while start < address + size:
        line = start // LINE_BYTES
        end = min(address + size, (line + 1) * LINE_BYTES)
        if line in row_of:
            x, y = left + start % LINE_BYTES * scale, top + row_of[line] * row - 10
            wide = (end - start) * scale
            who = (
                f"lane {lanes[0]}"
                if len(lanes) == 1
                else f"{len(lanes)} lanes from lane {lanes[0]} on"
            )
            hover = f"{who}: {_count(size, 'byte')} at +{address:,}"
            parts.append(rect(x + 0.5, y + 4, max(wide - 1, 1.5), row - 8, hover, fill=BLUE))
            if wide >= 17 and start == address:
                parts.append(text(
                    x + wide / 2, y + row / 2 + 3.5, str(lanes[0]), "middle", 10, fill=ON_BLUE, font_family=MONOSPACE,
                    pointer_events="none",
                ))  # fmt: skip
        start = end
    return parts


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ---- the explorer ----


def explore_warp(preset: str = "gemv-x-strided") -> Explorer:
    """Sliders for stride, offset, bytes a lane and after how many lanes addresses repeat; presets of the lab's kernels.

    Raises LabError for an unknown preset.
    """
    if preset not in PRESETS:
        raise LabError(f"There is no preset {preset!r}; choose one of {', '.join(PRESETS)}.")
    controls: list[Control] = [
        Choice(
            "preset",
            "Load of",
            [*((k, label) for k, (label, _) in PRESETS.items()), (YOURS, "your own")],
        ),
        Slider("stride", "Stride, lane to lane", 0, MOST_STRIDE, unit="bytes"),
        Slider("offset", "Offset of lane 0", 0, MOST_OFFSET, unit="bytes"),
        Choice("size", "Bytes a lane", [(str(s), str(s)) for s in SIZES], steps=True),
        Slider("lanes", "Addresses repeat after", 1, WARP, unit="lanes"),
    ]
    return Explorer(
        Exploration(
            name="warp",
            title="One request of a warp, and the sectors it moves",
            start=_values(preset),
            controls=lambda values: controls,
            draw=lambda values, width: draw_warp(_pattern(values), width),
            follow=_follow,
        )
    )


def _values(preset: str) -> dict[str, object]:
    pattern = PRESETS[preset][1]
    return {
        "preset": preset, "stride": pattern.stride, "offset": pattern.offset, "size": str(pattern.size),
        "lanes": pattern.lanes,
    }  # fmt: skip


def _pattern(values: Values) -> Pattern:
    return Pattern(values["stride"], values["offset"], int(values["size"]), values["lanes"])


def _follow(before: Values, sent: Values) -> Values:
    """A preset sets the sliders; a slider leaves the preset, or comes upon another."""
    chosen = sent.get("preset")
    if chosen != before.get("preset"):
        return _values(str(chosen)) if chosen in PRESETS else sent
    same = [p for p in PRESETS if all(_values(p)[k] == sent.get(k) for k in sent if k != "preset")]
    return {**sent, "preset": chosen if chosen in same else (same or [YOURS])[0]}
