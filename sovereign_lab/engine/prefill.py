"""Many tokens of a prompt at once: each matrix is read once for all of them, and multiplied on Tensor Cores.

The same forward pass as forward.py's, over a block of tokens. Activations between products are halves, as Tensor Cores
take them; the residual stream stays float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from sovereign_lab.devices import Device
from sovereign_lab.engine.forward import Call, DeviceWeights, State
from sovereign_lab.engine.kv_cache import KVCache
from sovereign_lab.models.model import Config, Model, Q4Matrix
from sovereign_lab.models.quants import split_q4_0

# Tokens of a block. More do not make the products faster, and need more memory.
TOKENS = 512


@dataclass(frozen=True)
class SplitMatrix:
    """A Q4_0 matrix with nibbles and scales apart, each aligned: see split_q4_0."""

    nibbles: Any  # uint32 [rows, blocks_per_row * 4]
    scales: Any  # float16 [rows, blocks_per_row, rounded up to even]
    rows: int
    blocks_per_row: int


@dataclass(frozen=True)
class SplitLayer:
    """One layer's matrices; those that share an input are one matrix, their rows one behind the other."""

    wqkv: SplitMatrix
    wo: SplitMatrix
    w_gate_up: SplitMatrix
    w_down: SplitMatrix


def upload(model: Model, device: Device, progress: bool) -> tuple[SplitLayer, ...]:
    """Copy every layer's matrices in this layout."""

    def joined(*matrices: Q4Matrix) -> SplitMatrix:
        nibbles, scales = split_q4_0(np.concatenate([m.blocks for m in matrices]))
        rows = sum(m.rows for m in matrices)
        return SplitMatrix(
            device.array(nibbles), device.array(scales), rows, matrices[0].blocks_per_row
        )

    bar = tqdm(model.layers, "weights for prefill", unit="layer", disable=not progress, leave=False)
    return tuple(
        SplitLayer(
            wqkv=joined(layer.wq, layer.wk, layer.wv),
            wo=joined(layer.wo),
            w_gate_up=joined(layer.w_gate, layer.w_up),
            w_down=joined(layer.w_down),
        )
        for layer in bar
    )


@dataclass(frozen=True)
class BlockState:
    """What a pass over up to TOKENS tokens reads and writes between its launches."""

    x: Any  # float32 [TOKENS, dim], the residual stream
    normed: Any  # float16 [TOKENS, dim]
    qkv: Any  # float32 [TOKENS, (heads + 2 * kv_heads) * head_dim]
    q: Any  # float16 [TOKENS, heads, head_dim]
    attended: Any  # float16 [TOKENS, heads * head_dim]
    gate_up: Any  # float32 [TOKENS, 2 * ffn_dim]
    hidden: Any  # float16 [TOKENS, ffn_dim]

    @classmethod
    def allocate(cls, device: Device, c: Config) -> "BlockState":
        """Room for TOKENS tokens."""
        return cls(
            x=device.empty((TOKENS, c.dim), np.float32),
            normed=device.empty((TOKENS, c.dim), np.float16),
            qkv=device.empty((TOKENS, c.q_dim + 2 * c.kv_heads * c.head_dim), np.float32),
            q=device.empty((TOKENS, c.heads, c.head_dim), np.float16),
            attended=device.empty((TOKENS, c.q_dim), np.float16),
            gate_up=device.empty((TOKENS, 2 * c.ffn_dim), np.float32),
            hidden=device.empty((TOKENS, c.ffn_dim), np.float16),
        )


def block(
    c: Config,
    w: DeviceWeights,
    split: tuple[SplitLayer, ...],
    s: State,
    b: BlockState,
    kv: KVCache,
    count: int,
) -> Iterator[Call]:
    """`count` tokens from the device's position on: fills their places in the KV cache."""
    yield Call(
        "embedding_tokens",
        dict(
            table=w.embedding, tokens=s.tokens, position=s.position, x=b.x, dim=c.dim, count=count
        ),
    )
    for layer, m, keys, values in zip(w.layers, split, kv.keys, kv.values, strict=True):
        # attention: queries, keys and values of every token, then each looks back at all before it
        yield rmsnorm(b.x, layer.attention_norm, b.normed, c, count)
        yield product(m.wqkv, b.normed, b.qkv, count)
        yield Call("rope_kv_tokens", dict(
            qkv=b.qkv, q=b.q, keys=keys, values=values, inv_freq=w.inv_freq, position=s.position,
            heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, rope_dim=c.rope_dim, count=count,
        ))  # fmt: skip
        yield Call("attention_tokens", dict(
            q=b.q, keys=keys, values=values, out=b.attended, position=s.position,
            heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, count=count,
        ))  # fmt: skip
        yield product(m.wo, b.attended, b.x, count, accumulate=True)

        # feed forward
        yield rmsnorm(b.x, layer.ffn_norm, b.normed, c, count)
        yield product(m.w_gate_up, b.normed, b.gate_up, count)
        yield Call(
            "swiglu_tokens", dict(gate_up=b.gate_up, hidden=b.hidden, n=c.ffn_dim, count=count)
        )
        yield product(m.w_down, b.hidden, b.x, count, accumulate=True)


def rmsnorm(x: Any, weight: Any, y: Any, c: Config, count: int) -> Call:
    """y float16 [count, dim] from x float32 [count, dim]."""
    args = dict(x=x, weight=weight, y=y, dim=c.dim, eps=np.float32(c.eps), count=count)
    return Call("rmsnorm_tokens", args)


def product(
    m: SplitMatrix, x: Any, y: Any, count: int, accumulate: bool = False, op: str = "gemm_q4_0"
) -> Call:
    """y float32 [count, rows] = x float16 [count, cols] times the matrix, by `op`; or added to what is there."""
    return Call(op, dict(
        nibbles=m.nibbles, scales=m.scales, x=x, y=y, rows=m.rows, blocks_per_row=m.blocks_per_row,
        count=count, accumulate=int(accumulate),
    ))  # fmt: skip
