"""The forward pass of one position as a list of launches: read it from top to bottom as the model.

Everything that changes from token to token or from text to text (the tokens, the position, how to sample) lives in
device memory, so the list is made once, and its recording serves every token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from sovereign_lab.devices import Device
from sovereign_lab.engine.kv_cache import KVCache
from sovereign_lab.models.model import Config, Model, Q4Matrix


class Call(NamedTuple):
    """A launch: an op, and its arguments by parameter name.

    Neighbours in the list that have a `branch` may run side by side, a stream a branch; the calls before them end
    first, and those after them wait for all.
    """

    op: str
    args: dict[str, Any]
    branch: int | None = None


@dataclass(frozen=True)
class DeviceMatrix:
    """A Q4_0 matrix on the device: `blocks` is uint8 [rows, blocks_per_row * 18]."""

    blocks: Any
    rows: int
    blocks_per_row: int


@dataclass(frozen=True)
class DeviceLayer:
    """One layer's weights on the device."""

    attention_norm: Any  # float32 [dim]
    wq: DeviceMatrix
    wk: DeviceMatrix
    wv: DeviceMatrix
    wo: DeviceMatrix
    ffn_norm: Any  # float32 [dim]
    w_gate: DeviceMatrix
    w_up: DeviceMatrix
    w_down: DeviceMatrix


@dataclass(frozen=True)
class DeviceWeights:
    """The model on the device. In the seed's phases embedding and head are FP32 [vocab, dim]."""

    embedding: Any
    layers: tuple[DeviceLayer, ...]
    output_norm: Any
    head: Any  # the same array as `embedding` where the model ties them
    inv_freq: Any

    @classmethod
    def upload(cls, model: Model, device: Device, progress: bool) -> "DeviceWeights":
        """Copy the weights tensor by tensor, with a progress bar."""
        total = model.config.layers * 9 + 2
        with tqdm(
            total=total,
            desc="weights to the device",
            unit="tensor",
            disable=not progress,
            leave=False,
        ) as bar:

            def put(host: np.ndarray) -> Any:
                array = device.array(np.asarray(host))
                bar.update()
                return array

            def matrix(m: Q4Matrix) -> DeviceMatrix:
                return DeviceMatrix(put(m.blocks), m.rows, m.blocks_per_row)

            layers = tuple(
                DeviceLayer(
                    attention_norm=put(layer.attention_norm),
                    wq=matrix(layer.wq),
                    wk=matrix(layer.wk),
                    wv=matrix(layer.wv),
                    wo=matrix(layer.wo),
                    ffn_norm=put(layer.ffn_norm),
                    w_gate=matrix(layer.w_gate),
                    w_up=matrix(layer.w_up),
                    w_down=matrix(layer.w_down),
                )
                for layer in model.layers
            )
            embedding = put(model.embedding.float32())
            head = (
                embedding if model.head is model.embedding else device.array(model.head.float32())
            )
            return cls(
                embedding, layers, put(model.output_norm), head, device.array(model.inv_freq)
            )


@dataclass(frozen=True)
class State:
    """What a forward pass reads and writes on the device."""

    tokens: Any  # int32 [context + 1]
    argmaxes: (
        Any  # int32 [context + 1]: the best token at each generated position, whichever was drawn
    )
    position: Any  # int32 [1]
    given: Any  # int32 [1]: how many tokens came from outside
    best: Any  # int32 [1], the argmax of the logits
    drawn: Any  # int32 [1], the token that sampling chose
    choice: Any  # float32 [2]: temperature and top_p
    seed: Any  # int32 [1]
    x: Any  # float32 [dim], the residual stream
    normed: Any  # float32 [dim]
    qkv: Any  # float32 [(heads + 2 * kv_heads) * head_dim]: q, k and v
    q: Any  # float32 [heads, head_dim]
    k: Any  # float32 [kv_heads, head_dim]
    v: Any  # float32 [kv_heads, head_dim]
    scores: Any  # float32 [heads, context], scratch of three-pass attention
    attended: Any  # float32 [heads, head_dim]
    projected: Any  # float32 [dim], what a sublayer adds to x
    gate: Any  # float32 [ffn_dim]
    up: Any  # float32 [ffn_dim]
    hidden: Any  # float32 [ffn_dim]
    logits: Any  # float32 [vocab]

    @classmethod
    def allocate(cls, device: Device, config: Config, context: int) -> "State":
        """Room for one position's activations, and `context` tokens and one more."""

        def floats(*shape: int) -> Any:
            return device.empty(shape, np.float32)

        c = config
        qkv = floats(c.q_dim + 2 * c.kv_dim)
        q, k, v = qkv[: c.q_dim], qkv[c.q_dim : c.q_dim + c.kv_dim], qkv[c.q_dim + c.kv_dim :]
        return cls(
            tokens=device.empty(context + 1, np.int32),
            argmaxes=device.empty(context + 1, np.int32),
            position=device.empty(1, np.int32),
            given=device.empty(1, np.int32),
            best=device.array(np.zeros(1, np.int32)),
            drawn=device.empty(1, np.int32),
            choice=device.empty(2, np.float32),
            seed=device.empty(1, np.int32),
            x=floats(c.dim),
            normed=floats(c.dim),
            qkv=qkv,
            q=q.reshape(c.heads, c.head_dim),
            k=k.reshape(c.kv_heads, c.head_dim),
            v=v.reshape(c.kv_heads, c.head_dim),
            scores=floats(c.heads, context),
            attended=floats(c.heads, c.head_dim),
            projected=floats(c.dim),
            gate=floats(c.ffn_dim),
            up=floats(c.ffn_dim),
            hidden=floats(c.ffn_dim),
            logits=floats(c.vocab),
        )


