"""A GGUF header is believed only where it holds together; everything else is one clear sentence."""

import re
import struct
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import gguf_document
import numpy as np
import pytest
from gguf import GGUFValueType
from gguf_document import CODES

from sovereign_lab.errors import LabError
from sovereign_lab.models import reference
from sovereign_lab.models.gguf_file import MOST_ELEMENTS, open_gguf
from sovereign_lab.models.model import build_model


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: bytes) -> bytes:
    return u64(len(value)) + value


def tensor(
    name: bytes = b"t", dims: tuple[int, ...] = (32,), type: int = 0, offset: int = 0
) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(type) + u64(offset)


def gguf_bytes(values: Sequence[bytes] = (), tensors: Sequence[bytes] = ()) -> bytes:
    counts = u64(len(tensors)) + u64(len(values))
    return b"".join([b"GGUF", u32(3), counts, *values, *tensors]) + bytes(4096)


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[bytes], str]:
    """Write these bytes to a file, which must be refused at once; the sentence."""

    def check(content: bytes) -> str:
        path = tmp_path / "wrong.gguf"
        path.write_bytes(content)
        start = time.process_time()
        with pytest.raises(LabError) as caught:
            open_gguf(path)
        assert time.process_time() - start < 1
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return check


def test_reads_what_the_gguf_library_reads(tiny: Path) -> None:
    ours, theirs = open_gguf(tiny), gguf.GGUFReader(tiny)
    expected = {key: value.contents() for key, value in theirs.fields.items() if key[:5] != "GGUF."}
    assert ours.metadata == expected
    assert list(ours.tensors) == [entry.name for entry in theirs.tensors]
    for entry in theirs.tensors:
        info = ours.tensors[entry.name]
        assert (info.type, info.offset) == (entry.tensor_type, entry.data_offset)
        assert info.shape == tuple(reversed(entry.shape.tolist()))
        raw = ours.raw(entry.name)
        assert raw.tobytes() == entry.data.tobytes() and not raw.flags.writeable
        decoded = gguf.quants.dequantize(entry.data, entry.tensor_type)
        np.testing.assert_array_equal(ours.float32(entry.name), decoded.reshape(info.shape))


def test_a_large_vocabulary_opens_quickly(smollm2_path: Path) -> None:
    start = time.process_time()
    assert len(open_gguf(smollm2_path).metadata["tokenizer.ggml.tokens"]) == 49152
    assert time.process_time() - start < 1.5  # the library's reader takes 3.6 s


