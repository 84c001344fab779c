"""Is it still the same model? Logits of every phase against the reference's, and greedy text against phase 8b's."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sovereign_lab.engine import Engine
from sovereign_lab.measure.decode.facts import Difference, TextCheck
from sovereign_lab.models import reference

FIRST = "8b"
PROMPT = "Once upon a time, there was a little fox named Tom."
TOKENS = 64
FLOAT32 = 1e-4  # of the largest logit: what sums in another order may change


def checks(
    engines: Mapping[str, Engine], prompt: str = PROMPT, tokens: int = TOKENS
) -> Iterator[TextCheck]:
    """Every engine of `engines`, phase 8b among them, over 8b's greedy text of `tokens` tokens behind `prompt`.

    A token that ends a text does not end this one. The reference's cache has the engines' type; all else is float32.
    """
    first = engines[FIRST]
    roundings: dict[tuple[tuple[str, ...], ...], np.ndarray] = {}

    def rounded_truth(engine: Engine, text: list[int]) -> np.ndarray:
        key = engine.halves, engine.int8_inputs
        if key not in roundings:
            roundings[key] = reference.forward(
                first.model, text, first.kv.dtype, halves=key[0], int8_inputs=key[1]
            )
        return roundings[key]

    ids = first.prompt_ids(prompt, tokens)
    expected = greedy(first, ids, tokens)
    text = [*ids, *expected[:-1]]
    truth = reference.forward(first.model, text, first.kv.dtype)
    largest = float(np.abs(truth).max())
    base = first.logits(text)
    for name, engine in engines.items():
        logits = engine.logits(text)
        chosen = greedy(engine, ids, tokens)
        rounded = rounded_truth(engine, text)
        at = next((i for i in range(tokens) if chosen[i] != expected[i]), None)
        different = None
        if at is not None:
            row = truth[len(ids) - 1 + at]
            margin = float(row[expected[at]] - row[chosen[at]])
            allowed = 2 * (float(np.abs(rounded - truth).max()) + FLOAT32 * largest)
            different = Difference(at, expected[at], chosen[at], margin, allowed)
        yield TextCheck(
            model=first.model.config.name,
            name=name,
            prompt=prompt,
            tokens=tokens,
            to_reference=float(np.abs(logits - truth).max()) / largest,
            to_rounded=float(np.abs(logits - rounded).max()) / largest,
            to_8b=float(np.abs(logits - base).max()) / largest,
            same=tokens if at is None else at,
            difference=different,
        )


def greedy(engine: Engine, ids: Sequence[int], tokens: int) -> list[int]:
    """`tokens` greedy tokens behind `ids`, several a launch where the phase has them."""
    engine.prefill(list(ids), len(ids))
    engine.decode(tokens)
    all_tokens = engine.device.to_host(engine.state.tokens)
    return [int(t) for t in all_tokens[len(ids) : len(ids) + tokens]]
