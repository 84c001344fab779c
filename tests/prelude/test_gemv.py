"""Every way to multiply against float64, on odd shapes and on blocks that are hard on it."""

import numba
import numpy as np
import pytest

from sovereign_lab.models.model import Q4Matrix
from sovereign_lab.models.quants import quantise_q4_0, unpack_q4_0
from sovereign_lab.prelude import STEPS, Step, compiled
from sovereign_lab.prelude.gemv import quantise_q8_0

SHAPES = [(1, 32), (3, 96), (33, 64), (257, 1056), (2, 4096)]
RNG = np.random.default_rng()

exact_steps = pytest.mark.parametrize("step", STEPS[:-1], ids=[s.id for s in STEPS[:-1]])
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def some_matrix(rows: int, cols: int) -> Q4Matrix:
    return Q4Matrix(rows, cols, quantise_q4_0(RNG.standard_normal((rows, cols), np.float32)))


def any_bytes(rows: int, cols: int) -> Q4Matrix:
    """Blocks of any bytes whose scale is finite: subnormal, negative, huge, zero."""
    blocks = RNG.integers(0, 256, (rows, cols // 32, 18), np.uint8)
    finite = RNG.integers(0, 0x7C00, (rows, cols // 32), np.uint16)
    finite |= RNG.integers(0, 2, finite.shape, np.uint16) << 15
    blocks[..., :2] = finite[..., None].view(np.uint8)
    return Q4Matrix(rows, cols, blocks.reshape(rows, -1))


def product(matrix: Q4Matrix, x: np.ndarray) -> np.ndarray:
    return unpack_q4_0(matrix.blocks).astype(np.float64) @ x.astype(np.float64)


def sizes(matrix: Q4Matrix, x: np.ndarray) -> np.ndarray:
    """The sum of the sizes of a row's products: what rounding errors are a share of."""
    return np.abs(unpack_q4_0(matrix.blocks)).astype(np.float64) @ np.abs(x).astype(np.float64)


@exact_steps
@every_shape
def test_a_product_is_that_of_the_unpacked_matrix(step: Step, shape: tuple[int, int]) -> None:
    for matrix in (some_matrix(*shape), any_bytes(*shape)):
        x = RNG.standard_normal(shape[1], np.float32)
        y = step.gemv(matrix)(x)
        assert y.shape == (shape[0],) and y.dtype == np.float32
        assert (np.abs(y - product(matrix, x)) <= 1e-5 * sizes(matrix, x)).all()


@exact_steps
def test_a_product_takes_a_view_and_read_only_blocks(step: Step) -> None:
    matrix = some_matrix(5, 64)
    matrix.blocks.flags.writeable = False
    x = RNG.standard_normal((64, 3), np.float32)[:, 1]
    np.testing.assert_allclose(step.gemv(matrix)(x), product(matrix, x), atol=1e-4)


@every_shape
def test_int8_errs_by_no_more_than_its_rounding(shape: tuple[int, int]) -> None:
    """A level is at most half a step off, so a row errs at most by half a step times the sum of its weights' sizes."""
    for matrix in (some_matrix(*shape), any_bytes(*shape)):
        x = RNG.standard_normal(shape[1], np.float32) * np.float32(RNG.uniform(0.01, 100))
        _, d = quantise_q8_0(x)
        bound = sizes(matrix, np.repeat(d / 2, 32)) + 1e-5 * sizes(matrix, x)
        error = np.abs(STEPS[-1].gemv(matrix)(x) - product(matrix, x))
        assert (error <= bound).all()
        assert error.max() > 0 or shape == (1, 32)


def test_activations_in_int8_keep_their_largest_and_their_zeros() -> None:
    x = RNG.standard_normal(96, np.float32)
    x[32:64] = 0
    x[70] = -9
    q, d = quantise_q8_0(x)
    assert q.dtype == np.int8 and d.dtype == np.float32 and d.shape == (3,)
    assert q[70] == -127 and not q[32:64].any() and d[1] == 0
    np.testing.assert_allclose(q * np.repeat(d, 32), x, atol=float(d.max()) / 2 * 1.001)
    for shape in ((33,), (1, 32)):
        with pytest.raises(ValueError, match="whole blocks of 32"):
            quantise_q8_0(np.zeros(shape, np.float32))


@pytest.mark.parametrize("step", STEPS, ids=[s.id for s in STEPS])
def test_the_head_is_a_plain_product(step: Step) -> None:
    weights, x = RNG.standard_normal((301, 96), np.float32), RNG.standard_normal(96, np.float32)
    y = step.head(weights)(x)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, weights.astype(np.float64) @ x, atol=1e-4)


def test_all_words_are_read_as_often_as_asked() -> None:
    words = RNG.integers(0, 1 << 63, 1000, np.uint64)
    sums = np.empty(4, np.uint64)
    compiled.read_all(words, 3, sums)
    for share, found in zip(words.reshape(4, -1), sums, strict=True):
        expected = sum(int(word) ^ number for word in share for number in range(3))
        assert int(found) == expected % (1 << 64)


def test_threads_are_numbas_own() -> None:
    """Those of OpenMP made a token ten times as slow on a busy machine."""
    some = some_matrix(3, 32)
    STEPS[3].gemv(some)(np.zeros(32, np.float32))
    assert numba.threading_layer() == "workqueue"  # type: ignore[attr-defined]
