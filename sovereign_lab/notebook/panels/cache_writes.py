"""`sl.explore_cache_writes`: which slot of the KV cache each position writes, with the right kernel and the seed's bug.

The kernels themselves are run, position by position on a cache full of NaN: what holds a number afterwards was written.
"""

from collections.abc import Mapping

import numpy as np

from sovereign_lab.devices import Device, open_device
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.measure.workload import DEFINES, workload
from sovereign_lab.notebook.double_offset import DOUBLE_OFFSET, CacheWrites
from sovereign_lab.notebook.panels.controls import Control, Slider, Values
from sovereign_lab.notebook.panels.svg import BLUE, FAINT, INK, ORANGE, line, picture, rect, text
from sovereign_lab.notebook.panels.widget import NARROW, WIDE, Drawing, Exploration, Explorer
from sovereign_lab.notebook.seed import TINYLLAMA

POSITIONS = 12
MOST_POSITIONS = 32


def rope_writes(
    variant: Variant, positions: int = POSITIONS, device: Device | None = None
) -> CacheWrites:
    """Launch a rope_kv kernel at positions 0, 1, ... and see what it wrote; caches have twice that many slots.

    Raises LabError for more positions than `MOST_POSITIONS`, or fewer than 1, and what compiling and launching raise.
    """
    if not 1 <= positions <= MOST_POSITIONS:
        raise LabError(f"The map is drawn for 1 to {MOST_POSITIONS} positions; got {positions}.")
    device = device or open_device("simt")
    rope, kernel = op("rope_kv"), device.compile(variant.path, DEFINES)
    written: dict[str, list[tuple[int, ...]]] = {"keys": [], "values": []}
    for position in range(positions):
        args = workload(rope, TINYLLAMA, position)
        for name in written:
            args[name] = np.full((2 * positions, *args[name].shape[1:]), np.nan, np.float16)
        given = device.arguments(args)
        device.launch(kernel, rope.grid(variant, args), variant.threads, list(given.values()))
        for name, slots in written.items():
            numbers = ~np.isnan(device.to_host(given[name])).all(axis=(1, 2))
            slots.append(tuple(int(slot) for slot in np.flatnonzero(numbers)))
    return CacheWrites(tuple(written["keys"]), tuple(written["values"]))


def draw_cache_writes(
    kernels: Mapping[str, CacheWrites], position: int, width: int = WIDE
) -> Drawing:
    """The slots of the keys that positions 0 to `position` wrote, a map a kernel.

    Grey is what attention reads at this position. Raises LabError for a position that was not run.
    """
    count = min(len(writes.keys) for writes in kernels.values())
    if not 0 <= position < count:
        raise LabError(f"Positions 0 to {count - 1} were run; got {position}.")
    slots = 1 + max(s for writes in kernels.values() for at in writes.keys for s in at)
    beside = width > NARROW
    part = width / len(kernels) if beside else width
    cell = (min(26.0, (part - 60) / count), max(10.0, min(16.0, 380 / slots)))
    high = slots * cell[1] + 74
    parts = []
    for i, (name, writes) in enumerate(kernels.items()):
        x, y = (i * part, 0.0) if beside else (0.0, i * high)
        parts += _map(name, writes, position, slots, x, y, cell)
    facts = []
    for name, writes in kernels.items():
        found = writes.found(position)
        empty = [slot for slot, writer in enumerate(found) if writer is None]
        wrote, wrong = (
            writes.keys[position],
            [p for p in range(position + 1) if writes.keys[p] != (p,)],
        )
        lacks = f"and {_list(empty)} {'holds' if len(empty) == 1 else 'hold'} no key"
        facts.append([
            name,
            f"position {position} writes its key to slot {_list(wrote)}; attention then reads slots 0 to {position}, "
            + (lacks if empty else "all of them with a key"),
            f"{len(wrong)} of {position + 1} keys in another position's slot",
        ])  # fmt: skip
    note = (
        "From launches of the kernels themselves, exact. Blue square: its own slot. Orange cross: another. "
        "Grey: what attention reads at this position."
    )
    label = f"Writes of keys up to position {position}: " + "; ".join(
        " ".join(row[:2]) for row in facts
    )
    return Drawing(
        picture(parts, width, high if beside else high * len(kernels), label), facts, note
    )


def _map(
    name: str,
    writes: CacheWrites,
    position: int,
    slots: int,
    x: float,
    y: float,
    cell: tuple[float, float],
) -> list[str]:
    (across, up), left, top, count = cell, x + 44, y + 30, len(writes.keys)
    bottom, right = top + slots * up, left + count * across
    parts = [text(x, y + 14, name, size=13, font_weight="bold")]
    read = (position + 1) * up
    parts.append(rect(left, bottom - read, right - left, read, f"attention reads slots 0 to {position}",
                      fill=FAINT, fill_opacity=0.35))  # fmt: skip
    parts.append(
        rect(left + position * across, top, across, slots * up, fill="none", stroke=INK, stroke_dasharray="3 3")
    )  # fmt: skip
    parts += [line(left, bottom, right, bottom), line(left, top, left, bottom)]
    for at in range(position + 1):
        for slot in writes.keys[at]:
            parts += _mark(
                at, slot, left + (at + 0.5) * across, bottom - (slot + 0.5) * up, up * 0.34
            )
    for slot in range(0, slots, 4):
        parts.append(text(left - 5, bottom - slot * up - up / 2 + 4, str(slot), "end", 10))
    for at in range(0, count, 4):
        parts.append(text(left + (at + 0.5) * across, bottom + 14, str(at), "middle", 10))
    parts.append(text((left + right) / 2, bottom + 32, "position", "middle", 11))
    turned = f"rotate(-90 {x + 12:.1f} {(top + bottom) / 2:.1f})"
    parts.append(
        text(x + 12, (top + bottom) / 2, "slot of the keys", "middle", 11, transform=turned)
    )
    return parts


def _mark(position: int, slot: int, x: float, y: float, size: float) -> list[str]:
    """A square for a write to the position's own slot, a cross for one elsewhere."""
    hover = f"position {position} writes slot {slot}"
    if position == slot:
        return [rect(x - size, y - size, 2 * size, 2 * size, hover, fill=BLUE)]
    cross = {"stroke": ORANGE, "stroke_width": 3}
    return [
        line(x - size, y - size, x + size, y + size, **cross),
        line(x - size, y + size, x + size, y - size, **cross),
        rect(x - size, y - size, 2 * size, 2 * size, hover, fill="transparent"),
    ]


def _list(numbers: tuple[int, ...] | list[int]) -> str:
    words = [str(n) for n in numbers]
    if not words:
        return "none"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# ---- the explorer ----


def explore_cache_writes(positions: int = POSITIONS, device: Device | None = None) -> Explorer:
    """A slider over positions, and the maps of the right kernel and of the one that adds the offset twice.

    Both kernels are run here first, on the SIMT device unless told otherwise. Raises LabError as `rope_writes` does.
    """
    device = device or open_device("simt")
    kernels = {
        "the offset added once": rope_writes(op("rope_kv").variant("fixed"), positions, device),
        "the offset added twice": rope_writes(DOUBLE_OFFSET, positions, device),
    }
    controls: list[Control] = [Slider("position", "Position", 0, positions - 1)]

    def draw(values: Values, width: int) -> Drawing:
        return draw_cache_writes(kernels, values["position"], width)

    return Explorer(
        Exploration(
            name="cache-writes",
            title="Where each position writes its key",
            start={"position": min(3, positions - 1)},
            controls=lambda values: controls,
            draw=draw,
        )
    )
