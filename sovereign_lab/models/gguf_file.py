"""Open a GGUF file: a validated header, and tensors as views of the memory-mapped file.

The header is read here rather than by `gguf.GGUFReader`, which takes seconds over a vocabulary of
49,152 tokens and trusts every count it finds. Types, block sizes and decoding are the library's.

Arrays are walked first and become lists only when the whole header holds together: a list takes
many times the bytes that it has in the file, and a damaged file is to cost next to nothing.
"""

import dataclasses
import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT
from gguf.quants import dequantize

from sovereign_lab.errors import LabError

VERSIONS = (2, 3)
# A header past these is refused, so that no header takes long to read. The largest known: vocabularies
# of 2^18 tokens with 2^19 merges (1.3 million elements), and models of a few thousand tensors.
MOST_ELEMENTS = 1 << 21  # of all the arrays in the metadata
MOST_ENTRIES = 1 << 14  # metadata values; tensors
MOST_TEXT = 1 << 24  # bytes of a string
MOST_NAME = (1 << 16) - 1  # bytes of a name, by the specification

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
_INTEGERS = {type for type, code in _SCALARS.items() if code[1] in "BbHhIiQq"}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as the header describes it.

    shape is in NumPy's order, (rows, cols) for a matrix; offset, of the tensor's data, and entry, of
    its description in the header, count bytes from the file's start.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    entry: int


