"""Exercise 10.1: the bytes of the KV cache that a token reads, from a model's shape."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sovereign_lab.measure.roofline import KV_BYTES, token_bytes
from sovereign_lab.models.model import Config
from sovereign_lab.notebook.seed import TINYLLAMA

# What tells a wrong formula from the right one, and the question: model, cached positions, type of the cache.
QUESTIONS: dict[str, tuple[Config, int, str]] = {
    "TinyLlama-1.1B, 4,000 positions, fp16": (TINYLLAMA, 4000, "fp16"),
    "the same in fp32": (TINYLLAMA, 4000, "fp32"),
    "the same with as many KV heads as heads": (replace(TINYLLAMA, kv_heads=32), 4000, "fp16"),
    "one layer, one KV head of 128, 3 positions": (
        replace(TINYLLAMA, layers=1, heads=2, kv_heads=1, head_dim=128),
        3,
        "fp16",
    ),
    "heads wider than dim / heads": (replace(TINYLLAMA, head_dim=96), 10, "fp16"),
    "an empty cache": (TINYLLAMA, 0, "fp16"),
}


def fault(answer: Callable[..., Any]) -> str | None:
    """What is wrong with a `kv_bytes` of exercise 10.1: None for nothing, "" where it is still the starter."""
    for name, (config, positions, kv_dtype) in QUESTIONS.items():
        right = token_bytes(config, kv_dtype=kv_dtype).kv_per_position * positions
        try:
            got = answer(config, positions, KV_BYTES[kv_dtype])
        except Exception as error:
            return f"{name}: your function raises {type(error).__name__}: {error}"
        if got is None:
            return ""
        if got != right:
            return (
                f"{name}: {right:,} bytes, yours says {got:,}.{_hint(got / right) if right else ''}"
            )
    return None


def _hint(ratio: float) -> str:
    """A guess at the mistake from how far off it is."""
    if ratio == TINYLLAMA.heads / TINYLLAMA.kv_heads:
        return " How many heads does the cache hold, and how many read it?"
    if ratio == 0.5:
        return " Are both keys and values in it?"
    if ratio == 1 / TINYLLAMA.layers:
        return " How many layers have a cache?"
    return ""
