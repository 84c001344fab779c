"""Small PNG files of screenshots: at most 256 colours, which is all that a page of text and flat colours needs."""

import base64
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from playwright.sync_api import Page

COLOURS = 256


def pixels(page: "Page", png: bytes) -> np.ndarray:
    """A PNG's pixels, uint8 [height, width, 3], decoded by the browser."""
    width, height, data = page.evaluate(
        """async png => {
            const image = new Image();
            image.src = "data:image/png;base64," + png;
            await image.decode();
            const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
            canvas.drawImage(image, 0, 0);
            const bytes = canvas.getImageData(0, 0, image.width, image.height).data;
            let text = "";
            const part = 8192;
            for (let at = 0; at < bytes.length; at += part)
                text += String.fromCharCode(...bytes.subarray(at, at + part));
            return [image.width, image.height, btoa(text)];
        }""",
        base64.b64encode(png).decode(),
    )
    rgba = np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)
    return rgba[:, :, :3]


def few_colours(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(palette, uint8 [colours, 3]; its index of each pixel, uint8 [height, width]): the most frequent colours stay.

    Every other one becomes the nearest of them.
    """
    flat = image.reshape(-1, 3)
    colours, index, counts = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-counts, kind="stable")[:COLOURS]]
    apart = colours[:, None, :].astype(np.int32) - palette[None].astype(np.int32)
    nearest = (apart**2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    return palette, nearest[index.ravel()].reshape(image.shape[:2])


def encode(palette: np.ndarray, index: np.ndarray) -> bytes:
    """A PNG with a palette (PNG specification, third edition: colour type 3, 8 bits, no filter)."""
    height, width = index.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), index], axis=1)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def save(page: "Page", png: bytes, path: Path) -> None:
    """Write a screenshot that `page` took to `path`, in few colours."""
    path.write_bytes(encode(*few_colours(pixels(page, png))))


def _chunk(name: bytes, data: bytes) -> bytes:
    checked = name + data
    return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
