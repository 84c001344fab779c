"""The forward pass on the CPU, one position after another, with a KV cache: the shape of every engine to come."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sovereign_lab.errors import LabError
from sovereign_lab.models.model import MATRICES, Model
from sovereign_lab.models.reference import attention, rmsnorm, rope, swiglu
from sovereign_lab.prelude.steps import Step

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CpuGeneration:
    """What `CpuRunner.generate` made. The speed is that of forward passes with logits, without the prompt's."""

    prompt: str
    text: str
    token_ids: tuple[int, ...]
    tokens_per_second: float
    ms_per_forward: float

    def __str__(self) -> str:
        return self.prompt + self.text


class CpuRunner:
    """A model on the CPU that multiplies as `step` says. The head is float32 [vocab, dim], as in the ladder.

    One pass is run at once, so that whatever compiles is compiled. Raises LabError for a context that the model does
    not have.
    """

    def __init__(self, model: Model, step: Step, context: int | None = None) -> None:
        config = model.config
        self.model = model
        self.context = config.context if context is None else context
        if not 1 <= self.context <= config.context:
            raise LabError(
                f"{config.name} has a context of 1 to {config.context} positions; {context} was asked for."
            )
        self.products = [
            {name: step.gemv(getattr(layer, name)) for name in MATRICES} for layer in model.layers
        ]
        self.head = step.head(model.head.float32())
        shape = (config.layers, self.context, config.kv_heads, config.head_dim)
        # fp16, as the engine's cache. Slots of positions to come are never read.
        self.keys, self.values = np.empty(shape, np.float16), np.empty(shape, np.float16)
        self.logits_of(self.hidden(0, 0))

    def hidden(self, token: int, position: int) -> Floats:
        """Run one token through the layers, and put its keys and values into the cache: float32 [dim]."""
        model, config = self.model, self.model.config
        x = model.embedding.take([token])[0]
        for index, (layer, times) in enumerate(zip(model.layers, self.products, strict=True)):
            h = rmsnorm(x, layer.attention_norm, config.eps)
            q = times["wq"](h).reshape(config.heads, config.head_dim)
            k = times["wk"](h).reshape(config.kv_heads, config.head_dim)
            v = times["wv"](h).reshape(config.kv_heads, config.head_dim)
            q = rope(q, position, model.inv_freq)
            self.keys[index, position] = rope(k, position, model.inv_freq)
            self.values[index, position] = v
            past = slice(0, position + 1)
            mixed = attention(q, self.keys[index, past], self.values[index, past])
            x = x + times["wo"](mixed.reshape(config.q_dim))

            h = rmsnorm(x, layer.ffn_norm, config.eps)
            x = x + times["w_down"](swiglu(times["w_gate"](h), times["w_up"](h)))
        return x

    def logits_of(self, x: Floats) -> Floats:
        """The scores of the next token, float32 [vocab], from what `hidden` returned."""
        return self.head(rmsnorm(x, self.model.output_norm, self.model.config.eps))

    def logits(self, tokens: Sequence[int]) -> Floats:
        """Logits at every position of a sequence, float32 [len(tokens), vocab]. Raises LabError as `generate`."""
        self._check(tokens)
        return np.stack([self.logits_of(self.hidden(token, at)) for at, token in enumerate(tokens)])

    def generate(self, prompt: str, max_tokens: int = 64) -> CpuGeneration:
        """Continue a text with the most likely tokens, until the model ends it, or max_tokens, or the context's end.

        Raises LabError for a prompt without tokens or longer than the context, and for max_tokens below 1.
        """
        if max_tokens < 1:
            raise LabError(f"max_tokens is 1 or more; got {max_tokens}.")
        tokenizer = self.model.tokenizer
        ids = tokenizer.encode(prompt)
        self._check(ids)
        for position, token in enumerate(ids[:-1]):
            self.hidden(token, position)
        last = min(len(ids) + max_tokens, self.context + 1) - 1
        made: list[int] = []
        token, passes = ids[-1], 0
        start = time.perf_counter()
        for position in range(len(ids) - 1, last):
            token = int(self.logits_of(self.hidden(token, position)).argmax())
            passes += 1
            if token in tokenizer.eog_ids:
                break
            made.append(token)
        seconds = time.perf_counter() - start
        text = tokenizer.stream()
        words = "".join([text.push(token) for token in made]) + text.finish()
        return CpuGeneration(prompt, words, tuple(made), passes / seconds, 1e3 * seconds / passes)

    def _check(self, tokens: Sequence[int]) -> None:
        vocab = self.model.config.vocab
        if not 1 <= len(tokens) <= self.context:
            raise LabError(
                f"1 to {self.context} tokens were expected (the context), not {len(tokens)}."
            )
        if not all(0 <= token < vocab for token in tokens):
            raise LabError(
                f"Token ids of {self.model.config.name} are 0 to {vocab - 1}; got {list(tokens)}."
            )
