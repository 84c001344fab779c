"""Sampling means what it means in llama.cpp, and draws follow the distribution."""

import ctypes
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sovereign_lab.devices import Device
from sovereign_lab.engine import Engine
from sovereign_lab.engine.decode_loop import DecodeLoop
from sovereign_lab.engine.sampling import Sampler, Sampling, candidates, penalised
from sovereign_lab.errors import LabError
from sovereign_lab.models.catalog import resolve
from sovereign_lab.models.model import Model, load_model

Distribution = dict[int, float]  # token id -> probability


def ours(logits: np.ndarray, history: list[int], sampling: Sampling) -> Distribution:
    ids, probabilities = candidates(penalised(logits, history, sampling), sampling)
    assert len(set(ids)) == len(ids)
    return dict(zip(ids.tolist(), probabilities.tolist(), strict=True))


# ---- llama.cpp's own samplers as the truth ----


class _Token(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class _Tokens(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.POINTER(_Token)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    ]


@pytest.fixture(scope="session")
def llama_cpp() -> Callable[[np.ndarray, list[int], Sampling], Distribution]:
    """llama.cpp's chain of samplers, in the order of its default, up to the draw."""
    pytest.importorskip("xllamacpp", reason="llama.cpp is the oracle: install '.[test]'")
    spec = find_spec("xllamacpp")
    assert spec is not None and spec.submodule_search_locations
    library = ctypes.CDLL(str(next(Path(spec.submodule_search_locations[0]).glob("xllamacpp*.so"))))
    library.llama_sampler_apply.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Tokens)]
    library.llama_sampler_accept.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.llama_sampler_free.argtypes = [ctypes.c_void_p]
    real, size, integer = ctypes.c_float, ctypes.c_size_t, ctypes.c_int32

    def make(name: str, *arguments: tuple[Any, Any]) -> int:
        function = getattr(library, f"llama_sampler_init_{name}")
        function.restype = ctypes.c_void_p
        function.argtypes = [type for type, _ in arguments]
        return function(*(value for _, value in arguments))

    def distribution(logits: np.ndarray, history: list[int], sampling: Sampling) -> Distribution:
        s, vocab = sampling, len(logits)
        none = (real, 0.0)
        chain = [
            make(
                "penalties",
                (integer, vocab), (integer, s.repeat_window), (real, s.repeat_penalty), none, none,
            ),
            make("top_k", (integer, s.top_k)),
            make("top_p", (real, s.top_p), (size, 0)),
            make("min_p", (real, s.min_p), (size, 0)),
            make("temp", (real, s.temperature)),
            make("dist", (ctypes.c_uint32, 1)),
        ]  # fmt: skip
        for token in history:
            library.llama_sampler_accept(chain[0], token)
        data = (_Token * vocab)(*(_Token(i, float(x), 0.0) for i, x in enumerate(logits)))
        tokens = _Tokens(data, vocab, -1, False)
        for sampler in chain:
            library.llama_sampler_apply(sampler, ctypes.byref(tokens))
            library.llama_sampler_free(sampler)
        return {tokens.data[i].id: tokens.data[i].p for i in range(tokens.size)}

    return distribution


def random_sampling(rng: np.random.Generator) -> Sampling:
    return Sampling(
        temperature=float(rng.choice([0.3, 0.8, 1.0, 1.7])),
        top_k=int(rng.choice([0, 1, 5, 40, 1000])),
        top_p=float(rng.choice([0.0, 0.5, 0.9, 0.95, 1.0])),
        min_p=float(rng.choice([0.0, 0.05, 0.3, 1.0])),
        repeat_penalty=float(rng.choice([0.7, 1.0, 1.1, 2.0])),
        repeat_window=int(rng.choice([0, 3, 64])),
    )


@pytest.mark.parametrize("seed", range(60))
def test_every_choice_means_what_it_means_in_llama_cpp(
    llama_cpp: Callable[[np.ndarray, list[int], Sampling], Distribution], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    vocab = int(rng.choice([7, 300]))
    logits = rng.normal(0, rng.choice([0.5, 4]), vocab).astype(np.float32)
    history = rng.integers(0, vocab, int(rng.choice([0, 2, 100]))).tolist()
    sampling = random_sampling(rng)
    expected, found = llama_cpp(logits, history, sampling), ours(logits, history, sampling)
    assert found.keys() == expected.keys(), sampling
    for token, probability in expected.items():
        assert found[token] == pytest.approx(probability, abs=1e-5), sampling


# ---- what holds for every input ----

LOGITS = arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-50, 50, width=32))
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0.01, 10),
    top_k=st.integers(0, 50),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    repeat_penalty=st.floats(0.1, 10),
)


