"""Token after token: the device chooses where it can, and else waits for the host between any two."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sovereign_lab.engine.sampling import Sampler, Sampling

if TYPE_CHECKING:
    from sovereign_lab.engine.engine import Engine


class DecodeLoop:
    """Decodes behind `ids` (the tokens so far), choosing by `sampling`.

    `sampler` is the host's, None where the device chooses: the argmax always, and from phase 2 on a draw by
    temperature and top_p. `calls` are launched for each token. `given` is what the device must be told: how many
    tokens it may not overwrite.
    """

    def __init__(self, engine: "Engine", sampling: Sampling, ids: Sequence[int]) -> None:
        self._engine = engine
        self._history = list(ids)
        self._on_device = sampling.needs in engine.phase.plan
        self.sampler = None if self._on_device else Sampler(sampling)
        self.given = len(ids) if self._on_device else engine.context + 1
        self.calls = engine.decode_calls
        if self._on_device and sampling.needs == "sample":
            self.calls = engine.sampled_calls
            # Past float32's range a temperature means what its ends mean: the likeliest token, or any kept one.
            limits = np.finfo(np.float32)
            heat = np.clip(sampling.temperature, limits.tiny, limits.max)
            engine.device.update(engine.state.choice, np.array([heat, sampling.top_p], np.float32))
            engine.device.update(
                engine.state.seed, np.array([sampling.seed & 0xFFFFFFFF], np.uint32).view(np.int32)
            )

    def run(self, count: int) -> list[tuple[int, int]]:
        """Choose `count` more tokens: (token, argmax) each. Returns once they are known."""
        new = self._chosen_by_device(count) if self._on_device else self._chosen_by_host(count)
        self._history += [token for token, _ in new]
        return new

    def _chosen_by_device(self, count: int) -> list[tuple[int, int]]:
        engine, first = self._engine, len(self._history)
        if self.calls is engine.decode_calls:
            engine.decode(count)
        else:
            for _ in range(count):
                engine.run(self.calls)
        tokens, argmaxes = (
            engine.device.to_host(array[first : first + count])
            for array in (engine.state.tokens, engine.state.argmaxes)
        )
        return [(int(t), int(a)) for t, a in zip(tokens, argmaxes, strict=True)]

    def _chosen_by_host(self, count: int) -> list[tuple[int, int]]:
        assert self.sampler is not None
        engine, history = self._engine, list(self._history)
        new = []
        for _ in range(count):
            engine.run(self.calls)
            logits = engine.device.to_host(engine.state.logits)
            token = self.sampler.pick(logits, history)
            engine.device.update(
                engine.state.tokens[len(history) : len(history) + 1], np.array([token], np.int32)
            )
            history.append(token)
            new.append((token, int(np.argmax(logits))))
        return new
