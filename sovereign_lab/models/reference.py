"""The forward pass in NumPy, float32: the truth that every kernel is checked against.

Every function is the definition of one op. `forward` is the whole model, teacher-forced: it reads
as the model itself, and runs all positions of a sequence at once.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sovereign_lab.errors import LabError
from sovereign_lab.models.model import Config, Layer, Model, Q4Matrix
from sovereign_lab.models.tiles import q8_0_float32

Floats = npt.NDArray[np.float32]
Observer = Callable[[int, str, Floats], None]


def rmsnorm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; x [..., dim], weight [dim]."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    scale = (1 / np.sqrt(mean_square + np.float32(eps))).astype(np.float32)
    return x * scale * weight


def rope(x: Floats, positions: npt.ArrayLike, inv_freq: Floats) -> Floats:
    """Rotate the pairs (2i, 2i+1) of the first rope_dim dimensions by position * inv_freq[i] rad.

    x [..., heads, head_dim], positions shaped as x without its last two dimensions, inv_freq
    [rope_dim / 2] -> a new array like x. Llama's GGUF files hold wq and wk permuted to suit.
    """
    # The product in float64: far into a long context, float32 angles lose digits before the sine.
    angles = np.asarray(positions, np.float64)[..., None, None] * inv_freq.astype(np.float64)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    rope_dim = 2 * len(inv_freq)
    even, odd = x[..., 0:rope_dim:2], x[..., 1:rope_dim:2]
    rotated = np.array(x, np.float32)
    rotated[..., 0:rope_dim:2] = even * cos - odd * sin
    rotated[..., 1:rope_dim:2] = even * sin + odd * cos
    return rotated


def softmax(x: Floats) -> Floats:
    """exp(x) / sum(exp(x)) over the last dimension, shifted so that nothing overflows."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(
    q: Floats, keys: npt.NDArray[np.floating], values: npt.NDArray[np.floating]
) -> Floats:
    """One position attends to n: q [heads, head_dim], keys and values [n, kv_heads, head_dim].

    Query head h reads KV head h // (heads / kv_heads). Returns float32 [heads, head_dim].
    """
    return causal_attention(q[None], keys, values)[0]


def causal_attention(
    q: Floats, keys: npt.NDArray[np.floating], values: npt.NDArray[np.floating]
) -> Floats:
    """The last len(q) of n positions attend, each to itself and all before it.

    q [t, heads, head_dim], keys and values [n, kv_heads, head_dim], t <= n -> [t, heads, head_dim].
    """
    t, heads, head_dim = q.shape
    n, kv_heads, _ = keys.shape
    group = heads // kv_heads
    hidden = np.arange(n)[None, :] > np.arange(n - t, n)[:, None]
    out = np.empty((t, heads, head_dim), np.float32)
    for kv_head in range(kv_heads):
        k = keys[:, kv_head].astype(np.float32)
        v = values[:, kv_head].astype(np.float32)
        members = slice(kv_head * group, (kv_head + 1) * group)
        scores = q[:, members].reshape(t * group, head_dim) @ k.T / np.float32(np.sqrt(head_dim))
        scores = np.where(hidden[:, None], np.float32(-np.inf), scores.reshape(t, group, n))
        mixed = softmax(scores).reshape(t * group, n) @ v
        out[:, members] = mixed.reshape(t, group, head_dim)
    return out


def half(x: Floats) -> Floats:
    """Rounded to 16 bits, and back to float32."""
    return x.astype(np.float16).astype(np.float32)


def int8(x: Floats) -> Floats:
    """Rounded as kernels take activations for `__dp4a`: by blocks of 32 to whole multiples of the largest / 127.

    x [..., n], n a multiple of 32; llama.cpp's Q8_0, but for a scale that is not rounded to half.
    """
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    levels = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
    return (levels * scale).astype(np.float32).reshape(x.shape)


def silu(x: Floats) -> Floats:
    """x / (1 + exp(-x))."""
    # Where exp overflows, the quotient is the 0 that it should be.
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def swiglu(gate: Floats, up: Floats) -> Floats:
    """silu(gate) * up, element by element."""
    return silu(gate) * up


def forward(
    model: Model,
    tokens: Sequence[int],
    kv_dtype: npt.DTypeLike = np.float16,
    progress: bool = False,
    observe: Observer | None = None,
    halves: Collection[str] = (),
    int8_inputs: Collection[str] = (),
) -> Floats:
    """Logits at every position of a sequence: float32 [len(tokens), vocab].

    Keys (after RoPE) and values are rounded to kv_dtype, float16 or float32, as the engine's cache
    rounds them; all else is float32. One matrix is unpacked at a time. observe is called before
    each product with a matrix: index of the layer, field of Layer, input [len(tokens), cols].
    halves: fields of Layer; in products with these both factors are rounded to half, as Tensor
    Cores take them. int8_inputs: fields of Layer, and "head": the product's input is rounded by `int8`, and the
    head's weights to Q8_0. Raises LabError where tokens are none, out of the vocabulary, or more than the context.
    """
    config = model.config
    ids = _checked(tokens, config)
    t = len(ids)
    positions = np.arange(t)
    x = model.embedding.take(ids)
    layers = tqdm(model.layers, "reference", unit="layer", leave=False, disable=not progress)
    for index, layer in enumerate(layers):

        def times(name: str, h: Floats, layer: Layer = layer, index: int = index) -> Floats:
            """h [t, cols] times the layer's matrix [rows, cols] of that name -> [t, rows]."""
            if observe is not None:
                observe(index, name, h)
            matrix: Q4Matrix = getattr(layer, name)
            w = matrix.float32()
            if name in halves:
                h, w = half(h), half(w)
            if name in int8_inputs:
                h = int8(h)
            return h @ w.T

        h = rmsnorm(x, layer.attention_norm, config.eps)
        q = times("wq", h).reshape(t, config.heads, config.head_dim)
        k = times("wk", h).reshape(t, config.kv_heads, config.head_dim)
        v = times("wv", h).reshape(t, config.kv_heads, config.head_dim)
        q, k = rope(q, positions, model.inv_freq), rope(k, positions, model.inv_freq)
        mixed = causal_attention(q, k.astype(kv_dtype), v.astype(kv_dtype))
        x = x + times("wo", mixed.reshape(t, config.q_dim))

        h = rmsnorm(x, layer.ffn_norm, config.eps)
        x = x + times("w_down", swiglu(times("w_gate", h), times("w_up", h)))
    h = rmsnorm(x, model.output_norm, config.eps)
    if "head" in int8_inputs:
        return int8(h) @ q8_0_float32(model.head).T
    return h @ model.head.float32().T


def kl_divergence(reference_logits: Floats, logits: Floats) -> float:
    """KL(softmax(reference_logits) || softmax(logits)) in nats, the mean over positions.

    Both are [positions, vocab]; computed in float64.
    """
    p, q = _log_softmax(reference_logits), _log_softmax(logits)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def _log_softmax(logits: Floats) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _checked(tokens: Sequence[int], config: Config) -> npt.NDArray[np.int_]:
    ids = np.asarray(tokens, np.int_)
    if ids.ndim != 1 or not 0 < len(ids) <= config.context:
        raise LabError(
            f"the reference takes 1 to {config.context} tokens (the context of {config.name}), "
            f"not an array of the shape {ids.shape}"
        )
    if ids.min() < 0 or ids.max() >= config.vocab:
        raise LabError(
            f"token ids of {config.name} are 0 to {config.vocab - 1}; got {ids.tolist()}"
        )
    return ids
