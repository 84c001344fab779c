"""A text while it is generated: from tokens to pieces that can be shown, up to the reason it ends."""

import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from sovereign_lab.engine.decode_loop import DecodeLoop
from sovereign_lab.engine.generation import FinishReason, Generation
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.engine.stops import StopStrings

if TYPE_CHECKING:
    from sovereign_lab.engine.engine import Engine

# How many tokens a GPU runs ahead before the host looks at them: it never waits for the host between tokens.
RUN_AHEAD = 16


class TextStream(Iterator[str]):
    """Pieces of text as they come; `result` once the stream has ended. `Engine.stream` makes it."""

    result: Generation

    def __init__(
        self,
        engine: "Engine",
        prompt: str,
        ids: list[int],
        max_tokens: int,
        sampling: Sampling,
        stops: StopStrings,
    ) -> None:
        self._engine, self._prompt, self._ids, self._stops = engine, prompt, ids, stops
        self._sampling = sampling
        # The last position can still be run, and its token is one more than the context holds.
        room = engine.context - len(ids) + 1
        self._limit: int = min(max_tokens, room)
        self._at_limit: FinishReason = "length" if max_tokens <= room else "context"
        self._seconds = 0.0
        self._forwards = 0
        self._pieces = self._generate()

    def __next__(self) -> str:
        return next(self._pieces)

    def _generate(self) -> Generator[str, None, None]:
        tokenizer, stops = self._engine.model.tokenizer, self._stops
        text, pieces = tokenizer.stream(), []
        token_ids: list[int] = []
        argmax_ids: list[int] = []
        reason = self._at_limit
        loop = DecodeLoop(self._engine, self._sampling, self._ids)
        prefill = self._engine.prefill(self._ids, loop.given)
        for token, best in self._tokens(loop):
            if token in tokenizer.eog_ids:
                reason = "stop"
                break
            token_ids.append(token)
            argmax_ids.append(best)
            pieces.append(stops.push(text.push(token)))
            if pieces[-1]:
                yield pieces[-1]
            if stops.found is not None:
                break
        if stops.found is None:
            pieces.append(stops.push(text.finish()) + stops.finish())
            if pieces[-1]:
                yield pieces[-1]
        self.result = Generation(
            prompt=self._prompt,
            text="".join(pieces),
            prompt_ids=tuple(self._ids),
            token_ids=tuple(token_ids),
            argmax_ids=tuple(argmax_ids),
            finish_reason=reason if stops.found is None else "stop",
            tokens_per_second=self._forwards / self._seconds,
            ms_per_forward=self._seconds / self._forwards * 1e3,
            prefill_tokens_per_second=prefill,
            stop=stops.found,
        )

    def _tokens(self, loop: DecodeLoop) -> Iterator[tuple[int, int]]:
        """(token, argmax) for up to the limit; the clock runs only while the device or the sampler works."""
        on_gpu = self._engine.device.properties.kind == "cuda"
        ahead = RUN_AHEAD if loop.sampler is None and on_gpu else 1
        done = 0
        while done < self._limit:
            count = min(ahead, self._limit - done)
            start = time.perf_counter()
            new = loop.run(count)
            self._seconds += time.perf_counter() - start
            self._forwards += count
            done += count
            yield from new
