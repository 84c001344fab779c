"""Exercise 20.1: the norm inside of a product, without a barrier and without another look at x."""

from dataclasses import dataclass

import numpy as np

from sovereign_lab.devices.signature import without_comments
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import Trace, trace
from sovereign_lab.models import reference
from sovereign_lab.models.quants import quantise_q4_0
from sovereign_lab.models.tiles import TILE_ROWS, tile_q4_0, untile_q4_0
from sovereign_lab.notebook.array_traffic import array_traffic

WIDE = op("gemv_tiles").variant("wide")
CANARIES, CANARY = 64, np.float32(-12345.678)
TOLERANCE = 2e-5
# Rows and blocks a row: no whole tile, half a pair, more pairs than a warp takes at once.
SHAPES = ((1, 1), (6, 2), (7, 18), (33, 33), (5, 101))

STARTER = (
    WIDE.source[WIDE.source.index("#include") :]
    .replace("void gemv_tiles(", "void norm_gemv(")
    .replace(
        "float* y,        // [rows]",
        "const float* norm,  // [blocks_per_row * 32]\n"
        "                                      float* y,        // [rows]",
    )
    .replace("int rows, int blocks_per_row)", "int rows, int blocks_per_row, float eps)")
)
"""gemv_tiles:wide with two more parameters, of which it makes no use yet."""


@dataclass(frozen=True)
class Case:
    """The arguments of norm_gemv, and what y must be."""

    W: np.ndarray
    x: np.ndarray
    norm: np.ndarray
    rows: int
    blocks_per_row: int
    eps: np.float32

    @property
    def shape(self) -> str:
        """ "7 rows of 18 blocks, eps 0.5"."""
        return f"{self.rows} rows of {self.blocks_per_row} blocks, eps {self.eps:g}"

    @property
    def weights(self) -> np.ndarray:
        """float32 [rows, columns]."""
        return untile_q4_0(self.W, self.rows, self.x.size)

    @property
    def expected(self) -> np.ndarray:
        """W times the normed x."""
        return self.weights @ reference.rmsnorm(self.x, self.norm, float(self.eps))

    def arguments(self, y: np.ndarray) -> dict[str, object]:
        """By parameter, in the order of the signature."""
        return {
            "W": self.W, "x": self.x, "norm": self.norm, "y": y, "rows": self.rows,
            "blocks_per_row": self.blocks_per_row, "eps": self.eps,
        }  # fmt: skip


def cases() -> list[Case]:
    """Odd shapes; an eps that is small against the mean square, and one that is not."""
    rng = np.random.default_rng(20)
    found = []
    for i, (rows, blocks) in enumerate(SHAPES):
        w = rng.standard_normal((rows, blocks * 32), np.float32)
        x = 3 * rng.standard_normal(blocks * 32, np.float32)
        norm = (1 + 0.5 * rng.standard_normal(blocks * 32)).astype(np.float32)
        eps = np.float32(4.0 if i % 2 else 1e-5)
        found.append(Case(tile_q4_0(quantise_q4_0(w)), x, norm, rows, blocks, eps))
    return found


def grid(rows: int) -> int:
    """Blocks of a launch, as of `wide`."""
    assert WIDE.rows_per_block is not None
    return -(-rows // WIDE.rows_per_block)


def traced(source: str) -> Trace:
    """The trace of a norm_gemv on 8 rows of 2,048 columns."""
    rng = np.random.default_rng(0)
    w = tile_q4_0(rng.integers(0, 60, (2 * TILE_ROWS, 64 * 18), np.uint8))
    x, norm = (rng.standard_normal(2048, np.float32) for _ in range(2))
    case = Case(w, x, norm, 2 * TILE_ROWS, 64, np.float32(1e-5))
    args = case.arguments(np.zeros(case.rows, np.float32))
    return trace(source, grid(case.rows), WIDE.threads, args, name="yours.cu")


def check(source: str) -> str:
    """What is good about a norm_gemv. Raises LabError with what is wrong, without words where it is the starter."""
    if without_comments(source).split() == without_comments(STARTER).split():
        raise LabError("")
    device = SimtDevice()
    try:
        kernel = device.compile(source, name="yours.cu")
        for case in cases():
            fenced = np.full(case.rows + 2 * CANARIES, CANARY)
            y = fenced[CANARIES:-CANARIES]
            y[:] = np.nan
            device.launch(kernel, grid(case.rows), WIDE.threads, list(case.arguments(y).values()))
            if not (np.all(fenced[:CANARIES] == CANARY) and np.all(fenced[-CANARIES:] == CANARY)):
                raise LabError(f"{case.shape}: the kernel writes outside y.")
            _compare(case, y)
    finally:
        device.close()
    found = traced(source)
    if any(row.barriers for row in found.flow):
        raise LabError("The results are right, but the block waits at a barrier; no warp needs to.")
    before = array_traffic(traced(STARTER))["x"].requests
    after = array_traffic(found)["x"].requests
    if after > before:
        raise LabError(
            f"The results are right, but 8 rows make {after} requests for x, the starter {before}: the squares can "
            "be summed where x is multiplied."
        )
    return f"Right on {len(SHAPES)} odd shapes, no barrier, and x is asked for {after} times, as before."


def _compare(case: Case, y: np.ndarray) -> None:
    expected = case.expected
    close = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if np.isnan(y).any():
        row = int(np.isnan(y).argmax())
        raise LabError(f"{case.shape}: y[{row}] is never written, or is NaN.")
    far = np.abs(y - expected) > close
    if not far.any():
        return
    row = int(far.argmax())
    why = next(
        (
            words
            for words, other in _known(case).items()
            if np.allclose(y, other, rtol=1e-3, atol=close)
        ),
        "",
    )
    raise LabError(
        f"{case.shape}: y[{row}] is {y[row]:.6g}, and should be {expected[row]:.6g}{': ' if why else ''}{why}."
    )


def _known(case: Case) -> dict[str, np.ndarray]:
    """What the usual mistakes come to, each with its words."""
    x, norm, w = case.x, case.norm, case.weights
    mean, mean_weighted = float((x * x).mean()), float((x * x * norm * norm).mean())
    product = w @ (x * norm)
    return {
        "that is W x, without the norm": w @ x,
        "that is W (x * norm); the root mean square is missing": product,
        "the norm's weights are missing": w @ x / np.sqrt(mean + case.eps),
        "eps is missing": product / np.sqrt(mean),
        "eps is added behind the root, not to the mean": product / (np.sqrt(mean) + case.eps),
        "the mean is of x alone, without the norm's weights": product / np.sqrt(mean_weighted + case.eps),
        "the squares are summed, and not divided by how many there are": product
        / np.sqrt(mean * x.size + case.eps),
    }  # fmt: skip
