"""What a generation was: its text, and its speed in units that say what they count."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "context"]


@dataclass(frozen=True)
class Generation:
    """The result of `engine.generate` and `engine.chat`.

    `token_ids` are the generated tokens without the one that ends a text; `argmax_ids` the model's most likely
    token at each of those positions (the same, at temperature 0 without a penalty). `tokens_per_second` is
    decode alone: forward passes with logits, per second, without load, compilation or prefill.
    `prefill_tokens_per_second` is None where the prompt has one token, which decode takes. `finish_reason`:
    "stop" (the model ended its text, or a stop string came up), "length" (max_tokens), "context" (no room for
    more). `stop` is the stop string that came up, else None: `text` ends before it, `token_ids` spell it.
    """

    prompt: str
    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    argmax_ids: tuple[int, ...]
    finish_reason: FinishReason
    tokens_per_second: float
    ms_per_forward: float
    prefill_tokens_per_second: float | None
    stop: str | None = None

    def __str__(self) -> str:
        return self.prompt + self.text
