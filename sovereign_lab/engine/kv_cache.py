"""Keys and values of every position so far, one pair of arrays a layer."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sovereign_lab.devices import Device
from sovereign_lab.errors import LabError
from sovereign_lab.models.model import Config

# What a user says -> NumPy type, and the type's name in the kernels.
KV_TYPES: dict[str, tuple[type, str]] = {
    "fp16": (np.float16, "half"),
    "fp32": (np.float32, "float"),
}


@dataclass(frozen=True)
class KVCache:
    """`keys[l]` and `values[l]`: device arrays [context, kv_heads, head_dim] of `dtype`, layer l.

    They are parts of `all_keys` and `all_values`, [layers, context, kv_heads, head_dim].
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    all_keys: Any
    all_values: Any
    dtype: type
    kernel_type: str

    @classmethod
    def allocate(cls, device: Device, config: Config, context: int, kv_dtype: str) -> "KVCache":
        """Room for `context` positions; raises LabError for a `kv_dtype` other than fp16 and fp32."""
        if kv_dtype not in KV_TYPES:
            raise LabError(f"A KV cache holds {' or '.join(KV_TYPES)}; got {kv_dtype!r}.")
        dtype, kernel_type = KV_TYPES[kv_dtype]
        shape = (config.layers, context, config.kv_heads, config.head_dim)
        keys, values = (device.empty(shape, dtype) for _ in range(2))
        return cls(tuple(keys), tuple(values), keys, values, dtype, kernel_type)
