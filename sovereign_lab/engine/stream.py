"""A text while it is generated: from tokens to pieces that can be shown, up to the reason it ends."""

import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from sovereign_lab.engine.decode_loop import DecodeLoop
from sovereign_lab.engine.generation import Generation
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.engine.stops import StopStrings
from sovereign_lab.engine.text import Text

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
        self._engine, self._ids, self._sampling = engine, ids, sampling
        self._text = Text(engine.model.tokenizer, prompt, ids, max_tokens, engine.context, stops)
        self._seconds = 0.0
        self._forwards = 0
        self._pieces = self._generate()

    def __next__(self) -> str:
        return next(self._pieces)

    def _generate(self) -> Generator[str, None, None]:
        text = self._text
        loop = DecodeLoop(self._engine, self._sampling, self._ids)
        prefill = self._engine.prefill(self._ids, loop.given)
        for token, best in self._tokens(loop):
            piece = text.push(token, best)
            if piece:
                yield piece
            if text.reason is not None:
                break
        self.result = text.generation(self._forwards, self._seconds, prefill)

    def _tokens(self, loop: DecodeLoop) -> Iterator[tuple[int, int]]:
        """(token, argmax) for up to the limit; the clock runs only while the device or the sampler works."""
        on_gpu = self._engine.device.properties.kind == "cuda"
        ahead = RUN_AHEAD if loop.sampler is None and on_gpu else 1
        done, limit = 0, self._text.limit
        while done < limit:
            count = min(ahead, limit - done)
            start = time.perf_counter()
            new = loop.run(count)
            self._seconds += time.perf_counter() - start
            self._forwards += count
            done += count
            yield from new