@settings(deadline=None)
@given(LOGITS, SAMPLINGS)
def test_what_can_be_drawn_is_a_distribution_that_holds_the_likeliest(
    logits: np.ndarray, sampling: Sampling
) -> None:
    found = ours(logits, [0], sampling)
    scores = penalised(logits, [0], sampling)
    assert sum(found.values()) == pytest.approx(1)
    assert min(scores[list(found)]) >= max(
        (x for i, x in enumerate(scores) if i not in found), default=-np.inf
    )
    assert len(found) <= (sampling.top_k or len(logits))
    picked = Sampler(sampling).pick(logits, [0])
    assert picked in found


@settings(deadline=None)
@given(LOGITS, SAMPLINGS, st.randoms(use_true_random=False))
def test_the_order_of_the_vocabulary_is_no_matter(
    logits: np.ndarray, sampling: Sampling, random: Any
) -> None:
    """Unsorted input gives what sorted input gives, but for which of equals is kept."""
    order = list(range(len(logits)))
    random.shuffle(order)
    here = sorted(ours(logits, [], sampling).values())
    assert sorted(ours(logits[order], [], sampling).values()) == pytest.approx(here)


@settings(deadline=None)
@given(LOGITS, st.lists(st.integers(0, 100), max_size=80))
def test_temperature_0_is_the_argmax(logits: np.ndarray, history: list[int]) -> None:
    history = [token % len(logits) for token in history]
    assert Sampler(Sampling()).pick(logits, history) == logits.argmax()
    penalty = Sampling(repeat_penalty=1.3)
    assert Sampler(penalty).pick(logits, history) == penalised(logits, history, penalty).argmax()


# ---- draws ----


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.6, top_k=8),
        Sampling(temperature=1.5, top_p=0.8),
        Sampling(temperature=1.0, top_k=20, top_p=0.95, min_p=0.1, repeat_penalty=1.5),
    ],
    ids=["temperature", "top_k", "top_p", "all"],
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    logits = np.random.default_rng(3).normal(0, 2, 40).astype(np.float32)
    history, draws = [1, 2, 3], 20_000
    sampler, expected = Sampler(sampling), ours(logits, history, sampling)
    counts = np.bincount([sampler.pick(logits, history) for _ in range(draws)], minlength=40)
    assert set(np.flatnonzero(counts)) <= expected.keys()
    # Pearson's chi-square over the tokens that are due at least 5 times: mean n, deviation sqrt(2 n).
    likely = {i: draws * p for i, p in expected.items() if draws * p >= 5}
    chi_square = sum((counts[i] - due) ** 2 / due for i, due in likely.items())
    assert chi_square < len(likely) + 6 * np.sqrt(2 * len(likely))
    assert sum(abs(counts[i] / draws - p) for i, p in expected.items()) / 2 < 0.03


def test_one_generator_is_seeded_once() -> None:
    logits = np.zeros(1000, np.float32)

    def draws(seed: int) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.0, seed=seed))
        return [sampler.pick(logits, []) for _ in range(20)]

    assert draws(5) == draws(5) != draws(6)
    assert len(set(draws(5))) > 15, "seeded again for each token, all draws would be equal"


# ---- corners ----


def test_ties_go_to_the_lowest_id_and_top_k_keeps_no_more_than_k() -> None:
    equal = np.array([1, 3, 3, 0, 3], np.float32)
    assert Sampler(Sampling()).pick(equal, []) == 1
    kept = ours(equal, [], Sampling(temperature=1.0, top_k=2))
    assert kept == pytest.approx({1: 0.5, 2: 0.5})
    everything = ours(np.zeros(6, np.float32), [], Sampling(temperature=1.0, top_p=0.5))
    assert list(everything) == [0, 1, 2]
    assert len(ours(equal, [], Sampling(temperature=1.0, min_p=1.0))) == 3


def test_top_p_takes_the_token_that_reaches_it_and_works_without_top_k() -> None:
    logits = np.log(np.array([0.1, 0.5, 0.05, 0.3, 0.05], np.float32))
    for top_p, kept in {0.0: [1], 0.4: [1], 0.6: [1, 3], 0.85: [1, 3, 0], 1.0: range(5)}.items():
        assert set(ours(logits, [], Sampling(temperature=1.0, top_p=top_p))) == set(kept)


def test_penalty_makes_recent_tokens_less_likely_whatever_their_sign() -> None:
    logits = np.array([2, -2, 2, -2, 0], np.float32)
    sampling = Sampling(repeat_penalty=2.0, repeat_window=3)
    assert penalised(logits, [3, 0, 1, 1], sampling).tolist() == [1, -4, 2, -2, 0]
    assert penalised(logits, [], sampling).tolist() == logits.tolist()


def test_temperatures_near_0_and_forbidden_tokens_give_no_nan() -> None:
    logits = np.array([1, 2, -np.inf, 1.9], np.float32)
    assert ours(logits, [2], Sampling(temperature=1e-320))[1] == 1.0
    assert ours(logits, [2], Sampling(temperature=1.0, repeat_penalty=1.1))[2] == 0.0
    assert ours(logits, [], Sampling(temperature=1e300))[0] == pytest.approx(1 / 3)


