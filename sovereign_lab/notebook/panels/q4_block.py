"""`sl.explore_q4_0_block`: one block of 18 bytes of a real matrix, nibble by nibble."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from sovereign_lab.errors import LabError
from sovereign_lab.models.model import Model, Q4Matrix, load_model
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS, unpack_q4_0
from sovereign_lab.notebook.panels.controls import Choice, Control, Slider, Values
from sovereign_lab.notebook.panels.svg import (
    BLUE,
    FAINT,
    INK,
    MONOSPACE,
    ORANGE,
    line,
    picture,
    rect,
    tag,
    text,
)
from sovereign_lab.notebook.panels.widget import NARROW, WIDE, Drawing, Exploration, Explorer

MATRICES = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")
HALF = BLOCK_WEIGHTS // 2
SCALE_BYTES = BLOCK_BYTES - HALF


@dataclass(frozen=True)
class Element:
    """One weight of a block and where it lies.

    `index`: 0 to 31 in the block; `column` in the matrix. `byte`: of the block, 0 to 17; `matrix_byte`: of the
    matrix. `value` = (nibble - 8) * scale.
    """

    index: int
    column: int
    byte: int
    matrix_byte: int
    byte_value: int
    high: bool
    nibble: int
    value: float


@dataclass(frozen=True)
class Q4Block:
    """Block `block` of row `row`: its 18 bytes, its scale (fp16, in bytes 0 and 1), its 32 weights in order."""

    row: int
    block: int
    raw: bytes
    scale: float
    elements: tuple[Element, ...]


def q4_0_block(matrix: Q4Matrix, row: int, block: int) -> Q4Block:
    """A block of a matrix taken apart. Raises LabError for a row or a block that the matrix does not have."""
    if not 0 <= row < matrix.rows:
        raise LabError(f"The matrix has rows 0 to {matrix.rows - 1:,}; got row {row:,}.")
    if not 0 <= block < matrix.blocks_per_row:
        raise LabError(f"A row has blocks 0 to {matrix.blocks_per_row - 1:,}; got block {block:,}.")
    raw = np.array(matrix.blocks[row, block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])
    weights, start = unpack_q4_0(raw), (row * matrix.blocks_per_row + block) * BLOCK_BYTES
    elements = []
    for index in range(BLOCK_WEIGHTS):
        byte, high = SCALE_BYTES + index % HALF, index >= HALF
        value = int(raw[byte])
        elements.append(Element(
            index, block * BLOCK_WEIGHTS + index, byte, start + byte, value, high,
            value >> 4 if high else value & 15, float(weights[index]) + 0.0,  # no -0
        ))  # fmt: skip
    scale = float(raw[:SCALE_BYTES].view(np.float16)[0])
    return Q4Block(row, block, raw.tobytes(), scale, tuple(elements))


def draw_q4_0_block(block: Q4Block, chosen: int = 0, width: int = WIDE) -> Drawing:
    """Bytes, the nibbles under them, and the weights as bars; the chosen element in orange in each.

    Raises LabError for an element that is not 0 to 31.
    """
    if not 0 <= chosen < BLOCK_WEIGHTS:
        raise LabError(f"A block has elements 0 to {BLOCK_WEIGHTS - 1}; got {chosen}.")
    element = block.elements[chosen]
    parts, y = [], 0.0
    # Too narrow for 18 bytes in a line: two lines of 9 pairs of nibbles stay readable.
    per_line = BLOCK_BYTES if width > NARROW else BLOCK_BYTES // 2
    left = 74 if width > NARROW else 38
    cell = min(40.0, (width - left - 4) / per_line)
    for first in range(0, BLOCK_BYTES, per_line):
        parts += _bytes_and_nibbles(block, element, range(first, first + per_line), left, cell, y)
        y += 118
    parts += _bars(block, element, left, y + 8, width)
    half = "high" if element.high else "low"
    facts = [
        ["element", f"{element.index} of the block, column {element.column:,} of row {block.row:,}"],
        ["nibble", f"{element.nibble}, the {half} one of byte {element.byte} (0x{element.byte_value:02x})"],
        ["scale", f"{block.scale:.6g}, fp16 in bytes 0 and 1 of the block"],
        ["weight", f"({element.nibble} - 8) x {block.scale:.6g} = {element.value:.6g}"],
        ["its byte lies", f"{element.matrix_byte:,} bytes into the matrix"],
        ["its neighbour", f"element {(element.index + HALF) % BLOCK_WEIGHTS} has the other nibble of this byte"],
    ]  # fmt: skip
    label = f"Block {block.block} of row {block.row}: element {chosen} is {element.value:.6g}"
    return Drawing(
        picture(parts, width, y + 128, label, role="group"), facts, "From the model's file, exact."
    )


def _bytes_and_nibbles(
    block: Q4Block, chosen: Element, bytes_: Sequence[int], left: float, cell: float, y: float
) -> list[str]:
    narrow = left < 60
    names = ("byte", "low", "high") if narrow else ("byte", "low nibble", "high nibble")
    size = 9 if narrow else 11
    parts = [
        text(left - 5, y + dy, n, "end", size) for n, dy in zip(names, (37, 67, 97), strict=True)
    ]
    for i, at in enumerate(bytes_):
        x = left + i * cell
        mine = at == chosen.byte
        parts.append(text(x + cell / 2, y + 13, str(at), "middle", 10, fill_opacity=0.75))
        parts.append(rect(
            x + 1, y + 18, cell - 2, 28, f"byte {at}: 0x{block.raw[at]:02x}", fill=ORANGE if mine else FAINT,
            fill_opacity=0.45 if mine else 0.25, stroke=FAINT,
        ))  # fmt: skip
        parts.append(
            text(x + cell / 2, y + 37, f"{block.raw[at]:02x}", "middle", font_family=MONOSPACE)
        )
        if at < SCALE_BYTES:
            continue
        for index, dy in ((at - SCALE_BYTES, 48), (at - SCALE_BYTES + HALF, 78)):
            parts.append(_nibble(block.elements[index], index == chosen.index, x, y + dy, cell))
    if bytes_[0] == 0:
        parts.append(text(left + cell, y + 72, "scale", "middle", 11))
    return parts


def _nibble(element: Element, chosen: bool, x: float, y: float, cell: float) -> str:
    """A nibble as a button; the arrow keys go along the elements, and from low to high."""
    name = f"element {element.index}, nibble {element.nibble}, weight {element.value:.6g}"
    inner = (
        tag("title", escape(name))
        + rect(
            x + 1, y, cell - 2, 28, fill=ORANGE if chosen else BLUE, stroke=INK if chosen else "none",
            fill_opacity=0.85 if chosen else 0.12 + 0.5 * abs(element.nibble - 8) / 8, class_="sl-frame",
            stroke_width=1.5,
        )
        + text(x + cell / 2, y + 19, str(element.nibble), "middle", 13, font_family=MONOSPACE,
               font_weight="bold" if chosen else None)
    )  # fmt: skip
    return tag(
        "g", inner, data_pick="element", data_value=element.index, data_across=HALF, role="button",
        tabindex=0 if chosen else -1, aria_pressed=str(chosen).lower(), aria_label=name,
    )  # fmt: skip


def _bars(block: Q4Block, chosen: Element, left: float, y: float, width: int) -> list[str]:
    height, most = 84.0, max(abs(e.value) for e in block.elements) or 1.0
    step, zero = (width - left - 4) / BLOCK_WEIGHTS, y + height / 2
    parts = [
        line(left, zero, width - 4, zero),
        text(left - 5, zero + 4, "weight", "end", 9 if left < 60 else 11),
    ]
    for element in block.elements:
        high = abs(element.value) / most * (height / 2)
        top = zero - high if element.value > 0 else zero
        mine = element.index == chosen.index
        parts.append(rect(
            left + element.index * step + 1, top, step - 2, max(high, 1),
            f"weight {element.index}: {element.value:.6g}", fill=ORANGE if mine else BLUE,
            fill_opacity=None if mine else 0.7,
        ))  # fmt: skip
        if element.index % 4 == 0:
            x = left + (element.index + 0.5) * step
            parts.append(
                text(x, y + height + 16, str(element.index), "middle", 10, fill_opacity=0.75)
            )
    return parts


# ---- the explorer ----


def explore_q4_0_block(
    model: Model | str | None = None, matrix: str = "wq", row: int = 0, block: int = 0
) -> Explorer:
    """Choose a matrix of the first layer, a row and a block; click a nibble, or go to it with the arrow keys.

    `model`: as loaded, or a name or path for `sl.load_model`. Raises LabError as that does, and for a `matrix`, `row`
    or `block` that the model does not have.
    """
    loaded = model if isinstance(model, Model) else load_model(model) if model else load_model()
    if matrix not in MATRICES:
        raise LabError(f"A layer's matrices are {', '.join(MATRICES)}; got {matrix!r}.")
    matrices: dict[str, Q4Matrix] = {name: getattr(loaded.layers[0], name) for name in MATRICES}
    q4_0_block(matrices[matrix], row, block)  # refuses what a slider would move to where it fits

    def controls(values: Values) -> list[Control]:
        chosen = matrices.get(str(values["matrix"]), matrices[matrix])
        names = [(n, f"{n}: {m.rows:,} x {m.cols:,}") for n, m in matrices.items()]
        indices = [(str(i), str(i)) for i in range(BLOCK_WEIGHTS)]
        return [
            Choice("matrix", "Matrix, rows x columns", names),
            Slider("row", "Row", 0, chosen.rows - 1),
            Slider("block", "Block of the row", 0, chosen.blocks_per_row - 1),
            Choice("element", "Element", indices, steps=True),
        ]

    def draw(values: Values, width: int) -> Drawing:
        found = q4_0_block(matrices[values["matrix"]], values["row"], values["block"])
        return draw_q4_0_block(found, int(values["element"]), width)

    return Explorer(
        Exploration(
            name="q4-0-block",
            title=f"A Q4_0 block of {loaded.config.name}, layer 0",
            start={"matrix": matrix, "row": row, "block": block, "element": "0"},
            controls=controls,
            draw=draw,
        )
    )
