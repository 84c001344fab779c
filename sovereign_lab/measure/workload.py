"""The arguments of a launch at the true size of a model, from a seed: what a kernel is measured on without its weights.

Every op has one function here that makes its arguments, in the order of the signature. A new op is a new function
and a line in the table at the end.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sovereign_lab.errors import LabError
from sovereign_lab.kernels.persistent_op import NOT_YET, STAMPS, largest_tile, message_words
from sovereign_lab.kernels.registry import Op
from sovereign_lab.kernels.tile_ops import SPLIT
from sovereign_lab.models import synthetic
from sovereign_lab.models.catalog import DEFAULT, entries, resolve
from sovereign_lab.models.gguf_file import open_gguf
from sovereign_lab.models.model import Config, read_config
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS, split_q4_0
from sovereign_lab.models.tiles import Q8_0_BYTES, tile_q4_0, tile_q8_0

Arguments = dict[str, Any]  # parameter name -> NumPy array or scalar, in the order of the signature
Random = np.random.Generator

# The KV cache of an engine that is asked for nothing else, and what kernels are compiled with for it.
KV_DTYPE = np.float16
DEFINES = {"KV": "half"}
# Tokens of a block of a prompt, in the ops that take many at once.
COUNT = 64
# Blocks of the persistent kernel. All must be resident on whatever GPU this is; an engine gives every SM one.
BLOCKS = 16
# Positions that the KV cache and the token buffer have room for behind the current one.
ROOM = 64


def config_of(model: str | None = None) -> Config:
    """The shape of a model: a name of the catalog (None: the default), or the path of a GGUF file.

    Nothing is downloaded or made for a model whose shape is known without its file. Raises LabError as `resolve` and
    `read_config` do.
    """
    name = model or DEFAULT
    shape = synthetic.SHAPES.get(name.removeprefix(synthetic.PREFIX))
    if shape is None or any(e.name == name and e.present for e in entries()):
        return read_config(open_gguf(resolve(name)))
    return Config(
        architecture="llama", name=name, layers=shape.layers, dim=shape.dim, ffn_dim=shape.ffn_dim,
        heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, rope_dim=shape.head_dim,
        rope_base=shape.rope_base, eps=1e-5, context=shape.context, vocab=shape.vocab,
    )  # fmt: skip


def workload(
    op: Op, config: Config, position: int = 63, seed: int = 0, count: int = COUNT
) -> Arguments:
    """The arguments of `op`'s first launch in a forward pass of a model of this shape, at `position`.

    For products in Q4_0 that is WQ, or what is fused with it, and WO for gemv_add; for logits the whole head. NumPy
    arrays and scalars, in the order of the signature; the same arguments give the same values. Outputs that are not
    inputs hold NaN or -1, and so does the KV cache (fp16, `KV_DTYPE`; compile with `DEFINES`) behind the positions that
    are filled. The context is `position` + 1 + `ROOM`. An op of many tokens takes `count` of them, from `position` on,
    and the context is that much longer; one of several sequences takes `count` sequences, all at `position`.

    Raises LabError for a position that the model does not have, and for an op that no function here knows.
    """
    if not 0 <= position < config.context:
        raise LabError(
            f"{config.name} has positions 0 to {config.context - 1:,}; got position {position:,}."
        )
    if op.name in _OF_TOKENS:
        return _OF_TOKENS[op.name](config, position, count, np.random.default_rng(seed))
    if op.name not in _MAKERS:
        raise LabError(
            f"There is no workload for op {op.name}: add a function to sovereign_lab/measure/workload.py, "
            f"as there is for {', '.join([*_MAKERS, *_OF_TOKENS])}."
        )
    return _MAKERS[op.name](config, position, np.random.default_rng(seed))


def _normal(rng: Random, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _poison(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def _int1(value: int) -> np.ndarray:
    return np.array([value], np.int32)


def _q4_0(rng: Random, rows: int, cols: int) -> np.ndarray:
    """Random blocks, uint8 [rows, cols / 32 * 18], whose weights have a root mean square of 1 / sqrt(cols)."""
    blocks = rng.integers(0, 256, (rows, cols // BLOCK_WEIGHTS, BLOCK_BYTES), np.uint8)
    # A uniform nibble less 8 has a mean square of 21.5.
    scales = np.full(blocks.shape[:2], (21.5 * cols) ** -0.5, np.float16)
    blocks[..., :2] = scales[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def _cache(rng: Random, c: Config, filled: int, context: int) -> np.ndarray:
    cache = np.full((context, c.kv_heads, c.head_dim), np.nan, KV_DTYPE)
    cache[:filled] = _normal(rng, filled, c.kv_heads, c.head_dim)
    return cache


def _tokens(rng: Random, c: Config, position: int) -> np.ndarray:
    return rng.integers(0, c.vocab, position + 1 + ROOM + 1, np.int32)


def _embedding(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        table=_normal(rng, c.vocab, c.dim), tokens=_tokens(rng, c, position), position=_int1(position),
        x=_poison(c.dim), dim=c.dim,
    )  # fmt: skip


def _rmsnorm(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        x=_normal(rng, c.dim), weight=_normal(rng, c.dim), y=_poison(c.dim), dim=c.dim,
        eps=np.float32(c.eps),
    )  # fmt: skip


def _gemv_q4_0(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        W=_q4_0(rng, c.q_dim, c.dim), x=_normal(rng, c.dim), y=_poison(c.q_dim),
        rows=c.q_dim, blocks_per_row=c.dim // BLOCK_WEIGHTS,
    )  # fmt: skip


def _rope_kv(c: Config, position: int, rng: Random) -> Arguments:
    context = position + 1 + ROOM
    inv_freq = c.rope_base ** (-np.arange(0, c.rope_dim, 2) / c.rope_dim)
    return dict(
        q=_normal(rng, c.heads, c.head_dim), k=_normal(rng, c.kv_heads, c.head_dim),
        v=_normal(rng, c.kv_heads, c.head_dim), keys=_cache(rng, c, position, context),
        values=_cache(rng, c, position, context), inv_freq=inv_freq.astype(np.float32),
        position=_int1(position), heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim,
        rope_dim=c.rope_dim,
    )  # fmt: skip


def _attention(c: Config, position: int, rng: Random) -> Arguments:
    context = position + 1 + ROOM
    return dict(
        q=_normal(rng, c.heads, c.head_dim), keys=_cache(rng, c, position + 1, context),
        values=_cache(rng, c, position + 1, context), scores=_poison(c.heads, context),
        out=_poison(c.heads, c.head_dim), position=_int1(position), heads=c.heads,
        kv_heads=c.kv_heads, head_dim=c.head_dim, context=context,
    )  # fmt: skip


def _swiglu(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        gate=_normal(rng, c.ffn_dim), up=_normal(rng, c.ffn_dim), hidden=_poison(c.ffn_dim),
        n=c.ffn_dim,
    )  # fmt: skip


def _ffn_swiglu(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        W_gate=_q4_0(rng, c.ffn_dim, c.dim), W_up=_q4_0(rng, c.ffn_dim, c.dim),
        x=_normal(rng, c.dim), hidden=_poison(c.ffn_dim), rows=c.ffn_dim,
        blocks_per_row=c.dim // BLOCK_WEIGHTS,
    )  # fmt: skip


def _add(c: Config, position: int, rng: Random) -> Arguments:
    return dict(x=_normal(rng, c.dim), y=_normal(rng, c.dim), n=c.dim)


def _logits(c: Config, position: int, rng: Random) -> Arguments:
    # About as large as a trained model's logits, so that an argmax or a sampler behind it sees a likeliest token.
    table = _normal(rng, c.vocab, c.dim) * np.float32(3 * c.dim**-0.5)
    return dict(W=table, x=_normal(rng, c.dim), y=_poison(c.vocab), vocab=c.vocab, dim=c.dim)


def _argmax(c: Config, position: int, rng: Random) -> Arguments:
    return dict(logits=3 * _normal(rng, c.vocab), best=_int1(-1), vocab=c.vocab)


def _sample(c: Config, position: int, rng: Random) -> Arguments:
    logits = 3 * _normal(rng, c.vocab)
    return dict(
        logits=logits, best=_int1(int(np.argmax(logits))), choice=np.array([0.8, 0.95], np.float32),
        seed=_int1(0), position=_int1(position), drawn=_int1(-1), vocab=c.vocab,
    )  # fmt: skip


def _advance(c: Config, position: int, rng: Random) -> Arguments:
    # One token was given, so from position 0 on the chosen one is fed back.
    following, best = (_int1(int(token)) for token in rng.integers(0, c.vocab, 2))
    tokens = _tokens(rng, c, position)
    return dict(
        following=following, best=best, tokens=tokens, argmaxes=np.full_like(tokens, -1),
        position=_int1(position), given=_int1(1),
    )  # fmt: skip


def _halves(*shape: int) -> np.ndarray:
    return _poison(*shape).astype(np.float16)


def _embedding_tokens(c: Config, position: int, count: int, rng: Random) -> Arguments:
    return dict(
        table=_normal(rng, c.vocab, c.dim), tokens=_tokens(rng, c, position + count), position=_int1(position),
        x=_poison(count, c.dim), dim=c.dim, count=count,
    )  # fmt: skip


def _rmsnorm_tokens(c: Config, position: int, count: int, rng: Random) -> Arguments:
    return dict(
        x=_normal(rng, count, c.dim), weight=_normal(rng, c.dim), y=_halves(count, c.dim), dim=c.dim,
        eps=np.float32(c.eps), count=count,
    )  # fmt: skip


def _gemm_q4_0(c: Config, position: int, count: int, rng: Random) -> Arguments:
    nibbles, scales = split_q4_0(_q4_0(rng, c.q_dim, c.dim))
    return dict(
        nibbles=nibbles, scales=scales, x=_normal(rng, count, c.dim).astype(np.float16),
        y=_poison(count, c.q_dim), rows=c.q_dim, blocks_per_row=c.dim // BLOCK_WEIGHTS, count=count,
        accumulate=0,
    )  # fmt: skip


def _rope_kv_tokens(c: Config, position: int, count: int, rng: Random) -> Arguments:
    context = position + count + ROOM
    inv_freq = c.rope_base ** (-np.arange(0, c.rope_dim, 2) / c.rope_dim)
    return dict(
        qkv=_normal(rng, count, c.q_dim + 2 * c.kv_heads * c.head_dim),
        q=_halves(count, c.heads, c.head_dim), keys=_cache(rng, c, position, context),
        values=_cache(rng, c, position, context), inv_freq=inv_freq.astype(np.float32),
        position=_int1(position), heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim,
        rope_dim=c.rope_dim, count=count,
    )  # fmt: skip


def _attention_tokens(c: Config, position: int, count: int, rng: Random) -> Arguments:
    context = position + count + ROOM
    return dict(
        q=_normal(rng, count, c.heads, c.head_dim).astype(np.float16),
        keys=_cache(rng, c, position + count, context), values=_cache(rng, c, position + count, context),
        out=_halves(count, c.q_dim), position=_int1(position), heads=c.heads, kv_heads=c.kv_heads,
        head_dim=c.head_dim, count=count,
    )  # fmt: skip


def _swiglu_tokens(c: Config, position: int, count: int, rng: Random) -> Arguments:
    return dict(
        gate_up=_normal(rng, count, 2 * c.ffn_dim), hidden=_halves(count, c.ffn_dim), n=c.ffn_dim,
        count=count,
    )  # fmt: skip


# ---- several sequences, all at the same position: `count` of them ----


def _at(position: int, count: int) -> np.ndarray:
    return np.full(count, position, np.int32)


def _regions(rng: Random, c: Config, filled: int, context: int, count: int) -> np.ndarray:
    return np.stack([_cache(rng, c, filled, context) for _ in range(count)])


def _embedding_batch(c: Config, position: int, count: int, rng: Random) -> Arguments:
    context = position + 1 + ROOM
    return dict(
        table=_normal(rng, c.vocab, c.dim), tokens=rng.integers(0, c.vocab, (count, context + 1), np.int32),
        position=_at(position, count), x=_poison(count, c.dim), dim=c.dim, context=context, count=count,
    )  # fmt: skip


def _rope_kv_batch(c: Config, position: int, count: int, rng: Random) -> Arguments:
    context = position + 1 + ROOM
    inv_freq = c.rope_base ** (-np.arange(0, c.rope_dim, 2) / c.rope_dim)
    return dict(
        qkv=_normal(rng, count, c.q_dim + 2 * c.kv_heads * c.head_dim),
        q=_poison(count, c.heads, c.head_dim), keys=_regions(rng, c, position, context, count),
        values=_regions(rng, c, position, context, count), inv_freq=inv_freq.astype(np.float32),
        position=_at(position, count), active=_at(1, count), heads=c.heads, kv_heads=c.kv_heads,
        head_dim=c.head_dim, rope_dim=c.rope_dim, context=context, count=count,
    )  # fmt: skip


def _attention_batch(c: Config, position: int, count: int, rng: Random) -> Arguments:
    context = position + 1 + ROOM
    return dict(
        q=_normal(rng, count, c.heads, c.head_dim),
        keys=_regions(rng, c, position + 1, context, count),
        values=_regions(rng, c, position + 1, context, count), out=_halves(count, c.q_dim),
        position=_at(position, count), active=_at(1, count), heads=c.heads, kv_heads=c.kv_heads,
        head_dim=c.head_dim, context=context, count=count,
    )  # fmt: skip


def _logits_batch(c: Config, position: int, count: int, rng: Random) -> Arguments:
    table = _normal(rng, c.vocab, c.dim) * np.float32(3 * c.dim**-0.5)
    return dict(
        W=table, x=_normal(rng, count, c.dim).astype(np.float16), y=_poison(count, c.vocab),
        vocab=c.vocab, dim=c.dim, count=count,
    )  # fmt: skip


def _argmax_batch(c: Config, position: int, count: int, rng: Random) -> Arguments:
    return dict(
        logits=3 * _normal(rng, count, c.vocab), best=_at(-1, count), vocab=c.vocab, count=count
    )


def _advance_batch(c: Config, position: int, count: int, rng: Random) -> Arguments:
    # Every sequence goes on: none is at its last token, and no token ends one.
    context = position + 1 + ROOM
    following, best = rng.integers(0, c.vocab, (2, count), np.int32)
    tokens = rng.integers(0, c.vocab, (count, context + 1), np.int32)
    return dict(
        following=following, best=best, ends=_int1(-1), last=_at(context, count), tokens=tokens,
        argmaxes=np.full_like(tokens, -1), position=_at(position, count), active=_at(1, count),
        ends_count=1, context=context, count=count,
    )  # fmt: skip


# ---- weights in tiles ----


def _tiles_q8_0(rng: Random, rows: int, cols: int) -> np.ndarray:
    """Random blocks of Q8_0 in tiles, whose weights have a root mean square of 3 / sqrt(cols)."""
    blocks = rng.integers(0, 256, (rows, cols // BLOCK_WEIGHTS, Q8_0_BYTES), np.uint8)
    # A uniform signed byte has a mean square of 5,461.5.
    scales = np.full(blocks.shape[:2], 3 * (5461.5 * cols) ** -0.5, np.float16)
    blocks[..., :2] = scales[..., None].view(np.uint8)
    return tile_q8_0(blocks.reshape(rows, -1))


def _gemv_tiles(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        W=tile_q4_0(_q4_0(rng, c.q_dim, c.dim)), x=_normal(rng, c.dim), y=_poison(c.q_dim),
        rows=c.q_dim, blocks_per_row=c.dim // BLOCK_WEIGHTS,
    )  # fmt: skip


def _ffn_tiles(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        W=tile_q4_0(_q4_0(rng, 2 * c.ffn_dim, c.dim)), x=_normal(rng, c.dim),
        hidden=_poison(c.ffn_dim), rows=c.ffn_dim, blocks_per_row=c.dim // BLOCK_WEIGHTS,
    )  # fmt: skip


def _logits_q8_0(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        W=_tiles_q8_0(rng, c.vocab, c.dim), x=_normal(rng, c.dim), y=_poison(c.vocab), vocab=c.vocab,
        blocks_per_row=c.dim // BLOCK_WEIGHTS,
    )  # fmt: skip


def _norm_qkv(c: Config, position: int, rng: Random) -> Arguments:
    context = position + 1 + ROOM
    inv_freq = c.rope_base ** (-np.arange(0, c.rope_dim, 2) / c.rope_dim)
    return dict(
        W=tile_q4_0(_q4_0(rng, c.q_dim + 2 * c.kv_dim, c.dim)), x=_normal(rng, c.dim),
        norm=_normal(rng, c.dim), inv_freq=inv_freq.astype(np.float32), position=_int1(position),
        q=_poison(c.heads, c.head_dim), keys=_cache(rng, c, position, context),
        values=_cache(rng, c, position, context), heads=c.heads, kv_heads=c.kv_heads,
        head_dim=c.head_dim, rope_dim=c.rope_dim, blocks_per_row=c.dim // BLOCK_WEIGHTS,
        eps=np.float32(c.eps),
    )  # fmt: skip


def _gemv_add(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        W=tile_q4_0(_q4_0(rng, c.dim, c.q_dim)), y=_normal(rng, c.q_dim), x=_normal(rng, c.dim),
        rows=c.dim, blocks_per_row=c.q_dim // BLOCK_WEIGHTS,
    )  # fmt: skip


def _norm_ffn(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        W=tile_q4_0(_q4_0(rng, 2 * c.ffn_dim, c.dim)), x=_normal(rng, c.dim),
        norm=_normal(rng, c.dim), hidden=_poison(c.ffn_dim), rows=c.ffn_dim,
        blocks_per_row=c.dim // BLOCK_WEIGHTS, eps=np.float32(c.eps),
    )  # fmt: skip


def _norm_logits(c: Config, position: int, rng: Random) -> Arguments:
    return dict(
        W=_tiles_q8_0(rng, c.vocab, c.dim), x=_normal(rng, c.dim), norm=_normal(rng, c.dim),
        y=_poison(c.vocab), vocab=c.vocab, blocks_per_row=c.dim // BLOCK_WEIGHTS,
        eps=np.float32(c.eps),
    )  # fmt: skip


def _attention_split(c: Config, position: int, rng: Random) -> Arguments:
    context = position + 1 + ROOM
    splits = -(-context // SPLIT)
    return dict(
        q=_normal(rng, c.heads, c.head_dim), keys=_cache(rng, c, position + 1, context),
        values=_cache(rng, c, position + 1, context), parts=_poison(splits, c.heads, c.head_dim),
        softmax=_poison(splits, c.heads, 2), position=_int1(position), heads=c.heads,
        kv_heads=c.kv_heads, head_dim=c.head_dim, context=context,
    )  # fmt: skip


def _attention_merge(c: Config, position: int, rng: Random) -> Arguments:
    splits, there = -(-(position + 1 + ROOM) // SPLIT), position // SPLIT + 1
    parts, softmax = _poison(splits, c.heads, c.head_dim), _poison(splits, c.heads, 2)
    parts[:there] = _normal(rng, there, c.heads, c.head_dim)
    softmax[:there] = rng.uniform(1, 20, (there, c.heads, 2))
    return dict(
        parts=parts, softmax=softmax, out=_poison(c.heads, c.head_dim), position=_int1(position),
        heads=c.heads, head_dim=c.head_dim, split=SPLIT,
    )  # fmt: skip


def _persistent(c: Config, position: int, rng: Random) -> Arguments:
    """One token, which the caller chooses from the logits, so that launches can be repeated at one position."""
    context = position + 1 + ROOM
    shapes = (
        (c.q_dim + 2 * c.kv_dim, c.dim), (c.dim, c.q_dim), (2 * c.ffn_dim, c.dim), (c.dim, c.ffn_dim)
    )  # fmt: skip
    # One layer's values in all layers: what a kernel is measured on depends on where they lie, not on what they are.
    layer = np.concatenate([tile_q4_0(_q4_0(rng, *shape)).reshape(-1) for shape in shapes])
    keys, values = (np.stack([_cache(rng, c, position, context)] * c.layers) for _ in range(2))
    words = message_words(c.dim, c.ffn_dim, c.heads, c.kv_heads, c.head_dim, context)
    inv_freq = c.rope_base ** (-np.arange(0, c.rope_dim, 2) / c.rope_dim)
    tokens = _tokens(rng, c, position)
    return dict(
        matrices=np.stack([layer] * c.layers), head=_tiles_q8_0(rng, c.vocab, c.dim),
        norms=_normal(rng, 2 * c.layers + 1, c.dim), embedding=_normal(rng, c.vocab, c.dim),
        inv_freq=inv_freq.astype(np.float32), keys=keys, values=values,
        messages=np.full((2, c.layers, words), NOT_YET, np.uint32),
        bests=np.full((3, BLOCKS, 2), NOT_YET, np.uint32), logits=_poison(c.vocab), best=_int1(-1), tokens=tokens,
        argmaxes=np.full_like(tokens, -1), position=_int1(position), given=_int1(1), turn=_int1(0),
        stamps=np.zeros(STAMPS * (c.layers + 1), np.int64), layers=c.layers, dim=c.dim, ffn_dim=c.ffn_dim,
        heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, rope_dim=c.rope_dim, vocab=c.vocab, context=context,
        eps=np.float32(c.eps), count=1, advance=0, ring_bytes=12 * largest_tile(c.dim, c.ffn_dim, c.q_dim),
    )  # fmt: skip


_MAKERS: dict[str, Callable[[Config, int, Random], Arguments]] = {
    "embedding": _embedding,
    "rmsnorm": _rmsnorm,
    "gemv_q4_0": _gemv_q4_0,
    "rope_kv": _rope_kv,
    "attention": _attention,
    "swiglu": _swiglu,
    "ffn_swiglu": _ffn_swiglu,
    "add": _add,
    "logits": _logits,
    "argmax": _argmax,
    "sample": _sample,
    "advance": _advance,
    "gemv_tiles": _gemv_tiles,
    "ffn_tiles": _ffn_tiles,
    "logits_q8_0": _logits_q8_0,
    "norm_qkv": _norm_qkv,
    "gemv_add": _gemv_add,
    "norm_ffn": _norm_ffn,
    "norm_logits": _norm_logits,
    "attention_split": _attention_split,
    "attention_merge": _attention_merge,
    "persistent": _persistent,
}
_OF_TOKENS: dict[str, Callable[[Config, int, int, Random], Arguments]] = {
    "embedding_tokens": _embedding_tokens,
    "rmsnorm_tokens": _rmsnorm_tokens,
    "gemm_q4_0": _gemm_q4_0,
    "rope_kv_tokens": _rope_kv_tokens,
    "attention_tokens": _attention_tokens,
    "swiglu_tokens": _swiglu_tokens,
    "embedding_batch": _embedding_batch,
    "gemm_q4_0_batch": _gemm_q4_0,
    "rope_kv_batch": _rope_kv_batch,
    "attention_batch": _attention_batch,
    "logits_batch": _logits_batch,
    "argmax_batch": _argmax_batch,
    "advance_batch": _advance_batch,
}
