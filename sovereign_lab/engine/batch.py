"""Several texts at once: a decode step reads each matrix once for all of them.

Each sequence has its own position, and a region of its own in a KV cache. Its prompt goes through in blocks, as for one
text (prefill.py); then all decode together. The same forward pass as prefill.py's, over one token of each sequence.
Everything that changes lives in device memory, a sequence's end included, so one recording serves every step.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sovereign_lab.devices import Device
from sovereign_lab.engine.forward import Call, DeviceWeights
from sovereign_lab.engine.generation import Generation
from sovereign_lab.engine.kv_cache import KVCache
from sovereign_lab.engine.prefill import SplitLayer, SplitMatrix, product, rmsnorm
from sovereign_lab.engine.sampling import Sampler, Sampling
from sovereign_lab.engine.stops import StopStrings
from sovereign_lab.engine.stream import RUN_AHEAD
from sovereign_lab.engine.text import Text
from sovereign_lab.errors import LabError
from sovereign_lab.models.model import Config

if TYPE_CHECKING:
    from sovereign_lab.engine.engine import Engine

# Regions are this many positions or a multiple: texts a little longer than the last ones find room.
ROUND_UP = 256


@dataclass(frozen=True)
class BatchState:
    """What a step of `count` sequences reads and writes on the device."""

    tokens: Any  # int32 [count, context + 1]
    argmaxes: Any  # int32 [count, context + 1]: the best token at each generated position
    position: Any  # int32 [count]
    active: Any  # int32 [count], 0 for a sequence that has ended
    last: Any  # int32 [count], the index of the last token that a sequence may have
    ends: Any  # int32 [at least 1], tokens that end a text; -1 is none
    best: Any  # int32 [count], the argmax of the logits
    drawn: Any  # int32 [count], what the host has chosen
    x: Any  # float32 [count, dim], the residual stream
    normed: Any  # float16 [count, dim]
    qkv: Any  # float32 [count, (heads + 2 * kv_heads) * head_dim]
    q: Any  # float32 [count, heads, head_dim]
    attended: Any  # float16 [count, heads * head_dim]
    gate_up: Any  # float32 [count, 2 * ffn_dim]
    hidden: Any  # float16 [count, ffn_dim]
    logits: Any  # float32 [count, vocab]

    @classmethod
    def allocate(
        cls, device: Device, c: Config, ends: int, count: int, context: int
    ) -> "BatchState":
        """Room for `count` sequences of `context` positions each, and so many tokens that end a text."""

        def ints(*shape: int) -> Any:
            return device.empty(shape, np.int32)

        def halves(*shape: int) -> Any:
            return device.empty(shape, np.float16)

        def floats(*shape: int) -> Any:
            return device.empty(shape, np.float32)

        return cls(
            tokens=ints(count, context + 1),
            argmaxes=ints(count, context + 1),
            position=ints(count),
            active=ints(count),
            last=ints(count),
            ends=ints(ends),
            best=ints(count),
            drawn=ints(count),
            x=floats(count, c.dim),
            normed=halves(count, c.dim),
            qkv=floats(count, c.q_dim + 2 * c.kv_heads * c.head_dim),
            q=floats(count, c.heads, c.head_dim),
            attended=halves(count, c.q_dim),
            gate_up=floats(count, 2 * c.ffn_dim),
            hidden=halves(count, c.ffn_dim),
            logits=floats(count, c.vocab),
        )


@dataclass(frozen=True)
class Batch:
    """Room for `count` sequences of up to `context` positions, and the launches of a step.

    `kv`: the sequences' regions one behind the other. `greedy` is a whole step, in which the best token follows;
    `scores` the same up to the logits, and `take_drawn` lets the tokens follow that the host has put into `drawn`.
    """

    count: int
    context: int
    kv: KVCache
    state: BatchState
    greedy: list[Call]
    scores: list[Call]
    take_drawn: list[Call]

    def region(self, sequence: int) -> KVCache:
        """One sequence's part of the cache: [context, kv_heads, head_dim] a layer."""
        part = slice(sequence * self.context, (sequence + 1) * self.context)
        keys, values = (tuple(a[part] for a in arrays) for arrays in (self.kv.keys, self.kv.values))
        return replace(self.kv, keys=keys, values=values)


