"""How long a forward pass takes, at any position: the device's own clock around replays, after a warm-up."""

import numpy as np

from sovereign_lab.engine import Engine
from sovereign_lab.engine.decode_loop import DecodeLoop
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.errors import LabError

GREEDY = Sampling()


def start_at(engine: Engine, position: int) -> None:
    """Make the engine ready to run at `position`, over a cache of seeded noise: its speed does not depend on it.

    The tokens so far are all 1. Raises LabError for a position that the engine's context does not have.
    """
    if not 0 <= position < engine.context:
        raise LabError(
            f"Positions of this engine are 0 to {engine.context - 1}; {position} was asked for."
        )
    config = engine.model.config
    shape = (position, config.kv_heads, config.head_dim)
    noise: np.ndarray = (
        np.random.default_rng(0).standard_normal(shape, np.float32).astype(engine.kv.dtype)
    )
    for cache in (*engine.kv.keys, *engine.kv.values):
        engine.device.update(cache[:position], noise)
    engine.device.update(engine.state.tokens[: position + 1], np.ones(position + 1, np.int32))
    for array, value in ((engine.state.position, position), (engine.state.given, position + 1)):
        engine.device.update(array, np.array([value], np.int32))


def decode_ms(engine: Engine, position: int, tokens: int, sampling: Sampling = GREEDY) -> float:
    """Milliseconds a forward pass with logits and the choice of a token, the mean of `tokens` from `position` on.

    Where the phase leaves `sampling` to the host, its copies, waits and work are part of the time. On a GPU the
    weights of any model worth timing exceed the L2 cache, so each token finds it cold, as in use. Raises LabError
    for positions that the context does not have.
    """
    if position + tokens > engine.context:
        raise LabError(
            f"{tokens} tokens from position {position} on do not fit a context of {engine.context}."
        )
    start_at(engine, position)
    loop = DecodeLoop(engine, sampling, [1] * (position + 1))
    engine.device.update(engine.state.given, np.array([loop.given], np.int32))
    with engine.device.timer() as timer:
        if loop.sampler is not None:
            loop.run(tokens)
        else:
            for _ in range(tokens):
                engine.run(loop.calls)
    return timer.milliseconds / tokens
