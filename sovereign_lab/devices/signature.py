"""The C signature of a kernel, read from its source, and arguments checked against it.

CuPy passes whatever it is given: a Python float becomes a double, a float64 array is read as floats, a view's
strides are ignored, and the result is wrong numbers without an error. So every launch goes through `bind`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sovereign_lab.errors import LabError

SCALARS: dict[str, type] = {
    "float": np.float32,
    "double": np.float64,
    "half": np.float16,
    "__half": np.float16,
    "char": np.int8,
    "signed char": np.int8,
    "int8_t": np.int8,
    "unsigned char": np.uint8,
    "uint8_t": np.uint8,
    "short": np.int16,
    "int16_t": np.int16,
    "unsigned short": np.uint16,
    "uint16_t": np.uint16,
    "int": np.int32,
    "int32_t": np.int32,
    "unsigned": np.uint32,
    "unsigned int": np.uint32,
    "uint32_t": np.uint32,
    "long long": np.int64,
    "int64_t": np.int64,
    "unsigned long long": np.uint64,
    "uint64_t": np.uint64,
    "size_t": np.uint64,
}

# Pointers to these are arrays of another element type, in multiples of so many elements.
PACKED: dict[str, tuple[type, int]] = {
    "block_q4_0": (np.uint8, 18),
    "float2": (np.float32, 2),
    "float4": (np.float32, 4),
    "half2": (np.float16, 2),
    "int2": (np.int32, 2),
    "int4": (np.int32, 4),
    "uint2": (np.uint32, 2),
    "uint4": (np.uint32, 4),
}


@dataclass(frozen=True)
class Parameter:
    """One parameter: `const float* x` has name "x", type "float", pointer and const."""

    name: str
    type: str
    pointer: bool
    const: bool
    dtype: np.dtype
    multiple: int = 1

    def __str__(self) -> str:
        return (
            f"{'const ' if self.const else ''}{self.type}{'*' if self.pointer else ''} {self.name}"
        )


@dataclass(frozen=True)
class Signature:
    """The kernel's name and parameters, in order."""

    name: str
    parameters: tuple[Parameter, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"


def without_comments(source: str) -> str:
    """The source with comments blanked out, line structure kept."""
    return re.sub(
        r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), source, flags=re.S
    )


def find_kernel(source: str) -> tuple[str, str]:
    """Name and parameter text of the one `extern "C" __global__` kernel in `source`; LabError if not one."""
    found = re.findall(
        r'extern\s+"C"\s+__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+'
        r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)",
        without_comments(source),
    )
    if len(found) != 1:
        names = ": " + ", ".join(name for name, _ in found) if found else ""
        raise LabError(
            'Expected one kernel, written `extern "C" __global__ void name(parameters)`; '
            f"found {len(found)}{names}."
        )
    return found[0]


def parse_signature(source: str, defines: Mapping[str, str] | None = None) -> Signature:
    """The signature of the one kernel in `source`.

    `defines` names types that the source leaves open (`KV` = `half`). Raises LabError when there is no such
    kernel, more than one, or a parameter type that the lab cannot pass.
    """
    name, text = find_kernel(source)
    parts = [p.strip() for p in text.split(",")] if text.strip() and text.strip() != "void" else []
    return Signature(name, tuple(_parse_parameter(name, p, defines or {}) for p in parts))


def _parse_parameter(kernel: str, text: str, defines: Mapping[str, str]) -> Parameter:
    tokens = re.findall(
        r"\w+|\*|\S", re.sub(r"\b(__restrict__|restrict|__restrict|volatile)\b", " ", text)
    )
    const = "const" in tokens
    words = [t for t in tokens if t not in ("const", "*", "__grid_constant__")]
    pointers = tokens.count("*")
    if len(words) < 2 or pointers > 1 or not all(re.fullmatch(r"\w+", w) for w in words):
        raise LabError(
            f"Kernel {kernel}: cannot read the parameter `{text}`; write it as `const float* x` or `int rows`."
        )
    type_name = " ".join(words[:-1])
    type_name = defines.get(type_name, type_name)
    if pointers and type_name in PACKED:
        scalar, multiple = PACKED[type_name]
    elif type_name in SCALARS:
        scalar, multiple = SCALARS[type_name], 1
    else:
        known = ", ".join([*SCALARS, *PACKED])
        raise LabError(
            f"Kernel {kernel}: parameter `{text}` has the type `{type_name}`; the lab can pass {known}."
        )
    return Parameter(words[-1], type_name, bool(pointers), const, np.dtype(scalar), multiple)


def bind(signature: Signature, args: Sequence[Any], array_type: type) -> list[Any]:
    """Check `args` against the signature; arrays come back as they are, scalars as NumPy scalars.

    `array_type` is the device's own array type (`numpy.ndarray` or `cupy.ndarray`). Raises LabError naming
    the kernel and the parameter on a wrong count, kind, dtype, memory layout, size or range.
    """
    if len(args) != len(signature.parameters):
        raise LabError(
            f"Kernel {signature.name} takes {len(signature.parameters)} arguments "
            f"({', '.join(p.name for p in signature.parameters)}); {len(args)} came."
        )
    return [
        _bind_one(signature.name, p, a, array_type)
        for p, a in zip(signature.parameters, args, strict=True)
    ]


def _bind_one(kernel: str, p: Parameter, value: Any, array_type: Any) -> Any:
    where = f"Kernel {kernel}, parameter `{p}`"
    if p.pointer:
        if not isinstance(value, array_type):
            raise LabError(
                f"{where}: expected an array of this device ({array_type.__module__}.{array_type.__name__} of "
                f"{p.dtype}), got {type(value).__module__}.{type(value).__name__}; make one with device.array()."
            )
        if value.dtype != p.dtype:
            raise LabError(f"{where}: expected an array of {p.dtype}, got {value.dtype}.")
        if not value.flags.c_contiguous:
            raise LabError(
                f"{where}: the array of shape {value.shape} is a view that is not contiguous; copy it first."
            )
        if value.size % p.multiple:
            raise LabError(
                f"{where}: expected a multiple of {p.multiple} {p.dtype} elements, got {value.size}."
            )
        return value
    if isinstance(value, np.generic):
        if value.dtype != p.dtype:
            raise LabError(f"{where}: expected a {p.dtype}, got a {value.dtype}.")
        return value
    if isinstance(value, int) and not isinstance(value, bool) and p.dtype.kind in "iu":
        info = np.iinfo(p.dtype)
        if not info.min <= value <= info.max:
            raise LabError(f"{where}: {value} does not fit {p.dtype}.")
        return p.dtype.type(value)
    hint = f"; pass np.{p.dtype}(value)" if isinstance(value, (int, float)) else ""
    raise LabError(f"{where}: expected a {p.dtype}, got a Python {type(value).__name__}{hint}.")
