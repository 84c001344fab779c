"""The engine and the NumPy reference predict what llama.cpp predicts, from the same file.

llama.cpp continues each prompt greedily; its tokens are then fed to ours, which must name the same
next token at nearly every position and give llama.cpp's choice nearly the same log-probability. A
small distance is expected: llama.cpp's CPU kernels round activations to 8 bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llama_cpp_oracle
import numpy as np
import numpy.typing as npt
import pytest
from same_launches import skip_if_the_same_launches

from sovereign_lab.devices import Device
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.models import reference
from sovereign_lab.models.catalog import resolve
from sovereign_lab.models.model import Model, load_model

PROMPTS = {
    "smollm2-135m": (
        "def fibonacci(n):",
        "Once upon a time,",
        "The capital of France is",
        "In the morning, she opened",
        "Water boils when it is",
    ),
    "storyteller": (
        "Once upon a time",
        "There was once a little owl",
        "One spring, a hare called Peter",
        "This is the story of Bess",
        "In the pear orchard lived",
    ),
}
ENGINE_CASES = [
    ("smollm2-135m", "8b"),
    ("smollm2-135m", "3"),
    ("smollm2-135m", "5"),
    *(("storyteller", phase) for phase in PHASES),
]
Logits = Callable[[list[int]], npt.NDArray[np.float32]]  # token ids -> [len, vocab]


@dataclass(frozen=True)
class Agreement:
    """Positions compared, share with the same best token, mean |log-probability difference|."""

    positions: int
    same_argmax: float
    logprob_distance: float


def share(device: Device, name: str, phase: str) -> tuple[tuple[str, ...], int]:
    """The prompts that an engine is asked, and how many positions of each.

    All of them on a GPU. On the SIMT device, where SmolLM2 takes about half a second a token, the storyteller a tenth
    of that and at phase 0 five times, each phase has its share, and the phases together have all: that the engine
    computes what the reference does is tests/engine/test_engine.py's, and the reference is asked everything here.
    """
    prompts = PROMPTS[name]
    if device.properties.kind == "cuda":
        return prompts, 32
    if name == "smollm2-135m":
        return (prompts[2],), 8
    if phase == "0":
        return (prompts[2],), 8
    first = list(PHASES).index(phase)
    return (prompts[first % 5], prompts[(first + 2) % 5]), 32


@cache
def loaded(name: str) -> tuple[Path, Model]:
    path = resolve(name)
    return path, load_model(path)


@cache
def continued(name: str, prompt: str) -> list[tuple[int, float]]:
    """llama.cpp's greedy continuation by 32 tokens: (token id, log-probability)."""
    path, model = loaded(name)
    found = llama_cpp_oracle.greedy_with_logprobs(path, model.tokenizer.encode(prompt), 32)
    assert len(found) == 32, f"llama.cpp ended {prompt!r} early"
    return found


def compare(name: str, logits: Logits, prompts: tuple[str, ...], positions: int) -> Agreement:
    _, model = loaded(name)
    same: list[bool] = []
    distances: list[float] = []
    for prompt in prompts:
        prompt_ids = model.tokenizer.encode(prompt)
        continuation = continued(name, prompt)[:positions]
        chosen = [token_id for token_id, _ in continuation]
        # The row after the prompt predicts the first token, the row after token i the next one.
        rows = logits(prompt_ids + chosen[:-1])[len(prompt_ids) - 1 :].astype(np.float64)
        assert rows.shape == (positions, model.config.vocab)
        same += [bool(flag) for flag in rows.argmax(axis=-1) == chosen]
        rows -= rows.max(axis=-1, keepdims=True)
        ours = rows[np.arange(positions), chosen] - np.log(np.exp(rows).sum(axis=-1))
        distances += [
            abs(mine - theirs) for mine, (_, theirs) in zip(ours, continuation, strict=True)
        ]
    return Agreement(len(same), float(np.mean(same)), float(np.mean(distances)))


def assert_agrees(agreement: Agreement) -> None:
    print(agreement)
    assert agreement.same_argmax >= 0.95
    assert agreement.logprob_distance < 0.1


def test_oracle_gives_full_softmax_before_sampling() -> None:
    path, model = loaded("smollm2-135m")
    ids = model.tokenizer.encode("def fibonacci(n):")
    everything = llama_cpp_oracle.next_token_logprobs(path, ids, model.config.vocab)
    assert len(everything) == model.config.vocab
    assert sum(np.exp(list(everything.values()))) == pytest.approx(1.0, abs=1e-3)
    (first,) = llama_cpp_oracle.greedy_with_logprobs(path, ids, 1)
    assert first[0] == max(everything, key=everything.__getitem__)
    assert first[1] == pytest.approx(everything[first[0]], abs=1e-3)


@pytest.mark.parametrize("name", PROMPTS)
def test_reference_agrees(name: str) -> None:
    _, model = loaded(name)
    assert_agrees(compare(name, lambda ids: reference.forward(model, ids), PROMPTS[name], 32))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "phase"), ENGINE_CASES)
def test_engine_agrees(any_device: Device, name: str, phase: str) -> None:
    if name == "smollm2-135m" and phase != "8b" and any_device.properties.kind == "simt":
        pytest.skip("over a minute on the SIMT device, where the storyteller stands for it")
    skip_if_the_same_launches(any_device, phase)
    _, model = loaded(name)
    engine = Engine(model, any_device, phase=phase)
    assert_agrees(compare(name, engine.logits, *share(any_device, name, phase)))
