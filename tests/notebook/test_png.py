"""Pictures in few colours are PNG files that hold the same picture."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from sovereign_lab.notebook.browser.png import COLOURS, encode, few_colours


def decoded(png: bytes) -> np.ndarray:
    """The pixels of a PNG with a palette and no filter, by the specification."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (crc,) = struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert crc == zlib.crc32(name + data)
        chunks[name] = data
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)[rows[:, 1:]]


def test_a_picture_of_few_colours_is_kept_exactly() -> None:
    image = np.random.default_rng(0).integers(0, 4, (7, 11, 3), np.uint8) * 80
    assert np.array_equal(decoded(encode(*few_colours(image))), image)


def test_rare_colours_become_the_nearest_frequent_one() -> None:
    grey = np.repeat(np.arange(COLOURS, dtype=np.uint8)[:, None], 2, axis=1)
    image = np.stack([grey] * 3, axis=2)
    image = np.concatenate([image, [[[200, 201, 200]] * 2]]).astype(np.uint8)
    image[-1, 1] = (10, 10, 10)
    shown = decoded(encode(*few_colours(image)))
    assert np.array_equal(shown[:-1], image[:-1])
    assert shown[-1].tolist() == [[200, 200, 200], [10, 10, 10]]
