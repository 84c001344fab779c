"""Q4_0 blocks: which nibble is which weight, and a scale search that earns its time."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from sovereign_lab.models.quants import (
    quantise_q4_0,
    quantise_q4_0_plain,
    relative_rms_error,
    unpack_q4_0,
)


def position_coded(scale: float, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """A block in which every weight tells its position, and its 32 values."""
    nibbles = (np.arange(32) * 5 + shift) % 16
    packed = (nibbles[:16] | nibbles[16:] << 4).astype(np.uint8)
    d = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return np.concatenate([d, packed]), (nibbles - 8) * np.float32(np.float16(scale))


def test_every_weight_comes_from_its_own_nibble() -> None:
    coded = [position_coded(scale, shift) for shift, scale in enumerate([1, -2.5, 0.001, 0, 60000])]
    blocks = np.stack([block for block, _ in coded])
    values = np.stack([value for _, value in coded])
    np.testing.assert_array_equal(unpack_q4_0(blocks), values)
    np.testing.assert_array_equal(unpack_q4_0(blocks.reshape(1, -1)), values.reshape(1, -1))


def test_unpacking_is_what_gguf_does() -> None:
    blocks = np.random.default_rng(1).integers(0, 256, (7, 6 * 18), np.uint8)
    blocks.reshape(-1, 18)[:, 1] &= 0x7B  # finite scales
    np.testing.assert_array_equal(unpack_q4_0(blocks), gguf.quants.dequantize(blocks, Type.Q4_0))


def test_unpacking_refuses_half_a_block() -> None:
    with pytest.raises(ValueError, match="multiple of 18 bytes"):
        unpack_q4_0(np.zeros((2, 20), np.uint8))


def test_plain_rounding_is_what_gguf_does() -> None:
    w = np.random.default_rng(2).standard_normal((8, 96)).astype(np.float32)
    ours = unpack_q4_0(quantise_q4_0_plain(w))
    theirs = gguf.quants.dequantize(gguf.quants.quantize(w, Type.Q4_0), Type.Q4_0)
    # The library divides by the scale before fp16 rounds it, here by the scale after.
    assert np.mean(ours != theirs) < 0.01
    assert relative_rms_error(ours, w) <= relative_rms_error(theirs, w)


def test_what_q4_0_can_hold_survives_quantisation() -> None:
    block, values = position_coded(0.125, 3)
    for quantise in (quantise_q4_0, quantise_q4_0_plain):
        np.testing.assert_array_equal(unpack_q4_0(quantise(values[None])), values[None])
        np.testing.assert_array_equal(quantise(values[None])[0], block)


@pytest.mark.parametrize("importance", [None, np.linspace(0.1, 3, 640, dtype=np.float32)])
def test_the_scale_search_beats_plain_rounding(importance: np.ndarray | None) -> None:
    w = np.random.default_rng(3).standard_normal((200, 640)).astype(np.float32)
    weights = np.ones(640, np.float32) if importance is None else importance

    def errors(blocks: np.ndarray) -> np.ndarray:
        squares = weights * (unpack_q4_0(blocks) - w) ** 2
        return squares.reshape(-1, 32).sum(axis=1)

    plain, searched = errors(quantise_q4_0_plain(w)), errors(quantise_q4_0(w, importance))
    assert (searched <= plain * 1.0001).all(), "a block is worse than by plain rounding"
    assert np.sqrt(searched.sum() / plain.sum()) < 0.95


def test_importance_spares_the_columns_that_matter() -> None:
    w = np.random.default_rng(4).standard_normal((50, 64)).astype(np.float32)
    importance = np.where(np.arange(64) % 4 == 0, 100, 1).astype(np.float32)
    alike, weighed = unpack_q4_0(quantise_q4_0(w)), unpack_q4_0(quantise_q4_0(w, importance))
    matters = np.arange(64) % 4 == 0
    assert np.linalg.norm((weighed - w)[:, matters]) < 0.85 * np.linalg.norm(
        (alike - w)[:, matters]
    )


@pytest.mark.parametrize(
    ("value", "largest_error"),
    [(0.0, 0.0), (1e-9, 1e-9), (1e6, 8e5), (-7.0, 0.004)],
    ids=["zeros", "below fp16", "beyond fp16", "constant"],
)
def test_extreme_weights_stay_finite(value: float, largest_error: float) -> None:
    w = np.full((3, 64), value, np.float32)
    unpacked = unpack_q4_0(quantise_q4_0(w))
    assert np.isfinite(unpacked).all()
    assert np.abs(unpacked - w).max() <= largest_error


def test_quantising_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        quantise_q4_0(np.zeros((2, 48), np.float32))
    with pytest.raises(ValueError, match="not finite"):
        quantise_q4_0(np.array([[np.nan] * 32], np.float32))


def test_relative_rms_error_of_nothing() -> None:
    zeros, ones = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    assert relative_rms_error(zeros, zeros) == 0
    assert relative_rms_error(zeros, ones) == 1