def layers(
    plan: Mapping[str, str],
    c: Config,
    w: DeviceWeights,
    s: State,
    kv: KVCache,
    context: int,
    streams: int = 1,
) -> Iterator[Call]:
    """From the token at this position to the residual stream behind the last layer.

    `plan` says which ops there are: a fused one is called in place of those that it fuses. With several `streams`
    queries, keys and values are branches.
    """
    branches = [None] * 3 if streams == 1 else [i % streams for i in range(3)]

    # the token's embedding starts the residual stream
    yield Call(
        "embedding",
        dict(table=w.embedding, tokens=s.tokens, position=s.position, x=s.x, dim=c.dim),
    )

    for layer, keys, values in zip(w.layers, kv.keys, kv.values, strict=True):
        # attention: queries, keys and values of this position
        yield rmsnorm(s.x, layer.attention_norm, s.normed, c)
        yield _gemv(layer.wq, s.normed, s.q, branches[0])
        yield _gemv(layer.wk, s.normed, s.k, branches[1])
        yield _gemv(layer.wv, s.normed, s.v, branches[2])

        # rotate by the position, remember k and v, look back at all positions
        yield Call("rope_kv", dict(
            q=s.q, k=s.k, v=s.v, keys=keys, values=values, inv_freq=w.inv_freq, position=s.position,
            heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, rope_dim=c.rope_dim,
        ))  # fmt: skip
        yield Call("attention", dict(
            q=s.q, keys=keys, values=values, scores=s.scores, out=s.attended, position=s.position,
            heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, context=context,
        ))  # fmt: skip
        yield _gemv(layer.wo, s.attended, s.projected)
        yield Call("add", dict(x=s.x, y=s.projected, n=c.dim))

        # feed forward: hidden = silu(gate) * up, then back to the residual stream
        yield rmsnorm(s.x, layer.ffn_norm, s.normed, c)
        if "ffn_swiglu" in plan:
            yield Call("ffn_swiglu", dict(
                W_gate=layer.w_gate.blocks, W_up=layer.w_up.blocks, x=s.normed, hidden=s.hidden,
                rows=c.ffn_dim, blocks_per_row=layer.w_gate.blocks_per_row,
            ))  # fmt: skip
        else:
            yield _gemv(layer.w_gate, s.normed, s.gate)
            yield _gemv(layer.w_up, s.normed, s.up)
            yield Call("swiglu", dict(gate=s.gate, up=s.up, hidden=s.hidden, n=c.ffn_dim))
        yield _gemv(layer.w_down, s.hidden, s.projected)
        yield Call("add", dict(x=s.x, y=s.projected, n=c.dim))


def head(c: Config, w: DeviceWeights, s: State) -> Iterator[Call]:
    """From the residual stream to the logits and the best token."""
    yield rmsnorm(s.x, w.output_norm, s.normed, c)
    yield Call("logits", dict(W=w.head, x=s.normed, y=s.logits, vocab=c.vocab, dim=c.dim))
    yield Call("argmax", dict(logits=s.logits, best=s.best, vocab=c.vocab))


def sample(c: Config, s: State) -> Call:
    """Draw a token from the logits."""
    return Call(
        "sample",
        dict(
            logits=s.logits, best=s.best, choice=s.choice, seed=s.seed, position=s.position,
            drawn=s.drawn, vocab=c.vocab,
        ),
    )  # fmt: skip


def advance(s: State, following: Any) -> Call:
    """On to the next position; behind the given tokens, with the token in `following` (best or drawn)."""
    return Call(
        "advance",
        dict(
            following=following, best=s.best, tokens=s.tokens, argmaxes=s.argmaxes, position=s.position,
            given=s.given,
        ),
    )  # fmt: skip


def rmsnorm(x: Any, weight: Any, y: Any, c: Config) -> Call:
    return Call("rmsnorm", dict(x=x, weight=weight, y=y, dim=c.dim, eps=np.float32(c.eps)))


def _gemv(w: DeviceMatrix, x: Any, y: Any, branch: int | None = None) -> Call:
    args = dict(W=w.blocks, x=x, y=y, rows=w.rows, blocks_per_row=w.blocks_per_row)
    return Call("gemv_q4_0", args, branch)
