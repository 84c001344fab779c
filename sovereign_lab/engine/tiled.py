"""The forward pass of one position over weights in tiles: phases 10 to 12, the steps of forward.py in fewer launches.

Activations go into a product as int8, a scale for every 32; the head is in Q8_0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from sovereign_lab.devices import Device
from sovereign_lab.engine.forward import Call, DeviceLayer, DeviceWeights, State, rmsnorm
from sovereign_lab.engine.kv_cache import KVCache
from sovereign_lab.kernels.tile_ops import SPLIT
from sovereign_lab.models.model import Config, Layer, Model
from sovereign_lab.models.tiles import q8_0_blocks, tile_q4_0, tile_q8_0


@dataclass(frozen=True)
class TiledMatrix:
    """A matrix in tiles on the device: `tiles` is uint32 [rows / 4, words], rounded up."""

    tiles: Any
    rows: int
    blocks_per_row: int


@dataclass(frozen=True)
class TiledLayer:
    """One layer's matrices; those that share an input are one. Rows of gate and up take turns."""

    wqkv: TiledMatrix
    wo: TiledMatrix
    w_gate_up: TiledMatrix
    w_down: TiledMatrix


@dataclass(frozen=True)
class TiledWeights:
    """The model on the device in tiles. The layers' matrices and norms are parts of `matrices` and `norms`."""

    matrices: Any  # uint32 [layers, words of a layer]
    layers: tuple[TiledLayer, ...]
    head: TiledMatrix
    norms: (
        Any  # float32 [2 * layers + 1, dim]: attention, feed forward, ...; the last before the head
    )

    @classmethod
    def upload(cls, model: Model, device: Device, progress: bool) -> "TiledWeights":
        """Put every matrix in tiles, a layer at a time."""
        c = model.config
        shapes = [
            (c.q_dim + 2 * c.kv_dim, c.dim),
            (c.dim, c.q_dim),
            (2 * c.ffn_dim, c.dim),
            (c.dim, c.ffn_dim),
        ]
        matrices: Any = None
        layers = []
        bar = tqdm(
            model.layers, "weights in tiles", unit="layer", disable=not progress, leave=False
        )
        for i, layer in enumerate(bar):
            tiles = [tile_q4_0(blocks) for blocks in _joined(layer)]
            whole = np.concatenate([t.reshape(-1) for t in tiles])
            if matrices is None:
                matrices = device.empty((c.layers, whole.size), np.uint32)
            device.update(matrices[i], whole)
            parts, at = [], 0
            for (rows, cols), t in zip(shapes, tiles, strict=True):
                part = matrices[i][at : at + t.size].reshape(t.shape)
                parts.append(TiledMatrix(part, rows, cols // 32))
                at += t.size
            layers.append(TiledLayer(*parts))
        head = TiledMatrix(device.array(tile_q8_0(q8_0_blocks(model.head))), c.vocab, c.dim // 32)
        norms = [n for layer in model.layers for n in (layer.attention_norm, layer.ffn_norm)]
        return cls(
            matrices, tuple(layers), head, device.array(np.stack([*norms, model.output_norm]))
        )


def _joined(layer: Layer) -> Iterator[np.ndarray]:
    """The blocks of a layer's four matrices, uint8 [rows, blocks_per_row * 18]."""
    yield np.concatenate([m.blocks for m in (layer.wq, layer.wk, layer.wv)])
    yield layer.wo.blocks
    gate, up = layer.w_gate.blocks, layer.w_up.blocks
    yield np.stack([gate, up], axis=1).reshape(2 * len(gate), -1)
    yield layer.w_down.blocks


@dataclass(frozen=True)
class SplitState:
    """What the splits of a context leave for each other."""

    parts: Any  # float32 [splits, heads, head_dim]
    softmax: Any  # float32 [splits, heads, 2]: the largest scaled score, the sum of weights

    @classmethod
    def allocate(cls, device: Device, c: Config, context: int) -> "SplitState":
        """Room for all splits of `context` positions."""
        splits = -(-context // SPLIT)
        return cls(
            device.empty((splits, c.heads, c.head_dim), np.float32),
            device.empty((splits, c.heads, 2), np.float32),
        )


def layers(
    plan: Mapping[str, str],
    c: Config,
    w: DeviceWeights,
    t: TiledWeights,
    s: State,
    split: SplitState | None,
    kv: KVCache,
    context: int,
) -> Iterator[Call]:
    """From the token at this position to the residual stream behind the last layer; `plan` says how much is fused."""
    yield Call(
        "embedding",
        dict(table=w.embedding, tokens=s.tokens, position=s.position, x=s.x, dim=c.dim),
    )
    for norms, m, keys, values in zip(w.layers, t.layers, kv.keys, kv.values, strict=True):
        yield from _queries(plan, c, w, norms, m, s, keys, values)
        yield from _attention(c, s, split, keys, values, context)
        yield from _back(plan, m.wo, s.attended, s, c)
        if "norm_ffn" in plan:
            yield Call("norm_ffn", dict(
                W=m.w_gate_up.tiles, x=s.x, norm=norms.ffn_norm, hidden=s.hidden, rows=c.ffn_dim,
                blocks_per_row=m.w_gate_up.blocks_per_row, eps=np.float32(c.eps),
            ))  # fmt: skip
        else:
            yield rmsnorm(s.x, norms.ffn_norm, s.normed, c)
            yield Call("ffn_tiles", dict(
                W=m.w_gate_up.tiles, x=s.normed, hidden=s.hidden, rows=c.ffn_dim,
                blocks_per_row=m.w_gate_up.blocks_per_row,
            ))  # fmt: skip
        yield from _back(plan, m.w_down, s.hidden, s, c)


def head(
    plan: Mapping[str, str], c: Config, w: DeviceWeights, t: TiledWeights, s: State
) -> Iterator[Call]:
    """From the residual stream to the logits and the best token."""
    if "norm_logits" in plan:
        yield Call("norm_logits", dict(
            W=t.head.tiles, x=s.x, norm=w.output_norm, y=s.logits, vocab=c.vocab,
            blocks_per_row=t.head.blocks_per_row, eps=np.float32(c.eps),
        ))  # fmt: skip
    else:
        yield rmsnorm(s.x, w.output_norm, s.normed, c)
        yield Call("logits_q8_0", dict(
            W=t.head.tiles, x=s.normed, y=s.logits, vocab=c.vocab, blocks_per_row=t.head.blocks_per_row,
        ))  # fmt: skip
    yield Call("argmax", dict(logits=s.logits, best=s.best, vocab=c.vocab))


def _queries(
    plan: Mapping[str, str],
    c: Config,
    w: DeviceWeights,
    norms: DeviceLayer,
    m: TiledLayer,
    s: State,
    keys: Any,
    values: Any,
) -> Iterator[Call]:
    """Queries, keys and values of this position, rotated and remembered."""
    shape = dict(heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, rope_dim=c.rope_dim)
    if "norm_qkv" in plan:
        yield Call("norm_qkv", dict(
            W=m.wqkv.tiles, x=s.x, norm=norms.attention_norm, inv_freq=w.inv_freq, position=s.position,
            q=s.q, keys=keys, values=values, **shape, blocks_per_row=m.wqkv.blocks_per_row,
            eps=np.float32(c.eps),
        ))  # fmt: skip
        return
    yield rmsnorm(s.x, norms.attention_norm, s.normed, c)
    yield _product(m.wqkv, s.normed, s.qkv)
    yield Call("rope_kv", dict(
        q=s.q, k=s.k, v=s.v, keys=keys, values=values, inv_freq=w.inv_freq, position=s.position, **shape,
    ))  # fmt: skip


def _attention(
    c: Config, s: State, split: SplitState | None, keys: Any, values: Any, context: int
) -> Iterator[Call]:
    """Look back at all positions: a head a block, or in splits that meet."""
    shape = dict(heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, context=context)
    if split is None:
        yield Call("attention", dict(
            q=s.q, keys=keys, values=values, scores=s.scores, out=s.attended, position=s.position, **shape,
        ))  # fmt: skip
        return
    yield Call("attention_split", dict(
        q=s.q, keys=keys, values=values, parts=split.parts, softmax=split.softmax, position=s.position, **shape,
    ))  # fmt: skip
    yield Call("attention_merge", dict(
        parts=split.parts, softmax=split.softmax, out=s.attended, position=s.position, heads=c.heads,
        head_dim=c.head_dim, split=SPLIT,
    ))  # fmt: skip


def _back(plan: Mapping[str, str], m: TiledMatrix, y: Any, s: State, c: Config) -> Iterator[Call]:
    """x += W y."""
    if "gemv_add" in plan:
        yield Call(
            "gemv_add",
            dict(W=m.tiles, y=y, x=s.x, rows=m.rows, blocks_per_row=m.blocks_per_row),
        )
        return
    yield _product(m, y, s.projected)
    yield Call("add", dict(x=s.x, y=s.projected, n=c.dim))


def _product(m: TiledMatrix, x: Any, y: Any) -> Call:
    args = dict(W=m.tiles, x=x, y=y, rows=m.rows, blocks_per_row=m.blocks_per_row)
    return Call("gemv_tiles", args)
