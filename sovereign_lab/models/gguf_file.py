"""Open a GGUF file: a validated header, and tensors as views of the memory-mapped file.

The header is read here rather than by `gguf.GGUFReader`, which takes seconds over a vocabulary of
49,152 tokens and trusts every count it finds. Types, block sizes and decoding are the library's.
"""

import dataclasses
import math
import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT
from gguf.quants import dequantize

from sovereign_lab.errors import LabError

VERSIONS = (2, 3)
MOST_ELEMENTS = 1 << 22  # of one metadata array; the largest vocabularies have 2^18 tokens

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as the header describes it.

    shape is in NumPy's order, (rows, cols) for a matrix; offset counts bytes from the file's start.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A GGUF file whose header holds together; see `open_gguf`.

    metadata has plain Python values, arrays as lists; value_types the GGUF type of each, and the
    element type of an array.
    """

    path: Path
    metadata: dict[str, Any]
    value_types: dict[str, tuple[GGUFValueType, GGUFValueType | None]]
    tensors: dict[str, TensorInfo]
    data: npt.NDArray[np.uint8] = dataclasses.field(repr=False)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file: uint8 [nbytes], a read-only view."""
        info = self.info(name)
        return self.data[info.offset : info.offset + info.nbytes]

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor decoded to float32, in its shape; LabError for a type that has no decoder."""
        info = self.info(name)
        return decode(self.raw(name), info.type, f"{self.path}: {name}").reshape(info.shape)

    def info(self, name: str) -> TensorInfo:
        """The tensor's entry in the header; LabError where the file has none of that name."""
        if name not in self.tensors:
            raise LabError(f"{self.path}: there is no tensor {name!r}; the file is not complete")
        return self.tensors[name]


def decode(
    raw: npt.NDArray[np.uint8], type: GGMLQuantizationType, what: str
) -> npt.NDArray[np.float32]:
    """Bytes of whole blocks [..., n] -> float32; LabError naming `what` for want of a decoder."""
    try:
        return dequantize(raw, type).astype(np.float32, copy=False)
    except NotImplementedError:
        raise LabError(
            f"{what} has the type {type.name}, which the gguf library cannot decode; "
            "use a file in Q4_0, Q4_1, Q8_0, a K-quant, F16 or F32"
        ) from None


def open_gguf(path: str | Path) -> GGUFFile:
    """Read and check the header of a GGUF file; map the rest.

    Raises LabError, naming the file, the field and its offset in bytes, for anything that is
    missing, not GGUF, cut short, or does not hold together, before anything large is allocated.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise LabError(f"{path} is empty; a GGUF file was expected")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from None

    header = _Header(path, mapped, size)
    tensor_count, value_count = header.preamble()
    metadata: dict[str, Any] = {}
    value_types: dict[str, tuple[GGUFValueType, GGUFValueType | None]] = {}
    for index in range(value_count):
        start = header.at
        key = header.string(f"the name of metadata value {index}")
        if key in metadata:
            raise header.wrong(f"metadata {key!r}", start, "stands in the file twice")
        value_types[key], metadata[key] = header.value(key)

    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise LabError(f"{path}: general.alignment is {alignment!r}; a power of two was expected")
    described = [header.tensor(index) for index in range(tensor_count)]
    data_start = -(-header.at // alignment) * alignment
    tensors = _place(path, described, data_start, alignment, size)
    return GGUFFile(path, metadata, value_types, tensors, np.frombuffer(mapped, np.uint8))


def _place(
    path: Path, described: list[TensorInfo], data_start: int, alignment: int, size: int
) -> dict[str, TensorInfo]:
    """Tensors with offsets from the file's start; each inside the file, aligned, and apart."""
    tensors: dict[str, TensorInfo] = {}
    for tensor in described:
        where = f"{path}: tensor {tensor.name!r}"
        offset = data_start + tensor.offset
        if tensor.name in tensors:
            raise LabError(f"{where} stands in the file twice")
        if tensor.offset % alignment:
            raise LabError(f"{where}: offset {tensor.offset} is not a multiple of {alignment}")
        if offset + tensor.nbytes > size:
            raise LabError(
                f"{where} should end at byte {offset + tensor.nbytes}, but the file has {size}: "
                "it is cut short or damaged; fetch it again"
            )
        tensors[tensor.name] = TensorInfo(
            tensor.name, tensor.type, tensor.shape, offset, tensor.nbytes
        )
    in_order = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(in_order):
        if before.offset + before.nbytes > after.offset:
            raise LabError(
                f"{path}: tensors {before.name!r} and {after.name!r} overlap at {after.offset}"
            )
    return tensors