@dataclass(frozen=True)
class GGUFFile:
    """A GGUF file whose header holds together; see `open_gguf`.

    metadata has plain Python values, arrays as lists; value_types the GGUF type of each, and the
    element type of an array; places the offset of each in the file, in bytes.
    """

    path: Path
    metadata: dict[str, Any]
    value_types: dict[str, tuple[GGUFValueType, GGUFValueType | None]]
    places: dict[str, int]
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

    def wrong(self, field: str, problem: str, offset: int | None = None) -> LabError:
        """An error that names the file, a metadata key or tensor, and its offset.

        The offset, in bytes, is that of the field's entry in the header if none is given.
        """
        if offset is None and field in self.places:
            offset = self.places[field]
        elif offset is None and field in self.tensors:
            offset = self.tensors[field].entry
        name = field if field.isprintable() and 0 < len(field) <= 80 else _named(field)
        where = name if offset is None else f"{name} at offset {offset}"
        return LabError(f"{self.path}: {where} {problem}")


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
    values: dict[str, _Value] = {}
    for index in range(value_count):
        start = header.at
        key = header.string(f"the name of metadata value {index}", MOST_NAME)
        if key in values:
            raise header.wrong(f"metadata {_named(key)}", start, "stands in the file twice")
        values[key] = header.value(key, start)

    alignment = _alignment(header, values.get("general.alignment"))
    described = [header.tensor(index) for index in range(tensor_count)]
    data_start = -(-header.at // alignment) * alignment
    tensors = _place(header, described, data_start, alignment)
    return GGUFFile(
        path=path,
        metadata={key: header.read(value) for key, value in values.items()},
        value_types={key: (value.type, value.element) for key, value in values.items()},
        places={key: value.entry for key, value in values.items()},
        tensors=tensors,
        data=np.frombuffer(mapped, np.uint8),
    )


def _alignment(header: "_Header", value: "_Value | None") -> int:
    """What the offsets of tensors are multiples of, in bytes."""
    if value is None:
        return int(GGUF_DEFAULT_ALIGNMENT)
    alignment = header.read(value) if value.type in _INTEGERS else None
    if alignment is None or alignment <= 0 or alignment & (alignment - 1):
        found = value.type.name if alignment is None else alignment
        raise header.wrong(
            "general.alignment", value.entry, f"is {found}; a power of two was expected"
        )
    return int(alignment)


def _place(
    header: "_Header", described: list[TensorInfo], data_start: int, alignment: int
) -> dict[str, TensorInfo]:
    """Tensors with offsets from the file's start; each inside the file, aligned, and apart."""
    tensors: dict[str, TensorInfo] = {}
    for tensor in described:
        field = f"tensor {_named(tensor.name)}"
        end = data_start + tensor.offset + tensor.nbytes
        if tensor.name in tensors:
            raise header.wrong(field, tensor.entry, "stands in the file twice")
        if tensor.offset % alignment:
            raise header.wrong(
                field, tensor.entry, f"has offset {tensor.offset}, not a multiple of {alignment}"
            )
        if end > header.size:
            raise header.wrong(
                field,
                tensor.entry,
                f"should end at byte {end}, but the file has {header.size}: "
                "it is cut short or damaged; fetch it again",
            )
        tensors[tensor.name] = replace(tensor, offset=data_start + tensor.offset)
    in_order = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(in_order):
        if before.offset + before.nbytes > after.offset:
            raise LabError(
                f"{header.path}: tensors {_named(before.name)} and {_named(after.name)} "
                f"overlap at offset {after.offset}; the file is damaged"
            )
    return tensors


def _named(name: str) -> str:
    """A name from the file as a sentence can bear it: quoted, and not of any length."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")


class _Value(NamedTuple):
    """A metadata value that is known to lie in the file, with all its elements, from `at` on."""

    type: GGUFValueType
    element: GGUFValueType | None
    """The type of an array's elements; None for a value that is no array."""
    length: int
    at: int
    entry: int
    """The offset of the whole entry, which starts with the key."""


class _Header:
    """A cursor over the header; every read is checked against the file's size first."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size, self.at = path, data, size, 0
        self.elements = 0  # of all arrays so far

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
            if count > MOST_ENTRIES:
                raise self.wrong(what, start, f"is {count}; at most {MOST_ENTRIES} are read")
            if count > (self.size - self.at) // least:
                raise self.wrong(
                    what,
                    start,
                    f"is {count}, more than a file of {self.size} bytes can hold: "
                    "it is cut short or damaged",
                )
            counts.append(count)
        return counts[0], counts[1]

    def string(self, field: str, most: int = MOST_TEXT) -> str:
        start = self.at
        length = self._number("<Q", f"the length of {field}")
        if most < length <= self.size - self.at:
            raise self.wrong(field, start, f"has {length} bytes; at most {most} are read")
        start = self._take(length, field)
        try:
            return self.data[start : self.at].decode()
        except UnicodeDecodeError:
            raise self.wrong(field, start, "is not UTF-8 text") from None

    def _type(self, field: str) -> GGUFValueType:
        start = self.at
        number = self._number("<I", f"the type of {field}")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self.wrong(field, start, f"has the value type {number}, unknown here") from None

    def value(self, key: str, entry: int) -> _Value:
        """Step over the metadata value of this key, whose entry starts at that offset."""
        field = f"metadata {_named(key)}"
        type = self._type(field)
        if type != GGUFValueType.ARRAY:
            start = self.at
            if type == GGUFValueType.STRING:
                self.string(field)
            else:
                self._number(_SCALARS[type], field)
            return _Value(type, None, 1, start, entry)

        start = self.at
        element = self._type(field)
        if element == GGUFValueType.ARRAY:
            raise self.wrong(field, start, "is an array of arrays, which is not read here")
        count = self._number("<Q", f"the length of {field}")
        least = 8 if element == GGUFValueType.STRING else struct.calcsize(_SCALARS[element])
        if count > (self.size - self.at) // least:
            raise self.wrong(
                field,
                start,
                f"has {count} elements, but only {self.size - self.at} bytes of the file are left: "
                "it is cut short or damaged; fetch it again",
            )
        self.elements += count
        if self.elements > MOST_ELEMENTS:
            raise self.wrong(
                field,
                start,
                f"brings the elements of all arrays to {self.elements}; "
                f"at most {MOST_ELEMENTS} are read",
            )
        start = self.at
        if element == GGUFValueType.STRING:
            for _ in self._strings(count, field):
                pass
        else:
            self._take(count * least, field)
        return _Value(type, element, count, start, entry)

    def read(self, value: _Value) -> Any:
        """The value itself, an array as a list; the cursor stays where it is."""
        here, self.at = self.at, value.at
        type = value.type if value.element is None else value.element
        if type == GGUFValueType.STRING:
            elements = list(self._strings(value.length, "a string"))
        else:
            code = _SCALARS[type][1]
            elements = list(struct.unpack_from(f"<{value.length}{code}", self.data, value.at))
        self.at = here
        return elements[0] if value.element is None else elements

    def _strings(self, count: int, field: str) -> Iterator[str]:
        """The next `count` strings; without a call for each, which a large vocabulary would feel."""
        length_at, data, size = struct.Struct("<Q").unpack_from, self.data, self.size
        for _ in range(count):
            start = self.at + 8
            end = start + length_at(data, start - 8)[0] if start <= size else size + 1
            if end > min(size, start + MOST_TEXT):
                self.string(field)  # raises, since it is the same text, and says what is wrong
            try:
                text = data[start:end].decode()
            except UnicodeDecodeError:
                raise self.wrong(field, start, "is not UTF-8 text") from None
            self.at = end
            yield text

    def tensor(self, index: int) -> TensorInfo:
        """One tensor's entry; its offset still counts from the start of the data."""
        start = self.at
        name = self.string(f"the name of tensor {index}", MOST_NAME)
        field = f"tensor {_named(name)}"
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
        return TensorInfo(name, type, tuple(reversed(dims)), offset, nbytes, start)