def prepare(engine: "Engine", count: int, positions: int) -> Batch:
    """A batch of `count` sequences of at least `positions` positions each; the engine keeps the last one.

    Raises LabError for a phase without the ops.
    """
    if "advance_batch" not in engine.phase.plan:
        raise LabError(
            f"Several texts at once need phase 9c or a later one; this engine is at phase {engine.phase.id}. "
            "Take engine.with_phase('9c')."
        )
    kept = engine.batch
    if kept is not None and kept.count == count and kept.context >= positions:
        return kept
    if kept is not None:  # its memory is free before the next one's is taken
        engine.forget(kept.greedy, kept.scores, kept.take_drawn)
        engine.batch = kept = None
    device, config = engine.device, engine.model.config
    context = min(-(-positions // ROUND_UP) * ROUND_UP, engine.context)
    kv = KVCache.allocate(device, config, count * context, engine.kv_dtype)
    ends = max(1, len(engine.model.tokenizer.eog_ids))
    s = BatchState.allocate(device, config, ends, count, context)
    assert engine.split is not None
    scores = list(step(config, engine.weights, engine.split, s, kv, count, context))
    best, drawn = (_advance(s, following, count, context) for following in (s.best, s.drawn))
    engine.batch = Batch(count, context, kv, s, [*scores, best], scores, [drawn])
    return engine.batch


def step(
    c: Config,
    w: DeviceWeights,
    split: tuple[SplitLayer, ...],
    s: BatchState,
    kv: KVCache,
    count: int,
    context: int,
) -> Iterator[Call]:
    """From every sequence's token at its position to its logits and their best token."""
    yield Call("embedding_batch", dict(
        table=w.embedding, tokens=s.tokens, position=s.position, x=s.x, dim=c.dim, context=context, count=count,
    ))  # fmt: skip
    for layer, m, keys, values in zip(w.layers, split, kv.keys, kv.values, strict=True):
        # attention: each sequence looks back at its own positions
        yield rmsnorm(s.x, layer.attention_norm, s.normed, c, count)
        yield _product(m.wqkv, s.normed, s.qkv, count)
        yield Call("rope_kv_batch", dict(
            qkv=s.qkv, q=s.q, keys=keys, values=values, inv_freq=w.inv_freq, position=s.position,
            active=s.active, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, rope_dim=c.rope_dim,
            context=context, count=count,
        ))  # fmt: skip
        yield Call("attention_batch", dict(
            q=s.q, keys=keys, values=values, out=s.attended, position=s.position, active=s.active,
            heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, context=context, count=count,
        ))  # fmt: skip
        yield _product(m.wo, s.attended, s.x, count, accumulate=True)

        # feed forward
        yield rmsnorm(s.x, layer.ffn_norm, s.normed, c, count)
        yield _product(m.w_gate_up, s.normed, s.gate_up, count)
        yield Call(
            "swiglu_tokens", dict(gate_up=s.gate_up, hidden=s.hidden, n=c.ffn_dim, count=count)
        )
        yield _product(m.w_down, s.hidden, s.x, count, accumulate=True)

    yield rmsnorm(s.x, w.output_norm, s.normed, c, count)
    yield Call(
        "logits_batch",
        dict(W=w.head, x=s.normed, y=s.logits, vocab=c.vocab, dim=c.dim, count=count),
    )
    yield Call("argmax_batch", dict(logits=s.logits, best=s.best, vocab=c.vocab, count=count))


def _product(m: SplitMatrix, x: Any, y: Any, count: int, accumulate: bool = False) -> Call:
    return product(m, x, y, count, accumulate, "gemm_q4_0_batch")


def _advance(s: BatchState, following: Any, count: int, context: int) -> Call:
    return Call("advance_batch", dict(
        following=following, best=s.best, ends=s.ends, last=s.last, tokens=s.tokens, argmaxes=s.argmaxes,
        position=s.position, active=s.active, ends_count=int(s.ends.size), context=context, count=count,
    ))  # fmt: skip


def begin(
    engine: "Engine",
    batch: Batch,
    prompts: Sequence[Sequence[int]],
    last: Sequence[int],
    ends: Collection[int],
) -> list[float | None]:
    """Run every prompt but its last token into its region, and make all ready to decode.

    `last`: the index of the last token that each sequence may have, at most the batch's context. `ends`: tokens that
    end a text, as many as the model's or fewer. Returns each prompt's prefill in tokens a second, None for one of a
    single token.
    """
    device, s = engine.device, batch.state
    speeds = [engine.prefill(ids, len(ids), batch.region(i)) for i, ids in enumerate(prompts)]
    tokens = np.zeros((batch.count, batch.context + 1), np.int32)
    for row, ids in zip(tokens, prompts, strict=True):
        row[: len(ids)] = ids
    device.update(s.tokens, tokens)
    device.update(s.position, np.array([len(ids) - 1 for ids in prompts], np.int32))
    device.update(s.active, np.ones(batch.count, np.int32))
    device.update(s.last, np.array(last, np.int32))
    device.update(s.ends, np.array([*ends, *[-1] * (s.ends.size - len(ends))], np.int32))
    return speeds


def generate(
    engine: "Engine",
    prompts: Sequence[str],
    max_tokens: int,
    sampling: Sampling,
    stop: str | Sequence[str] = (),
) -> list[Generation]:
    """See `Engine.generate_batch`."""
    if isinstance(prompts, str):
        raise LabError(f"A batch takes a list of prompts; got the text {prompts!r}: put it in [].")
    if not prompts:
        return []
    tokenizer = engine.model.tokenizer
    texts = []
    for prompt in prompts:
        ids = engine.prompt_ids(prompt, max_tokens)
        texts.append(Text(tokenizer, prompt, ids, max_tokens, engine.context, StopStrings(stop)))
    last = [len(text.ids) + text.limit - 1 for text in texts]
    batch = prepare(engine, len(texts), max(last))
    prefills = begin(engine, batch, [text.ids for text in texts], last, tokenizer.eog_ids)
    samplers = (
        None
        if sampling.needs == "argmax"
        else [Sampler(replace(sampling, seed=sampling.seed + i)) for i in range(len(texts))]
    )
    times = _decode(engine, batch, texts, samplers)
    return [
        text.generation(forwards, seconds, prefill)
        for text, (forwards, seconds), prefill in zip(texts, times, prefills, strict=True)
    ]


def _decode(
    engine: "Engine", batch: Batch, texts: list[Text], samplers: list[Sampler] | None
) -> list[tuple[int, float]]:
    """Step until every text has ended; how many steps each took part in, and the seconds of those."""
    device, s = engine.device, batch.state
    ahead = RUN_AHEAD if samplers is None and device.properties.kind == "cuda" else 1
    times = [(0, 0.0)] * len(texts)
    done = 0
    while running := [i for i, text in enumerate(texts) if text.reason is None]:
        steps = min(ahead, max(texts[i].limit for i in running) - done)
        start = time.perf_counter()
        if samplers is None:
            for _ in range(steps):
                engine.run(batch.greedy)
        else:
            _step_chosen_by_host(engine, batch, running, samplers)
        tokens, argmaxes, position = map(device.to_host, (s.tokens, s.argmaxes, s.position))
        seconds = time.perf_counter() - start
        for i in running:
            text = texts[i]
            new = slice(len(text.ids) + done, int(position[i]) + 1)
            for token, best in zip(tokens[i, new].tolist(), argmaxes[i, new].tolist(), strict=True):
                text.push(token, best)
                if text.reason is not None:
                    break
            times[i] = (times[i][0] + steps, times[i][1] + seconds)
        done += steps
        # Of a stop string the device knows nothing; of the other ends it does.
        device.update(s.active, np.array([text.reason is None for text in texts], np.int32))
    return times


def _step_chosen_by_host(
    engine: "Engine", batch: Batch, running: list[int], samplers: list[Sampler]
) -> None:
    device, s = engine.device, batch.state
    engine.run(batch.scores)
    logits, tokens, position = map(device.to_host, (s.logits, s.tokens, s.position))
    drawn = np.zeros(batch.count, np.int32)
    for i in running:
        history = tokens[i, : int(position[i]) + 1].tolist()
        drawn[i] = samplers[i].pick(logits[i], history)
    device.update(s.drawn, drawn)
    engine.run(batch.take_drawn)
