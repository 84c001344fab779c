"""A file becomes a Model: what stays as it is, what is requantised, and what is refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_document
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType

from sovereign_lab.errors import LabError
from sovereign_lab.models import reference
from sovereign_lab.models.gguf_file import open_gguf
from sovereign_lab.models.model import build_model, load_model
from sovereign_lab.models.synthetic import SyntheticShape, write_synthetic

Rewrite = Callable[..., Path]

Q, EMBEDDING = "blk.0.attn_q.weight", "token_embd.weight"


def test_config_comes_from_the_metadata(tiny: Path, tiny_shape: SyntheticShape) -> None:
    config = load_model(tiny).config
    assert (config.architecture, config.name) == ("llama", "tiny")
    for name in ("layers", "dim", "ffn_dim", "heads", "kv_heads", "head_dim", "vocab", "context"):
        assert getattr(config, name) == getattr(tiny_shape, name)
    assert (config.rope_dim, config.rope_base) == (32, 10000.0)
    assert config.eps == pytest.approx(1e-5)
    assert (config.q_dim, config.kv_dim) == (128, 64)


def test_q4_0_stays_byte_for_byte(tiny: Path) -> None:
    file, model = open_gguf(tiny), load_model(tiny)
    w_down = model.layers[1].w_down
    assert w_down.blocks.tobytes() == file.raw("blk.1.ffn_down.weight").tobytes()
    assert (w_down.rows, w_down.cols, w_down.blocks_per_row) == (64, 96, 3)
    assert w_down.blocks.shape == (64, 3 * 18) and w_down.blocks.flags.c_contiguous
    np.testing.assert_array_equal(w_down.float32(), file.float32("blk.1.ffn_down.weight"))
    assert model.notices == ()


def test_the_head_is_the_embedding_where_the_file_ties_them(tiny: Path, rewrite: Rewrite) -> None:
    untied, tied = load_model(tiny), load_model(rewrite(tensors={"output.weight": None}))
    assert untied.head is not untied.embedding
    assert tied.head is tied.embedding


def test_a_table_gives_rows_as_the_whole_has_them(tiny: Path) -> None:
    table = load_model(tiny).embedding
    whole = table.float32()
    assert whole.shape == (400, 64) and table.nbytes == 400 * 2 * 34
    np.testing.assert_array_equal(table.take([7, 0, 7, 399]), whole[[7, 0, 7, 399]])


@pytest.mark.parametrize("type", [Type.Q4_1, Type.Q5_0, Type.Q8_0, Type.F16, Type.BF16, Type.F32])
def test_other_types_are_requantised_with_a_notice(
    type: Type, tiny: Path, rewrite: Rewrite
) -> None:
    rng = np.random.default_rng(8)
    w = rng.standard_normal((128, 64)).astype(np.float32) / 8
    path = rewrite(tensors={Q: (type, gguf.quants.quantize(w, type))})
    model = load_model(path)
    assert np.linalg.norm(model.layers[0].wq.float32() - w) / np.linalg.norm(w) < 0.12
    (notice,) = model.notices
    assert notice.startswith(f"1 {type.name} matrices were requantised to Q4_0")
    assert (
        model.layers[0].wk.blocks.tobytes() == open_gguf(tiny).raw("blk.0.attn_k.weight").tobytes()
    )


def test_k_quants_are_decoded(rewrite: Rewrite, tmp_path: Path) -> None:
    shape = SyntheticShape(1, 256, 64, 4, 2, 64, 300)
    path = write_synthetic(tmp_path / "wide.gguf", shape)
    blocks = np.random.default_rng(9).integers(0, 256, (300, 210), np.uint8)
    blocks[:, 208:] = np.frombuffer(np.float16(0.0005).tobytes(), np.uint8)
    q6_k = {"output.weight": (Type.Q6_K, blocks), Q: (Type.Q6_K, blocks[:256])}
    changed = rewrite(source=path, tensors=q6_k)
    model = load_model(changed)
    expected = gguf.quants.dequantize(blocks, Type.Q6_K)
    np.testing.assert_array_equal(model.head.float32(), expected)
    np.testing.assert_array_equal(model.head.take([299, 2]), expected[[299, 2]])
    assert model.notices[0].startswith("1 Q6_K matrices were requantised")
    assert np.isfinite(reference.forward(model, [1, 2])).all()


def test_requantise_false_keeps_the_original(rewrite: Rewrite) -> None:
    file = open_gguf(rewrite(types={Q: Type.Q8_0}))
    model = build_model(file, requantise=False)
    np.testing.assert_array_equal(model.layers[0].wq.float32(), file.float32(Q))
    assert model.notices == ()
    assert np.isfinite(reference.forward(model, [1, 2, 3])).all()


def test_norms_are_widened(tiny: Path, rewrite: Rewrite) -> None:
    expected = load_model(tiny).output_norm
    model = load_model(rewrite(types={"output_norm.weight": Type.F16}))
    assert model.output_norm.dtype == np.float32
    np.testing.assert_allclose(model.output_norm, expected, rtol=1e-3)


def test_rope_frequencies(tiny: Path, rewrite: Rewrite) -> None:
    plain = load_model(tiny).inv_freq
    np.testing.assert_allclose(plain, 10000.0 ** (-np.arange(0, 32, 2) / 32), rtol=1e-6)
    assert plain.dtype == np.float32

    other = load_model(
        rewrite({"llama.rope.freq_base": 500.0, "llama.rope.dimension_count": 16})
    ).inv_freq
    np.testing.assert_allclose(other, 500.0 ** (-np.arange(0, 16, 2) / 16), rtol=1e-6)

    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    np.testing.assert_allclose(load_model(rewrite(linear)).inv_freq, plain / 4, rtol=1e-6)
    unscaled = linear | {"llama.rope.scaling.type": "none"}
    np.testing.assert_array_equal(load_model(rewrite(unscaled)).inv_freq, plain)

    factors = np.linspace(1, 8, 16, dtype=np.float32)
    path = rewrite(tensors={"rope_freqs.weight": (Type.F32, factors)})
    np.testing.assert_allclose(load_model(path).inv_freq, plain / factors, rtol=1e-6)


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"general.architecture": "qwen2"}, r"general.architecture at offset 24 is 'qwen2'; only 'llama'"),
        ({"llama.block_count": None}, "the metadata lacks llama.block_count"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "lacks llama.attention.layer_norm_rms"),
        ({"llama.block_count": 0}, r"llama.block_count at offset \d+ is 0; one size was expected"),
        ({"llama.block_count": 3}, "no tensor 'blk.2.attn_q.weight'"),
        ({"llama.block_count": 1}, r"blk.1.attn_q.weight at offset \d+ has no place in a plain 'llama' model"),
        ({"llama.embedding_length": 96}, r"has the shape \(400, 64\), but .* \(400, 96\)"),
        ({"llama.feed_forward_length": 128}, r"blk.0.ffn_gate.weight at offset \d+ has the shape \(96, 64\)"),
        ({"llama.attention.head_count_kv": 1}, r"attn_k.* shape \(64, 64\), but .* \(32, 64\)"),
        ({"llama.attention.head_count_kv": 3}, "head_count is a multiple of"),
        ({"llama.attention.value_length": 64}, "head size of keys and values is the same"),
        ({"llama.rope.dimension_count": 64}, "is even and at most the head size"),
        ({"llama.rope.scaling.type": "yarn"}, "RoPE scaling 'yarn'"),
        ({"llama.rope.freq_base": float("nan")}, r"llama.rope.freq_base at offset \d+ is nan"),
        ({"llama.vocab_size": 500}, "vocab_size is the count of embedding rows"),
        ({"llama.expert_count": 8}, "a mixture of experts"),
        ({"llama.block_count": 2**24 - 1}, "no tensor 'blk.2.attn_q.weight'"),
        ({"llama.block_count": 2**31}, r"block_count at offset \d+ is 2147483648; one size"),
        ({"llama.rope.scaling.factor": True}, r"factor at offset \d+ is True; a number above 0"),
        ({"llama.rope.freq_base": 1e-45}, "frequencies beyond float32"),
        ({"tokenizer.ggml.model": "bert"}, r"tokenizer.ggml.model at offset \d+ names the family"),
        ({"tokenizer.ggml.scores": [1.5]}, r"scores at offset \d+ holds 1 values, where 400"),
    ],
)  # fmt: skip
def test_metadata_that_cannot_be_followed(
    metadata: dict[str, Any], sentence: str, rewrite: Rewrite
) -> None:
    path = rewrite(metadata)
    with pytest.raises(LabError, match=sentence) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


def test_a_size_for_each_layer_is_refused(tmp_path: Path) -> None:
    document = gguf_document.llama(gguf_document.sentencepiece_vocabulary(), 283)
    heads = document.value("llama.attention.head_count")
    heads.kind, heads.element, heads.content = GGUFValueType.ARRAY, GGUFValueType.UINT32, [2, 2]
    path = tmp_path / "by_layer.gguf"
    path.write_bytes(gguf_document.write(document)[0])
    with pytest.raises(LabError, match=r"head_count at offset \d+ is \[2, 2\]; one size"):
        load_model(path)


def test_a_vocabulary_of_another_size_than_the_embedding(tiny: Path, rewrite: Rewrite) -> None:
    lists = ("tokens", "scores", "token_type")
    metadata = open_gguf(tiny).metadata
    fewer = {f"tokenizer.ggml.{name}": metadata[f"tokenizer.ggml.{name}"][:-1] for name in lists}
    with pytest.raises(LabError, match=r"tokens at offset \d+ has 399 tokens, but .* 400 rows"):
        load_model(rewrite(fewer))


def test_a_scale_that_is_not_finite_is_found_where_it_is(tiny: Path, rewrite: Rewrite) -> None:
    """For every type with fp16 scales, and for those whose weights have to be looked at."""
    for type in (Type.Q4_0, Type.Q4_1, Type.Q5_1, Type.Q8_0, Type.F16, Type.BF16, Type.F32):
        whole = open_gguf(rewrite(types={Q: type}))
        info = whole.info(Q)
        weights_a_block, block_bytes = gguf.GGML_QUANT_SIZES[type]
        for wrong in (b"\x00\x7c", b"\x01\x7e", b"\x00\xfc"):  # fp16's infinity, NaN, -infinity
            damaged = bytearray(whole.raw(Q).tobytes())
            if type in (Type.BF16, Type.F32):
                wrong = b"\x80\x7f" if type == Type.BF16 else b"\0\0\x80\x7f"
            damaged[7 * block_bytes : 7 * block_bytes + len(wrong)] = wrong
            rows = np.frombuffer(bytes(damaged), np.uint8).reshape(128, -1)
            path = rewrite(tensors={Q: (type, rows)})
            place = open_gguf(path).info(Q).offset + 7 * block_bytes
            assert info.nbytes == len(damaged) and weights_a_block <= 32
            with pytest.raises(LabError, match=f"attn_q.weight at offset {place} holds a scale"):
                load_model(path)


def test_what_q4_0_cannot_hold_is_refused_and_not_clipped(rewrite: Rewrite) -> None:
    large = np.zeros((128, 64), np.float32)
    large[3, 5] = -6e5
    with pytest.raises(LabError, match=r"a weight of 6e\+05, beyond what Q4_0 can hold"):
        load_model(rewrite(tensors={Q: (Type.F32, large)}))


def test_a_fault_in_the_last_tensor_is_found_before_anything_is_requantised(
    rewrite: Rewrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quantise(*_: object) -> None:
        raise AssertionError("requantised in vain")

    monkeypatch.setattr("sovereign_lab.models.model.quantise_q4_0", quantise)
    last = "blk.1.ffn_norm.weight"
    for tensors in (
        {last: (Type.F32, np.full(64, np.nan, np.float32))},
        {last: (Type.F32, np.zeros(32, np.float32))},
        {last: None},
    ):
        with pytest.raises(LabError, match=last):
            load_model(rewrite(tensors=tensors, types={Q: Type.F16}))


def infinite_scale(blocks: np.ndarray) -> np.ndarray:
    damaged = blocks.copy()
    damaged[5 * 18 : 5 * 18 + 2] = [0x00, 0x7C]
    return damaged


def test_tensors_that_cannot_be_run(tiny: Path, rewrite: Rewrite) -> None:
    file = open_gguf(tiny)
    cases: list[tuple[dict[str, Any], str]] = [
        ({Q: (Type.I8, np.zeros((128, 64), np.uint8))}, r"attn_q.weight at offset \d+ has the type I8, which"),
        ({"blk.0.attn_q.bias": (Type.F32, np.zeros(128, np.float32))}, r"attn_q.bias at offset \d+ has no place"),
        ({Q: (Type.Q4_0, infinite_scale(file.raw(Q)).reshape(128, 36))}, "attn_q.*not finite"),
        ({"output_norm.weight": (Type.F32, np.full(64, np.nan, np.float32))}, "norm.*not finite"),
        ({Q: (Type.F32, np.full((128, 64), np.inf, np.float32))}, "attn_q.weight.*not finite"),
        ({"output_norm.weight": None}, "no tensor 'output_norm.weight'"),
        ({"rope_freqs.weight": (Type.F32, np.zeros(16, np.float32))}, "factors that are not pos"),
        ({"rope_freqs.weight": (Type.F32, np.ones(9, np.float32))}, r"has the shape \(9,\)"),
    ]  # fmt: skip
    for tensors, sentence in cases:
        with pytest.raises(LabError, match=sentence):
            load_model(rewrite(tensors=tensors))
