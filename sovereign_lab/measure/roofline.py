"""The bytes that a token must cost, and the floor that a GPU's memory sets under its time.

Decoding one token reads every weight once: at batch 1 that is nearly all the work there is, so
bytes divided by bandwidth is a time that no kernel can beat. Here everything is counted from the
model's shape; nothing is measured.
"""

from dataclasses import dataclass

from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES

from sovereign_lab.errors import LabError
from sovereign_lab.models.model import Config, matrix_shapes

KV_BYTES = {"fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class GPU:
    """A GPU as far as the floor is concerned.

    bandwidth is in GB/s (10^9 bytes a second); origin says whether it is the maker's figure or one
    that was measured, and how.
    """

    name: str
    bandwidth: float
    origin: str


# The seed's GPU, the H200 the lab is measured on (its data sheet says 4,800 GB/s), and their kin.
GPUS = (
    GPU("RTX 5060 Ti", 448.0, "data sheet"),
    GPU("RTX 4090", 1008.0, "data sheet"),
    GPU("RTX 5090", 1792.0, "data sheet"),
    GPU("H100 SXM", 3350.0, "data sheet"),
    GPU("H200", 4270.0, "measured copy"),
)


@dataclass(frozen=True)
class TokenBytes:
    """Bytes read from memory to decode one token at batch 1."""

    layers: int
    head: int
    kv_per_position: int

    def at(self, position: int) -> int:
        """Bytes of a token whose attention reads the keys and values of `position` earlier ones."""
        return self.layers + self.head + position * self.kv_per_position


@dataclass(frozen=True)
class Floor:
    """The least time that a token can take on `gpu`: milliseconds, and tokens per second."""

    gpu: GPU
    ms: float
    tokens_per_second: float


def matrix_bytes(rows: int, cols: int, type: GGMLQuantizationType) -> int:
    """Bytes of a matrix; LabError where a row is not a whole number of the type's blocks."""
    weights, block_bytes = GGML_QUANT_SIZES[type]
    if cols % weights:
        raise LabError(f"a row of {cols} is not whole blocks of {weights}, which {type.name} needs")
    return rows * (cols // weights) * block_bytes


def token_bytes(
    config: Config,
    head: GGMLQuantizationType = GGMLQuantizationType.F32,
    kv_dtype: str = "fp16",
) -> TokenBytes:
    """What a token reads: layers in Q4_0, as the engine keeps them, and the head in `head`.

    The few kilobytes of norms, activations and the one row of the embedding are left out. LabError
    where kv_dtype is neither "fp16" nor "fp32".
    """
    if kv_dtype not in KV_BYTES:
        raise LabError(f"kv_dtype is {kv_dtype!r}; expected one of {', '.join(KV_BYTES)}")
    q4_0 = GGMLQuantizationType.Q4_0
    layer = sum(matrix_bytes(rows, cols, q4_0) for rows, cols in matrix_shapes(config).values())
    return TokenBytes(
        layers=config.layers * layer,
        head=matrix_bytes(config.vocab, config.dim, head),
        kv_per_position=config.layers * 2 * config.kv_dim * KV_BYTES[kv_dtype],
    )


def floor(nbytes: int, gpu: GPU) -> Floor:
    """The time in which `gpu` can just read nbytes."""
    seconds = nbytes / (gpu.bandwidth * 1e9)
    return Floor(gpu, seconds * 1e3, 1 / seconds)


def find_gpu(name: str) -> GPU | None:
    """The GPU of the table whose name stands in `name`, a driver's full name; None if none does."""
    known = [gpu for gpu in GPUS if gpu.name.lower() in name.lower()]
    return max(known, key=lambda gpu: len(gpu.name), default=None)
