"""The reference against a second implementation: plain loops in float64, written from the paper.

Nothing is shared with the code under test, unpacking included, so that a mistake would have to be
made twice.
"""

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from sovereign_lab.errors import LabError
from sovereign_lab.models import reference
from sovereign_lab.models.gguf_file import GGUFFile, open_gguf
from sovereign_lab.models.model import load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

Matrix = list[list[float]]

SHAPES = {
    "9/3": SyntheticShape(2, 96, 64, 9, 3, 32, 300),
    "32/4": SyntheticShape(1, 64, 96, 32, 4, 32, 280),
    "4/2, tied": SyntheticShape(2, 64, 96, 4, 2, 64, 300, tied=True, rope_base=500.0),
    "3/3": SyntheticShape(1, 96, 32, 3, 3, 128, 270),
}
TOKENS = [1, 77, 261, 77, 5]


def rows_of(file: GGUFFile, name: str) -> Matrix:
    """A Q4_0 or Q8_0 matrix as lists of floats, decoded byte by byte."""
    info = file.info(name)
    raw = file.raw(name).tobytes()
    rows, cols = info.shape
    half = info.type.name == "Q4_0"
    size = 18 if half else 34
    weights: list[float] = []
    for start in range(0, len(raw), size):
        (d,) = struct.unpack_from("<e", raw, start)
        payload = raw[start + 2 : start + size]
        if half:
            numbers = [(b & 15) - 8 for b in payload] + [(b >> 4) - 8 for b in payload]
        else:
            numbers = list(struct.unpack("<32b", payload))
        weights += [d * number for number in numbers]
    return [weights[row * cols : (row + 1) * cols] for row in range(rows)]


def times(matrix: Matrix, x: list[float]) -> list[float]:
    return [math.fsum(a * b for a, b in zip(row, x, strict=True)) for row in matrix]


def normed(x: list[float], weight: list[float], eps: float) -> list[float]:
    size = math.sqrt(sum(value * value for value in x) / len(x) + eps)
    return [value / size * w for value, w in zip(x, weight, strict=True)]


def turned(head: list[float], position: int, base: float) -> list[float]:
    out = []
    for i in range(0, len(head), 2):
        angle = position * base ** (-i / len(head))
        a, b = head[i], head[i + 1]
        out += [
            a * math.cos(angle) - b * math.sin(angle),
            a * math.sin(angle) + b * math.cos(angle),
        ]
    return out


def rounded(x: list[float], kv: str) -> list[float]:
    return [struct.unpack(kv, struct.pack(kv, value))[0] for value in x]


def attended(q: list[float], keys: Matrix, values: Matrix) -> list[float]:
    scores = [sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)) for k in keys]
    shares = [math.exp(score - max(scores)) for score in scores]
    return [
        sum(share * v[i] for share, v in zip(shares, values, strict=True)) / sum(shares)
        for i in range(len(q))
    ]