@pytest.mark.parametrize("wrong", [[1, np.nan], [np.inf, 0], [-np.inf, -np.inf]])
def test_logits_of_a_broken_kernel_are_refused(wrong: list[float]) -> None:
    with pytest.raises(LabError, match="a kernel gave wrong values"):
        Sampler(Sampling(temperature=1.0)).pick(np.array(wrong, np.float32), [])


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"temperature": -1}, "A temperature is 0 .* or more; got -1"),
        ({"temperature": float("inf")}, "A temperature is"),
        ({"top_k": -1}, "top_k is 0"),
        ({"top_p": float("nan")}, "top_p is a probability"),
        ({"min_p": 1.01}, "min_p is a share"),
        ({"repeat_penalty": 0}, "A repetition penalty is above 0"),
        ({"repeat_window": -1}, "repeat_window is 0"),
        ({"seed": -1}, "A seed is a whole number"),
    ],
)
def test_choices_out_of_range_are_a_sentence(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError, match=message):
        Sampling(**choice)


# ---- in the engine ----


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load_model(resolve("synthetic:tiny"))


def test_engine_samples_from_its_logits(any_device: Device, tiny: Model) -> None:
    engine = Engine(tiny, any_device)
    greedy = engine.generate("once", max_tokens=8)
    assert engine.generate("once", 8, temperature=3.0, seed=4).token_ids != greedy.token_ids
    for only in ({"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}):
        assert engine.generate("once", 8, 3.0, 4, **only).token_ids == greedy.token_ids
    few = engine.generate("once", 20, temperature=3.0, seed=4, top_k=3)
    rows = engine.logits([*few.prompt_ids, *few.token_ids[:-1]])[len(few.prompt_ids) - 1 :]
    ranks = [int((row > row[token]).sum()) for row, token in zip(rows, few.token_ids, strict=True)]
    assert max(ranks) <= 2 and len(set(ranks)) > 1
    assert few.argmax_ids == tuple(rows.argmax(axis=1))


def test_penalty_at_temperature_0_keeps_the_engine_from_repeating(
    any_device: Device, tiny: Model
) -> None:
    engine = Engine(tiny, any_device)
    story = engine.generate("once", max_tokens=30, repeat_penalty=1e9)
    assert len({*story.prompt_ids, *story.token_ids}) == len(story.prompt_ids) + len(
        story.token_ids
    )
    assert story.argmax_ids != story.token_ids and engine.agreement(story) == 1.0
    off = engine.generate("once", max_tokens=8, repeat_penalty=2.0, repeat_window=0)
    assert off.token_ids == engine.generate("once", max_tokens=8).token_ids


@pytest.mark.parametrize("phase", ["0", "2"])
def test_draws_are_within_top_p_and_the_best_is_noted(
    any_device: Device, tiny: Model, phase: str
) -> None:
    engine = Engine(tiny, any_device, phase)
    story, same, other = (
        engine.generate("once", 12, 2.0, seed, top_p=0.6) for seed in (11, 11, 12)
    )
    assert story.token_ids == same.token_ids != other.token_ids
    rows = engine.logits([*story.prompt_ids, *story.token_ids[:-1]])[len(story.prompt_ids) - 1 :]
    assert story.argmax_ids == tuple(rows.argmax(axis=1))
    assert story.argmax_ids != story.token_ids
    for row, token in zip(rows, story.token_ids, strict=True):
        # A token at the edge may fall on either side of it by a rounding.
        kept, _ = candidates(row.astype(np.float64), Sampling(temperature=2.0, top_p=0.6 + 1e-4))
        assert token in kept


def test_the_device_draws_what_it_can_from_phase_2_on(tiny: Model, simt: Device) -> None:
    def on_host(phase: str, **options: float) -> bool:
        sampling = Sampling(**options)  # type: ignore[arg-type]
        return DecodeLoop(Engine(tiny, simt, phase, context=8), sampling, [1]).sampler is not None

    assert on_host("0", temperature=1.0) and not on_host("0")
    assert not on_host("2", temperature=1.0, top_p=0.9)
    for other in ({"top_k": 3}, {"min_p": 0.1}, {"repeat_penalty": 1.1}):
        assert on_host("8b", temperature=1.0, **other)
    assert on_host("8b", repeat_penalty=1.1)


@pytest.mark.parametrize("seed", [0, 2**31, 2**63])
@pytest.mark.parametrize("temperature", [1e-300, 1e300])
def test_any_seed_and_temperature_reach_the_device(
    any_device: Device, tiny: Model, seed: int, temperature: float
) -> None:
    engine = Engine(tiny, any_device, "2")
    story = engine.generate("once", 6, temperature, seed)
    cold = story.token_ids == story.argmax_ids
    assert cold == (temperature < 1)
