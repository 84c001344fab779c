"""Which lane holds which weight of a fragment, and what the nibbles of a Q4_0 block become on the way there.

Layout: PTX ISA, mma.m16n8k16 with halves, matrix A. Of a product's 16 x 16 left matrix, lane l holds in each of four
registers two halves that are neighbours along a row.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sovereign_lab.errors import LabError
from sovereign_lab.models.quants import BLOCK_WEIGHTS
from sovereign_lab.notebook.plots import FAINT, MONOSPACE, VERMILLION, styled
from sovereign_lab.notebook.table import Table

TILE = 16
BIAS = 0x6400  # the bits of the half 1024


class Place(NamedTuple):
    """Where a weight of a 16 x 32 strip lies: whose lane's, of which product's fragment, register, low or high half."""

    lane: int
    product: int
    register: int
    half: int


def place_of(row: int, weight: int) -> Place:
    """The place of weight 0 to 31 of a block of Q4_0, of row 0 to 15. Raises LabError outside of these."""
    if not (0 <= row < TILE and 0 <= weight < BLOCK_WEIGHTS):
        raise LabError(f"A strip has rows 0 to 15 of weights 0 to 31; got {row} and {weight}.")
    product, k = divmod(weight, TILE)
    return Place(row % 8 * 4 + k % 8 // 2, product, row // 8 + k // 8 * 2, k % 2)


def byte_of(weight: int) -> tuple[int, str]:
    """Which of a block's 16 bytes of nibbles a weight lies in, and whether as the low or the high nibble."""
    return weight % TILE, "high" if weight >= TILE else "low"


def held_by(lane: int) -> Table:
    """What one lane holds of row `lane // 4`: by register and half, the weight, and the nibble that it came from."""
    row = lane // 4
    rows = []
    for weight in range(BLOCK_WEIGHTS):
        place = place_of(row, weight)
        if place.lane == lane:
            byte, nibble = byte_of(weight)
            where = f"product {place.product}, register a{place.register}"
            rows.append(
                [where, ("low half", "high half")[place.half], str(weight), f"byte {byte}, {nibble} nibble"]
            )  # fmt: skip
    return Table([f"lane {lane}, row {row}", "", "weight", "comes from"], rows)


def lanes_picture(lane: int = 5) -> go.Figure:
    """Lane by weight of a strip of 16 rows by one block of Q4_0: two fragments; what `lane` holds is framed."""
    titles = (
        "first product: weights 0 to 15, the low nibbles",
        "second product: weights 16 to 31, the high nibbles",
    )
    figure = make_subplots(rows=2, subplot_titles=titles, vertical_spacing=0.12)
    for product in range(2):
        weights = range(product * TILE, product * TILE + TILE)
        lanes = np.array([[place_of(r, w).lane for w in weights] for r in range(TILE)])
        hover = [
            [
                f"row {r}, weight {w}: {byte_of(w)[1]} nibble of byte {byte_of(w)[0]}<br>"
                f"lane {(p := place_of(r, w)).lane}, register a{p.register}, {'high' if p.half else 'low'} half"
                for w in weights
            ]
            for r in range(TILE)
        ]
        figure.add_heatmap(
            x=[str(w) for w in weights], z=lanes % 4, text=lanes, texttemplate="%{text}", hovertext=hover,
            hoverinfo="text", showscale=False, colorscale=["#56B4E9", "#F0E442", "#009E73", "#CC79A7"], xgap=1, ygap=1,
            zmin=0, zmax=3, textfont={"family": MONOSPACE, "size": 11, "color": "#000000"}, row=product + 1, col=1,
        )  # fmt: skip
        for r, column in zip(*np.nonzero(lanes == lane), strict=True):
            figure.add_shape(
                type="rect", x0=column - 0.5, x1=column + 0.5, y0=r - 0.5, y1=r + 0.5,
                line={"color": VERMILLION, "width": 3}, row=product + 1, col=1,
            )  # fmt: skip
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(
        autorange="reversed", dtick=4, showgrid=False, title_text="row", linecolor=FAINT
    )
    return styled(figure, f"The lane that holds each weight; what lane {lane} holds is framed", 760)


# ---- nibbles to halves ----


def under_bias(nibbles: np.ndarray) -> np.ndarray:
    """Nibbles (integers 0 to 15) put under the bits 0x6400 and read as halves: float16, the same shape."""
    return (BIAS | np.asarray(nibbles)).astype(np.uint16).view(np.float16)


def trick_table() -> Table:
    """All 16 nibbles: the bits, the half that they are, less 1032, and nibble - 8."""
    nibbles = np.arange(16)
    halves = under_bias(nibbles)
    less = halves - np.float16(1032)
    rows = [
        [str(n), f"0x{BIAS | n:04x}", f"{h:g}", f"{d:g}", str(n - 8)]
        for n, h, d in zip(nibbles.tolist(), halves, less, strict=True)
    ]
    return Table(["nibble", "bits", "as a half", "less 1032", "nibble - 8"], rows)


def roundings_that_differ() -> tuple[int, int]:
    """Over all scales that are finite halves and all nibbles: how many products, and how many of them differ, computed
    in half by way of 0x6400, from the exact product rounded once to half.
    """
    scales = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    scales = scales[np.isfinite(scales)]
    nibbles = np.arange(16)
    with np.errstate(over="ignore"):
        here = (under_bias(nibbles) - np.float16(1032)) * scales[:, None]
        # 11 bits times 4 bits fit into the 53 of a double: exact, until it is rounded
        once = ((nibbles - 8) * scales[:, None].astype(np.float64)).astype(np.float16)
    return here.size, int((here != once).sum())


# ---- 16.1: whose is this weight? ----


def fault(answer: Callable[[int, int], Any]) -> str | None:
    """What is wrong with an answer to 16.1, (row, weight) -> (lane, product, register, half); None if nothing.

    "" where the answer is still None.
    """
    for row in range(TILE):
        for weight in range(BLOCK_WEIGHTS):
            got = answer(row, weight)
            if got is None:
                return ""
            if not isinstance(got, tuple | list) or len(got) != len(Place._fields):
                return f"An answer is (lane, product, register, half); got {got!r}."
            right = place_of(row, weight)
            for name, mine, theirs in zip(Place._fields, got, right, strict=True):
                if mine != theirs:
                    byte, nibble = byte_of(weight)
                    return (
                        f"Weight {weight} of row {row}, the {nibble} nibble of byte {byte}: the {name} is {theirs}, "
                        f"yours says {mine!r}. {_HINTS[name]}"
                    )
    return None


_HINTS = {
    "lane": "Four lanes share a row, and rows 8 apart have the same lanes; along a row a lane holds two neighbours, "
    "and the two that are 8 further on.",
    "product": "The low nibbles of a block are its first 16 weights, the high ones the other 16.",
    "register": "a0 is the upper eight rows, a1 the lower eight; a2 and a3 are the same rows, 8 weights further on.",
    "half": "Of two neighbours the first lies in the low half.",
}
