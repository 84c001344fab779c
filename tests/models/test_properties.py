"""What holds for any weights and any text, not only for those that somebody thought of."""

from __future__ import annotations

import functools
from typing import Any

import gguf
import gguf_document
import hypothesis.extra.numpy as arrays
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_texts import TEXTS

from sovereign_lab.models import catalog
from sovereign_lab.models.gguf_file import open_gguf
from sovereign_lab.models.quants import (
    quantise_q4_0,
    quantise_q4_0_plain,
    relative_rms_error,
    unpack_q4_0,
)
from sovereign_lab.models.tokenizer import Tokenizer, tokenizer_from_metadata

# The same examples in every run: a test that fails by luck tells a newcomer nothing. No deadline,
# since a busy machine is no fault.
same_every_time = settings(max_examples=100, derandomize=True, deadline=None, database=None)

# -- quantise, dequantise --

sizes = st.tuples(st.integers(1, 3), st.integers(1, 3).map(lambda blocks: 32 * blocks))
weights = arrays.arrays(np.float32, sizes, elements=st.floats(-5e5, 5e5, width=32))
blocks = arrays.arrays(np.uint8, st.tuples(st.integers(1, 3), st.just(36)))


@same_every_time
@given(weights)
def test_quantised_weights_are_within_a_step(w: np.ndarray) -> None:
    """Plain rounding: the largest weight is level -8, so the far end may be clipped by one step."""
    unpacked = unpack_q4_0(quantise_q4_0_plain(w))
    largest = np.abs(w.reshape(-1, 32)).max(axis=1, keepdims=True)
    error = np.abs(unpacked - w).reshape(-1, 32)
    # A step is largest / 8; fp16 rounds it by 2^-11 of itself, or by 2^-25 where it is subnormal.
    assert (error <= largest / 8 * (1 + 1e-2) + 8 * 2.0**-24).all()


@same_every_time
@given(weights)
def test_the_scale_search_never_loses(w: np.ndarray) -> None:
    def errors(quantised: np.ndarray) -> np.ndarray:
        difference = unpack_q4_0(quantised).astype(np.float64) - w
        return (difference.reshape(-1, 32) ** 2).sum(axis=1)

    plain, searched = errors(quantise_q4_0_plain(w)), errors(quantise_q4_0(w))
    # Weights below fp16's smallest step, and the float32 sums of the search, leave some slack.
    slack = 1e-5 * (w.astype(np.float64).reshape(-1, 32) ** 2).sum(axis=1) + 1e-12
    assert (searched <= plain + slack).all()


@same_every_time
@given(weights, st.sampled_from([quantise_q4_0, quantise_q4_0_plain]))
def test_quantising_the_result_again_changes_nothing_much(w: np.ndarray, quantise: Any) -> None:
    once = unpack_q4_0(quantise(w))
    assert np.isfinite(once).all()
    again = unpack_q4_0(quantise(once))
    # Weights from one level to the other are as they were unless fp16 cannot hold the scale exactly.
    assert relative_rms_error(again, once) <= relative_rms_error(once, w) + 0.1


@same_every_time
@given(blocks)
def test_unpacking_any_finite_blocks_is_what_gguf_does(raw: np.ndarray) -> None:
    raw.reshape(-1, 18)[:, 1] &= 0x7B  # no infinite scales
    np.testing.assert_array_equal(unpack_q4_0(raw), gguf.quants.dequantize(raw, Type.Q4_0))


# -- tokenise, detokenise --


@functools.cache
def tokenizer(name: str) -> Tokenizer:
    if name == "storyteller":
        return tokenizer_from_metadata(open_gguf(catalog.resolve(name)).metadata)
    make = {
        "sentencepiece": gguf_document.sentencepiece_vocabulary,
        "byte level": gguf_document.byte_level_vocabulary,
    }[name]
    metadata: dict[str, Any] = {}
    for value in make():
        plain = value.content
        if Kind.STRING in (value.kind, value.element):
            plain = plain.decode() if value.element is None else [item.decode() for item in plain]
        metadata[value.key.decode()] = plain
    return tokenizer_from_metadata(metadata)


names = st.sampled_from(["sentencepiece", "byte level", "storyteller"])
# Any character of Unicode; what the vocabularies have tokens for; and texts known to be awkward.
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text("the once 日é\n\t  ▁<>|/s0x\u0301\u200d🎉"),
    st.lists(st.sampled_from(TEXTS), max_size=3).map("".join),
)


def as_read(text: str, name: str) -> str:
    """The text as the vocabulary's family can tell it: to SentencePiece, `▁` is a space."""
    return text if name == "byte level" else text.replace("▁", " ")


@same_every_time
@given(names, texts)
def test_text_comes_back(name: str, text: str) -> None:
    decoded = tokenizer(name).decode(tokenizer(name).encode(text, special=False))
    assert decoded in (text, as_read(text, name))


@same_every_time
@given(names, texts)
def test_ids_are_in_the_vocabulary_and_bos_is_there_once(name: str, text: str) -> None:
    chosen = tokenizer(name)
    plain = chosen.encode(text, bos=False, special=False)
    assert all(0 <= token_id < chosen.vocab_size for token_id in plain)
    assert chosen.bos_id not in plain
    assert chosen.encode(text, bos=True, special=False) == [chosen.bos_id, *plain]


@same_every_time
@given(names, texts)
def test_a_stream_is_the_text_in_whole_characters(name: str, text: str) -> None:
    chosen = tokenizer(name)
    stream = chosen.stream()
    pieces = [stream.push(i) for i in chosen.encode(text, bos=False, special=False)]
    assert stream.finish() == "", "a part of a character was held back"
    assert "".join(pieces).count("�") == text.count("�")
    streamed = "".join(pieces)
    assert streamed in (text, as_read(text, name), " " + as_read(text, name))


@same_every_time
@given(names, st.data())
def test_any_ids_decode_and_a_stream_of_them_never_takes_back(
    name: str, data: st.DataObject
) -> None:
    chosen = tokenizer(name)
    ids = data.draw(st.lists(st.integers(0, chosen.vocab_size - 1)))
    stream = chosen.stream()
    streamed = "".join(map(stream.push, ids)) + stream.finish()
    assert streamed.removeprefix(" ") == chosen.decode(ids).removeprefix(" ")


@same_every_time
@given(names, texts, texts)
def test_special_tokens_cut_the_text(name: str, before: str, after: str) -> None:
    """A special token between two texts leaves what each would be by itself."""
    chosen = tokenizer(name)
    end = chosen.eos_id
    assert end is not None
    spelling = chosen._texts[end]
    whole = chosen.encode(before.replace("<", "") + spelling + after.replace("<", ""), bos=False)
    alone = [chosen.encode(part.replace("<", ""), bos=False) for part in (before, after)]
    assert whole == [*alone[0], end, *alone[1]]
