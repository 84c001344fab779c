"""What the file's formats make of a weight, in PyTorch: bit for bit what `export` writes.

Training lets the network see its own weights as they will come out of the file. Q4_0 takes the
plain max-abs rule of `models.quants.quantise_q4_0_plain`: weights that were trained for a rule need
no search for better scales.
"""

from collections.abc import Sequence

import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from sovereign_lab.models.quants import BLOCK_WEIGHTS

Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0
F32 = GGMLQuantizationType.F32
_LARGEST_F16 = torch.finfo(torch.float16).max


def stored_type(name: str) -> GGMLQuantizationType:
    """The type in the file of the tensor with this name: layers Q4_0, tables Q8_0, norms F32."""
    if name.endswith("norm.weight"):
        return F32
    return Q4_0 if name.startswith("blk.") else Q8_0


def as_stored(names: Sequence[str], weights: Sequence[Tensor]) -> list[Tensor]:
    """Every weight after a trip through its type of the file, float32, in the same order."""
    stored = list(weights)
    for type, round_trip in ((Q4_0, round_trip_q4_0), (Q8_0, round_trip_q8_0)):
        chosen = [i for i, name in enumerate(names) if stored_type(name) == type]
        # All matrices of a type at once: a training step launches kernels by the dozen, not hundred.
        blocks = torch.cat([weights[i].reshape(-1, BLOCK_WEIGHTS) for i in chosen])
        parts = round_trip(blocks).split([weights[i].numel() // BLOCK_WEIGHTS for i in chosen])
        for i, part in zip(chosen, parts, strict=True):
            stored[i] = part.view_as(weights[i])
    return stored


def round_trip_q4_0(x: Tensor) -> Tensor:
    """Blocks float32 [n, 32] -> Q4_0 by the max-abs rule -> float32 [n, 32]."""
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    extreme = torch.where(-low > high, low, high)
    d = (extreme / -8).clamp(-_LARGEST_F16, _LARGEST_F16).half().float()
    inverse = torch.where(d != 0, 1 / d, 0)
    levels = (x * inverse).round().clamp(-8, 7) + 0.0  # stored as whole numbers: no -0
    return levels * d


def round_trip_q8_0(x: Tensor) -> Tensor:
    """Blocks float32 [n, 32] -> Q8_0 -> float32 [n, 32]."""
    largest = x.abs().amax(1, keepdim=True)
    # On a GPU, to divide by a Python number is to multiply by its inverse, rounded.
    d = largest / torch.full_like(largest, 127)
    scaled = x * torch.where(d != 0, 1 / d, 0)
    size = scaled.abs()
    levels = scaled.sign() * (size.floor() + (2 * size.frac()).floor())  # halves away from zero
    return (levels + 0.0) * d.half().float()
