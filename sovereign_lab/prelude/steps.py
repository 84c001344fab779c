"""The steps of chapter 01: each another way to do the same product, with the bytes that it must move."""

from collections.abc import Sequence
from dataclasses import dataclass

from sovereign_lab.errors import LabError
from sovereign_lab.models.model import Config, matrix_shapes
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.prelude import gemv as ways

PACKED = BLOCK_BYTES / BLOCK_WEIGHTS
FLOAT = 4


@dataclass(frozen=True)
class Step:
    """A way to multiply, by the layers' matrices and by the head.

    `bytes_per_weight`: the least that a product reads and writes for a weight of a layer.
    """

    id: str
    title: str
    gemv: ways.Gemv
    head: ways.Head
    bytes_per_weight: float


STEPS: Sequence[Step] = (
    Step(
        id="a",
        title="NumPy, unpacked every time",
        gemv=ways.numpy_unpacking,
        head=ways.numpy_head,
        # Packed weights are read, floats are written, and read again. NumPy's passes in between come on top.
        bytes_per_weight=PACKED + 2 * FLOAT,
    ),
    Step(
        id="b",
        title="NumPy, float32 weights kept",
        gemv=ways.numpy_cached,
        head=ways.numpy_head,
        bytes_per_weight=FLOAT,
    ),
    Step(
        id="c",
        title="fused Q4_0 dot, one thread",
        gemv=ways.fused,
        head=ways.compiled_head,
        bytes_per_weight=PACKED,
    ),
    Step(
        id="d",
        title="fused Q4_0 dot, threads",
        gemv=ways.fused_threads,
        head=ways.compiled_head_threads,
        bytes_per_weight=PACKED,
    ),
    Step(
        id="e",
        title="threads, int8 activations",
        gemv=ways.fused_int8,
        head=ways.compiled_head_threads,
        bytes_per_weight=PACKED,
    ),
)


def step(id: str) -> Step:
    """The step of this id. Raises LabError for an unknown one."""
    for known in STEPS:
        if known.id == id:
            return known
    raise LabError(f"There is no step {id!r}; there are {', '.join(s.id for s in STEPS)}.")


def layer_weights(config: Config) -> int:
    """Weights of all the layers' matrices: those that are in Q4_0."""
    return config.layers * sum(rows * cols for rows, cols in matrix_shapes(config).values())


def token_bytes(config: Config, chosen: Step) -> int:
    """The least bytes that a token moves with this step; the head is float32 in all of them, as in the ladder.

    Norms, activations, the row of the embedding and the KV cache of a short text are left out.
    """
    head = FLOAT * config.vocab * config.dim
    return round(layer_weights(config) * chosen.bytes_per_weight) + head