class _Header:
    """A cursor over the header; every read is checked against the file's size first."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size, self.at = path, data, size, 0

    def wrong(self, field: str, offset: int, problem: str) -> LabError:
        return LabError(f"{self.path}: {field} at offset {offset} {problem}")

    def _take(self, nbytes: int, field: str) -> int:
        """Step over nbytes; the offset where they start."""
        start = self.at
        if nbytes > self.size - start:
            raise self.wrong(
                field,
                start,
                f"needs {nbytes} bytes, but the file ends after {self.size - start} more: "
                "it is cut short or damaged; fetch it again",
            )
        self.at += nbytes
        return start

    def _number(self, format: str, field: str) -> Any:
        start = self._take(struct.calcsize(format), field)
        return struct.unpack_from(format, self.data, start)[0]

    def preamble(self) -> tuple[int, int]:
        """The counts of tensors and of metadata values, once magic and version are right."""
        magic = self.data[:4]
        if magic != b"GGUF":
            raise LabError(
                f"{self.path} is not a GGUF file: it starts with {magic!r}, "
                "where b'GGUF' was expected"
            )
        self._take(4, "magic")
        version = self._number("<I", "version")
        if version not in VERSIONS:
            kind = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            raise self.wrong(
                "version", 4, f"says {kind}; little-endian version 2 or 3 is read here"
            )
        counts = []
        # The fewest bytes that a tensor's entry (name, dims, type, offset) and a value can take.
        for what, least in (("tensor count", 32), ("metadata count", 13)):
            start = self.at
            count = self._number("<Q", what)
            if count > (self.size - self.at) // least:
                raise self.wrong(
                    what,
                    start,
                    f"is {count}, more than a file of {self.size} bytes can hold: "
                    "it is cut short or damaged",
                )
            counts.append(count)
        return counts[0], counts[1]

    def string(self, field: str) -> str:
        length = self._number("<Q", f"the length of {field}")
        start = self._take(length, field)
        try:
            return self.data[start : self.at].decode("utf-8")
        except UnicodeDecodeError:
            raise self.wrong(field, start, "is not UTF-8 text") from None

    def _type(self, field: str) -> GGUFValueType:
        start = self.at
        number = self._number("<I", f"the type of {field}")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self.wrong(field, start, f"has the value type {number}, unknown here") from None

    def value(self, key: str) -> tuple[tuple[GGUFValueType, GGUFValueType | None], Any]:
        """The type and the value of one metadata entry; an array's element type comes second."""
        field = f"metadata {key!r}"
        type = self._type(field)
        if type == GGUFValueType.STRING:
            return (type, None), self.string(field)
        if type != GGUFValueType.ARRAY:
            return (type, None), self._number(_SCALARS[type], field)

        start = self.at
        element = self._type(field)
        if element == GGUFValueType.ARRAY:
            raise self.wrong(field, start, "is an array of arrays, which is not read here")
        count = self._number("<Q", f"the length of {field}")
        if element == GGUFValueType.STRING:
            least, code = 8, ""
        else:
            code = _SCALARS[element][1]
            least = struct.calcsize(f"<{code}")
        if count > MOST_ELEMENTS:
            raise self.wrong(
                field, start, f"has {count} elements; at most {MOST_ELEMENTS} are read"
            )
        if count > (self.size - self.at) // least:
            raise self.wrong(
                field,
                start,
                f"has {count} elements, but only {self.size - self.at} bytes of the file are left: "
                "it is cut short or damaged; fetch it again",
            )
        if element == GGUFValueType.STRING:
            return (type, element), [self.string(field) for _ in range(count)]
        start = self._take(count * least, field)
        return (type, element), list(struct.unpack_from(f"<{count}{code}", self.data, start))

    def tensor(self, index: int) -> TensorInfo:
        """One tensor's entry; its offset still counts from the start of the data."""
        start = self.at
        name = self.string(f"the name of tensor {index}")
        field = f"tensor {name!r}"
        dims_count = self._number("<I", f"the dimensions of {field}")
        if not 1 <= dims_count <= 4:
            raise self.wrong(field, start, f"has {dims_count} dimensions; 1 to 4 were expected")
        dims = [self._number("<Q", f"the dimensions of {field}") for _ in range(dims_count)]
        number = self._number("<I", f"the type of {field}")
        offset = self._number("<Q", f"the offset of {field}")
        try:
            type = GGMLQuantizationType(number)
            block_weights, block_bytes = GGML_QUANT_SIZES[type]
        except (ValueError, KeyError):
            raise self.wrong(
                field,
                start,
                f"has the unsupported tensor type {number}; see `gguf` for those known",
            ) from None
        if 0 in dims or dims[0] % block_weights:
            raise self.wrong(
                field,
                start,
                f"has dimensions {dims}; {type.name} rows hold {block_weights} per block",
            )
        nbytes = math.prod(dims) // block_weights * block_bytes
        return TensorInfo(name, type, tuple(reversed(dims)), offset, nbytes)