def test_every_length_that_cuts_the_file_short(tiny: Path, refused: Callable[[bytes], str]) -> None:
    whole = tiny.read_bytes()
    file = open_gguf(tiny)
    data_start = min(info.offset for info in file.tensors.values())
    end = max(info.offset + info.nbytes for info in file.tensors.values())
    lengths = [*range(4, 300), *range(300, data_start, 397), data_start, *range(end - 3, end)]
    for length in lengths:
        assert "cut short" in refused(whole[:length]) or length < 24
    assert open_gguf(tiny).tensors  # and the whole file is none of these


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"GG", "is not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), r"is not a GGUF file: it starts with b'PK"),
        (b"GGUF" + u32(1) + bytes(100), "version at offset 4 says version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "says big-endian"),
        (b"GGUF" + u32(3) + u64(2**63) + u64(0), "tensor count at offset 8 is 92"),
        (b"GGUF" + u32(3) + u64(0) + u64(2**64 - 1), "metadata count at offset 16 is 1844"),
        (gguf_bytes([u64(2**64 - 8) + b"key"]), "needs 18446744073709551608 bytes"),
        (gguf_bytes([text(b"\xff\xfe") + u32(4) + u32(1)]), "is not UTF-8"),
        (gguf_bytes([text(b"k") + u32(99)]), "value type 99"),
        (gguf_bytes([text(b"k") + u32(9) + u32(4) + u64(2**62)]), r"4611686018\d+ elements"),
        (gguf_bytes([text(b"k") + u32(9) + u32(8) + u64(100000)]), "100000 elements, but only"),
        (gguf_bytes([text(b"k") + u32(9) + u32(9) + u64(1)]), "array of arrays"),
        (gguf_bytes([text(b"k") + u32(4) + u32(1)] * 2), "'k' at offset 41 stands"),
        (gguf_bytes([text(b"general.alignment") + u32(4) + u32(24)]), "alignment at offset 24 is 24; a power of two"),
        (gguf_bytes(tensors=[tensor(offset=5)]), "'t' at offset 24 has offset 5, not a multiple of 32"),
        (gguf_bytes(tensors=[tensor(offset=2**40)]), "'t' at offset 24 should end at byte 10995"),
        (gguf_bytes(tensors=[tensor(dims=(2**40, 2**40))]), "cut short or damaged"),
        (gguf_bytes(tensors=[tensor(), tensor(b"u")]), "'t' and 'u' overlap"),
        (gguf_bytes(tensors=[tensor(), tensor(offset=128)]), "'t' at offset 57 stands in the file twice"),
        (gguf_bytes(tensors=[tensor(type=4)]), "unsupported tensor type 4"),
        (gguf_bytes(tensors=[tensor(type=2, dims=(33,))]), "Q4_0 rows hold 32 per block"),
        (gguf_bytes(tensors=[tensor(dims=(0,))]), r"has dimensions \[0\]"),
        (gguf_bytes(tensors=[tensor(dims=(1,) * 5)]), "has 5 dimensions"),
        (b"GGUF" + u32(3) + u64(0) + u64(20000) + bytes(2**20), "20000; at most 16384 are read"),
        (gguf_bytes([text(b"k" * 70000) + u32(4) + u32(1)]), "has 70000 bytes; at most 65535"),
        (gguf_bytes([text(b"general.alignment") + u32(7) + b"\1"]), "alignment at .* is BOOL"),
        (gguf_bytes([text(b"general.alignment") + u32(4) + u32(0)]), "is 0; a power of two"),
        (gguf_bytes([text(b"general.alignment") + u32(4) + u32(64)], [tensor(offset=32)]), "not a multiple of 64"),
        (gguf_bytes(tensors=[tensor(offset=2**64 - 32)]), "should end at byte 18446744073709551"),
        (gguf_bytes([text(b"k") + u32(9) + u32(8) + u64(1) + text(b"\xff")]), "'k' at offset 57 is not UTF-8"),
        (gguf_bytes([text(b"k") + u32(9) + u32(8) + u64(1) + u64(2**64 - 1)]), "needs 18446744073709551615 bytes"),
        (gguf_document.write(gguf_document.Document(order=">"))[0], "version at offset 4 says big-endian"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_hold_together(
    content: bytes, sentence: str, refused: Callable[[bytes], str]
) -> None:
    assert re.search(sentence, refused(content))


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignment_is_read_as_given(alignment: int, tmp_path: Path) -> None:
    document = gguf_document.llama(gguf_document.sentencepiece_vocabulary(), 283)
    expected = [tensor.data for tensor in document.tensors]
    document.alignment = alignment
    document.values.append(gguf_document.number("general.alignment", alignment))
    path = tmp_path / "aligned.gguf"
    path.write_bytes(gguf_document.write(document)[0])
    file = open_gguf(path)
    assert [file.raw(name).tobytes() for name in file.tensors] == expected
    assert all(info.offset % alignment == 0 for info in file.tensors.values())
    assert np.isfinite(reference.forward(build_model(file), [1, 2])).all()


def test_arrays_of_every_kind_are_lists(tmp_path: Path) -> None:
    numbers = [gguf_document.array(f"of {kind.name}", [0, 1, 1], kind) for kind in CODES]
    strings = gguf_document.array("strings", ["", "é", "日本"], GGUFValueType.STRING)
    path = tmp_path / "arrays.gguf"
    path.write_bytes(gguf_document.write(gguf_document.Document([*numbers, strings]))[0])
    file = open_gguf(path)
    assert file.metadata.pop("strings") == ["", "é", "日本"]
    assert list(file.metadata.values()) == [[0, 1, 1]] * len(CODES)
    assert file.value_types["of UINT8"] == (GGUFValueType.ARRAY, GGUFValueType.UINT8)


BAD_END = text(b"end") + u32(99)


@pytest.mark.parametrize(
    "values",
    [
        [text(b"k") + u32(9) + u32(8) + u64(100_000) + text(b"ab") * 100_000],
        [text(b"k") + u32(9) + u32(0) + u64(2_000_000) + bytes(2_000_000)],
        [text(b"k") + u32(9) + u32(12) + u64(500_000) + bytes(4_000_000)],
        [text(b"k") + u32(8) + text(b"a" * 4_000_000)],
    ],
    ids=["strings", "bytes", "float64", "one string"],
)
def test_a_damaged_file_takes_little_memory(values: list[bytes], tmp_path: Path) -> None:
    """As lists these would take many times the file, but the last value is of an unknown type."""
    content = gguf_bytes([*values, BAD_END])
    path = tmp_path / "wrong.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(LabError, match="'end' at offset"):
            open_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(content) + 100_000


def test_too_many_elements_in_all(refused: Callable[[bytes], str]) -> None:
    half = u32(9) + u32(0) + u64(MOST_ELEMENTS // 2 + 1) + bytes(MOST_ELEMENTS // 2 + 1)
    sentence = refused(gguf_bytes([text(b"a") + half, text(b"b") + half]))
    assert f"'b' at offset {24 + 9 + 4 + 4 + 8 + MOST_ELEMENTS // 2 + 1 + 9 + 4}" in sentence
    assert f"at most {MOST_ELEMENTS} are read" in sentence


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"nowhere.gguf cannot be read: No such file"):
        open_gguf(tmp_path / "nowhere.gguf")
    with pytest.raises(LabError, match="cannot be read: Is a directory"):
        open_gguf(tmp_path)


def test_a_missing_tensor_is_named(tiny: Path) -> None:
    with pytest.raises(LabError, match=r"no tensor 'blk.9.attn_q.weight'"):
        open_gguf(tiny).raw("blk.9.attn_q.weight")