def plain_loops(file: GGUFFile, shape: SyntheticShape, tokens: list[int], kv: str) -> Matrix:
    """Logits of one token after another; kv is the struct code of the cache's numbers."""
    embedding = rows_of(file, "token_embd.weight")
    head = embedding if shape.tied else rows_of(file, "output.weight")
    vectors = {name: file.float32(name).tolist() for name in file.tensors if "norm" in name}
    eps = file.metadata["llama.attention.layer_norm_rms_epsilon"]
    size, group = shape.head_dim, shape.heads // shape.kv_heads
    weights = {
        name: rows_of(file, name)
        for name in file.tensors
        if name.startswith("blk") and "norm" not in name
    }
    keys: dict[tuple[int, int], Matrix] = {}
    values: dict[tuple[int, int], Matrix] = {}
    logits = []
    for position, token in enumerate(tokens):
        x = embedding[token]
        for layer in range(shape.layers):
            at = f"blk.{layer}."
            h = normed(x, vectors[f"{at}attn_norm.weight"], eps)
            q, k, v = (times(weights[f"{at}attn_{name}.weight"], h) for name in "qkv")
            for kv_head in range(shape.kv_heads):
                part = slice(kv_head * size, (kv_head + 1) * size)
                key = rounded(turned(k[part], position, shape.rope_base), kv)
                keys.setdefault((layer, kv_head), []).append(key)
                values.setdefault((layer, kv_head), []).append(rounded(v[part], kv))
            mixed = []
            for index in range(shape.heads):
                of = (layer, index // group)
                turned_q = turned(q[index * size : (index + 1) * size], position, shape.rope_base)
                mixed += attended(turned_q, keys[of], values[of])
            out = times(weights[f"{at}attn_output.weight"], mixed)
            x = [a + b for a, b in zip(x, out, strict=True)]
            h = normed(x, vectors[f"{at}ffn_norm.weight"], eps)
            gate, up = (times(weights[f"{at}ffn_{name}.weight"], h) for name in ("gate", "up"))
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
            out = times(weights[f"{at}ffn_down.weight"], inner)
            x = [a + b for a, b in zip(x, out, strict=True)]
        logits.append(times(head, normed(x, vectors["output_norm.weight"], eps)))
    return logits


@pytest.mark.parametrize("name", SHAPES)
def test_forward_is_what_plain_loops_compute(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    path = write_synthetic(tmp_path / "shape.gguf", shape, seed=11)
    model = load_model(path)
    for kv_dtype, code, tolerance in ((np.float32, "<f", 1e-5), (np.float16, "<e", 1e-3)):
        expected = np.array(plain_loops(open_gguf(path), shape, TOKENS, code))
        found = reference.forward(model, TOKENS, kv_dtype)
        assert found.shape == (len(TOKENS), shape.vocab) and found.dtype == np.float32
        distance = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert distance < tolerance
        assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()


def test_a_longer_sequence_does_not_change_what_came_before(tiny: Path) -> None:
    model = load_model(tiny)
    tokens = np.random.default_rng(0).integers(0, 400, 20).tolist()
    whole = reference.forward(model, tokens)
    np.testing.assert_allclose(reference.forward(model, tokens[:7]), whole[:7], atol=2e-4)


def test_rope_turns_neighbours_by_the_position() -> None:
    inv_freq = np.array([1.0, 0.25], np.float32)
    x = np.zeros((1, 6), np.float32)
    x[0, [0, 2, 4]] = 1
    turned_x = reference.rope(x[None], [2], inv_freq)[0, 0]
    expected = [math.cos(2), math.sin(2), math.cos(0.5), math.sin(0.5), 1, 0]
    np.testing.assert_allclose(turned_x, expected, atol=1e-7)
    np.testing.assert_array_equal(reference.rope(x[None], [0], inv_freq)[0], x)
    np.testing.assert_array_equal(reference.rope(x, 2, inv_freq)[0], turned_x)


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (32, 4), (4, 2), (5, 5)])
def test_a_query_head_reads_the_kv_head_of_its_group(heads: int, kv_heads: int) -> None:
    q = np.ones((heads, 32), np.float32)
    keys = np.zeros((3, kv_heads, 32), np.float32)
    values = np.broadcast_to(np.arange(kv_heads, dtype=np.float32)[:, None], keys.shape)
    out = reference.attention(q, keys, values)
    group = heads // kv_heads
    np.testing.assert_allclose(out[:, 0], [head // group for head in range(heads)], atol=1e-6)


def test_attention_survives_scores_past_the_range_of_exp() -> None:
    q = np.full((1, 64), 100, np.float32)
    keys = np.stack([np.full((1, 64), value, np.float32) for value in (1, 2)])
    values = np.stack([np.full((1, 64), value, np.float32) for value in (-1, 5)])
    np.testing.assert_array_equal(reference.attention(q, keys, values), np.full((1, 64), 5))


def test_swiglu_and_its_limits() -> None:
    gate = np.array([-200, -1, 0, 1, 200], np.float32)
    up = np.full(5, 2, np.float32)
    expected = [0, -2 / (1 + math.e), 0, 2 / (1 + 1 / math.e), 400]
    np.testing.assert_allclose(reference.swiglu(gate, up), expected, rtol=1e-6)


def test_kl_divergence() -> None:
    p = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
    q = np.log(np.array([[0.25, 0.75], [0.9, 0.1]], np.float32)) + 7
    expected = (0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)) / 2
    assert reference.kl_divergence(p, q) == pytest.approx(expected, abs=1e-6)
    assert reference.kl_divergence(p, p) == 0


def test_forward_refuses_tokens_that_do_not_fit(tiny: Path) -> None:
    model = load_model(tiny)
    for tokens in ([], [1] * 1025):
        with pytest.raises(LabError, match="takes 1 to 1024 tokens"):
            reference.forward(model, tokens)
    for token in (-1, 400):
        with pytest.raises(LabError, match="ids of tiny are 0 to 399"):
            reference.forward(model, [token])


def test_the_observer_sees_the_input_of_every_matrix(tiny: Path) -> None:
    seen: list[tuple[int, str, tuple[int, ...]]] = []
    model = load_model(tiny)
    reference.forward(model, [1, 2, 3], observe=lambda i, name, x: seen.append((i, name, x.shape)))
    names = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")
    for layer in (0, 1):
        for name in names:
            cols = getattr(model.layers[layer], name).cols
            assert (layer, name, (3, cols)) in seen
    assert len(seen) == 2 * len(names)
