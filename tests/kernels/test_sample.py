"""The op `sample`: even random numbers, the engine's meaning of top-p, and the same draw from every variant."""

from collections.abc import Callable

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine.sampling import Sampling, candidates, penalised
from sovereign_lab.kernels import drawing
from sovereign_lab.kernels.registry import Variant, op

SAMPLE = op("sample")
every_variant = pytest.mark.parametrize("variant", SAMPLE.variants.values(), ids=lambda v: v.name)
# What FP32 may decide otherwise than float64: the kernel's exponentials are off by a few parts in 10^7.
ROUNDING = 1e-6
Draw = Callable[..., int]


@pytest.fixture
def draw(any_device: Device, variant: Variant) -> Draw:
    """`draw(logits, temperature, top_p, seed, position)` by a variant; `best` where it is not the argmax."""
    kernel = any_device.compile(variant.path)

    def one(
        logits: np.ndarray,
        temperature: float = 1,
        top_p: float = 1,
        seed: int = 0,
        position: int = 0,
        best: int | None = None,
    ) -> int:
        first = int(np.argmax(logits)) if best is None else best
        drawn = any_device.array(np.array([-7], np.int32))
        arrays = [
            any_device.array(np.asarray(logits, np.float32)),
            any_device.array(np.array([first], np.int32)),
            any_device.array(np.array([temperature, top_p], np.float32)),
            any_device.array(np.array([seed], np.int32)),
            any_device.array(np.array([position], np.int32)),
            drawn,
        ]
        any_device.launch(kernel, 1, variant.threads, [*arrays, len(logits)])
        return int(any_device.to_host(drawn)[0])

    return one


# ---- random numbers ----


def chi_square(counts: np.ndarray) -> float:
    """Pearson's over equally likely bins, as deviations from its mean: it is n - 1, its variance 2 (n - 1)."""
    due = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - due) ** 2 / due).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("seed", [0, 1, 2, 77, 2**31 - 1])
def test_positions_of_a_seed_have_even_numbers(seed: int) -> None:
    bits = drawing.random_bits(seed, np.arange(1 << 16))
    for shift in (0, 8, 16, 24):
        assert abs(chi_square(np.bincount(bits >> shift & 255, minlength=256))) < 5
    pairs = (bits[:-1] >> 28) * 16 + (bits[1:] >> 28)
    assert abs(chi_square(np.bincount(pairs, minlength=256))) < 5
    uniform = bits / 2.0**32
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 5 / np.sqrt(uniform.size)


def test_seeds_have_even_numbers_at_a_position() -> None:
    for position in (0, 1, 500):
        bits = np.array([drawing.random_bits(seed, position)[0] for seed in range(20_000)])
        assert abs(chi_square(np.bincount(bits >> 24, minlength=256))) < 5
        assert abs(np.corrcoef(bits[:-1].astype(float), bits[1:].astype(float))[0, 1]) < 0.04


def test_a_bit_of_the_position_moves_about_half_of_the_bits() -> None:
    positions = np.arange(4096)
    bits = drawing.random_bits(3, positions)
    for flipped in range(31):
        changed = bits ^ drawing.random_bits(3, positions ^ 1 << flipped)
        shares = [(changed >> bit & 1).mean() for bit in range(32)]
        assert min(shares) > 0.44 and max(shares) < 0.56


def test_kernels_have_the_same_numbers_as_numpy(any_device: Device) -> None:
    kernel = any_device.compile(
        '#include "random.cuh"\nextern "C" __global__ void bits(unsigned* out, int seed, int first) {\n'
        "  out[threadIdx.x] = random_bits(seed, first + threadIdx.x);\n}"
    )
    for seed, first in ((0, 0), (5, 1000), (2**31 - 1, 2**31 - 1 - 256), (-1, -256)):
        out = any_device.empty(256, np.uint32)
        any_device.launch(kernel, 1, 256, [out, seed, first])
        expected = drawing.random_bits(seed, first + np.arange(256))
        assert np.array_equal(any_device.to_host(out), expected)


# ---- the reference ----


@pytest.mark.parametrize("seed", range(40))
def test_reference_keeps_and_weighs_what_the_engine_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, rng.choice([0.0, 0.5, 4]), int(rng.choice([1, 7, 300])))
    logits = logits.astype(np.float32)
    top_p, temperature = float(rng.choice([0, 0.3, 0.95, 1])), float(rng.choice([0.3, 1, 1.7]))
    sampling = Sampling(temperature=temperature, top_p=top_p)
    ids, probabilities = candidates(penalised(logits, [], sampling), sampling)
    expected = dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
    found = drawing.shares(logits, temperature, top_p)
    assert list(found[0]) == sorted(expected)
    assert found[1].tolist() == pytest.approx([expected[i] for i in found[0].tolist()])


def test_reference_draws_by_the_shares() -> None:
    logits = np.random.default_rng(3).normal(0, 2, 40).astype(np.float32)
    ids, probabilities = drawing.shares(logits, 1.2, 0.9)
    draws = 20_000
    tokens = [drawing.drawn(logits, 1.2, 0.9, 11, position) for position in range(draws)]
    counts = np.bincount(tokens, minlength=40)
    assert counts.sum() == counts[ids].sum()
    due = draws * probabilities
    deviation = ((counts[ids] - due) ** 2 / due).sum()
    assert deviation < len(ids) + 6 * np.sqrt(2 * len(ids))


# ---- the kernels ----

SHAPES = {
    "few matter": (900, 4, 0.95),
    "many matter": (3000, 0.1, 0.95),  # more than a gathering kernel has room for
    "tail wanted": (3000, 4, 0.9999),  # candidates alone do not reach top_p
    "all": (700, 2, 1.0),
    "one": (700, 2, 0.0),
    "a hair below one": (700, 2, float(np.nextafter(np.float32(1), np.float32(0)))),
}


@every_variant
@pytest.mark.parametrize("shape", SHAPES)
def test_draws_are_the_references(draw: Draw, shape: str) -> None:
    vocab, spread, top_p = SHAPES[shape]
    rng = np.random.default_rng()
    for _ in range(12):
        logits = (rng.standard_normal(vocab) * spread + rng.normal(0, 20)).astype(np.float32)
        temperature = float(np.float32(rng.choice([0.5, 0.8, 1, 3])))
        seed, position = (int(i) for i in rng.integers(0, 2**31, 2))
        choice = (logits, temperature, float(np.float32(top_p)), seed, position)
        # Rounding may decide whether the last token is kept, and which of two neighbours a point hits.
        near = {
            drawing.drawn(logits, temperature, min(1.0, max(0.0, p)), seed, position)
            for p in (choice[2] - ROUNDING, choice[2], choice[2] + ROUNDING)
        }
        assert (
            draw(*choice) in near
            or drawing.margin(logits, temperature, 1, seed, position) < ROUNDING
        )


@every_variant
def test_of_equals_the_lowest_ids_are_kept(draw: Draw) -> None:
    logits = np.full(40, -3, np.float32)
    logits[[9, 4, 30, 22]] = 1
    logits[17] = 2  # holds 0.37 of all, each of the four 0.14
    seen = {draw(logits, 5, 0.6, 1, position) for position in range(80)}
    assert seen == {17, 4, 9}
    signed_zeros = np.array([0.0, -0.0, 0.0, -0.0], np.float32)
    assert {draw(signed_zeros, 1, 0.6, 1, position) for position in range(60)} == {0, 1, 2}
    assert {draw(-signed_zeros, 1, 0.6, 1, position) for position in range(60)} == {0, 1, 2}


@every_variant
def test_what_cannot_be_drawn(draw: Draw) -> None:
    logits = np.array([1, -np.inf, 1.5, np.nan, 1], np.float32)
    for top_p in (0.9, 1):
        tokens = {draw(logits, 2, top_p, 2, position, best=2) for position in range(80)}
        assert tokens == {0, 2, 4}
    assert {draw(np.full(5, -400, np.float32), 1, 1, 0, p) for p in range(80)} == set(range(5))


@every_variant
def test_logits_without_a_finite_maximum_give_the_argmax_back(draw: Draw) -> None:
    nothing = 0x7FFFFFFF  # what the op argmax says of them
    for value in (np.nan, -np.inf):
        for top_p in (0.5, 1):
            assert draw(np.full(50, value, np.float32), 1, top_p, best=nothing) == nothing
    broken = np.zeros(50, np.float32)
    broken[31] = np.inf
    assert draw(broken, 1, 0.5) == draw(broken, 1, 1) == 31


@every_variant
def test_temperatures_at_both_ends(draw: Draw) -> None:
    logits = np.array([1, 2, -np.inf, 1.999, 2], np.float32)
    for tiny in (1e-6, 0):  # 0 is what a smaller float64 becomes
        assert {draw(logits, tiny, 1, 0, position) for position in range(40)} == {1, 4}
    assert {draw(logits, np.inf, 1, 0, position) for position in range(60)} == {0, 1, 3, 4}
    far = np.array([0, -30], np.float32)  # no mass at temperature 1, but top_p = 1 keeps it
    assert {draw(far, 40, 1, 0, position) for position in range(40)} == {0, 1}


@every_variant
def test_no_order_of_threads_changes_a_draw(simt: SimtDevice, variant: Variant) -> None:
    rng = np.random.default_rng(0)
    logits = simt.array(rng.standard_normal(3001, np.float32) * 3)
    best = simt.array(np.array([logits.argmax()], np.int32))
    choice = simt.array(np.array([0.9, 0.9], np.float32))
    kernel = simt.compile(variant.path)
    found = {}
    try:
        for order in ("forward", "reverse", 2, 3):
            simt.lane_order = order
            tokens = []
            for position in range(6):
                drawn = np.array([-1], np.int32)
                arrays = [logits, best, choice, *(np.array([i], np.int32) for i in (4, position))]
                simt.launch(kernel, 1, variant.threads, [*arrays, drawn, logits.size])
                tokens.append(int(drawn[0]))
            found[order] = tokens
    finally:
        simt.lane_order = "forward"
    assert found["forward"] == found["reverse"] == found[2] == found[3]
    assert len(set(found["forward"])) > 1
