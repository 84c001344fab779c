"""A GGUF file as plain lists, to be written to bytes right or wrong: what `gguf` would refuse to write.

`write` also tells where each field of the header came to lie, so that a test can damage a field by
its kind in place of bytes at random.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind

CODES = {
    Kind.UINT8: "B", Kind.INT8: "b", Kind.UINT16: "H", Kind.INT16: "h", Kind.UINT32: "I",
    Kind.INT32: "i", Kind.FLOAT32: "f", Kind.BOOL: "?", Kind.UINT64: "Q", Kind.INT64: "q",
    Kind.FLOAT64: "d",
}  # fmt: skip


class Span(NamedTuple):
    """A field of the header: bytes at..at + nbytes, and what they are."""

    at: int
    nbytes: int
    what: str


@dataclass
class Value:
    """A metadata value; content is a number, bytes, or a list of either with their kind."""

    key: bytes
    kind: int
    content: Any
    element: int | None = None


@dataclass
class Tensor:
    """A tensor; dims in GGUF's order, columns first. shift is added to the offset in the header."""

    name: bytes
    dims: list[int]
    type: int
    data: bytes
    shift: int = 0


@dataclass
class Document:
    """A whole file; alignment is what the writer follows, whatever the metadata may say."""

    values: list[Value] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    alignment: int = 32
    version: int = 3
    order: str = "<"

    def value(self, key: str) -> Value:
        """The first metadata value of this key."""
        return next(value for value in self.values if value.key == key.encode())


def write(document: Document) -> tuple[bytes, list[Span]]:
    """The file's bytes, and the fields of its header in the order of their offsets."""
    out, spans = bytearray(b"GGUF"), [Span(0, 4, "magic")]

    def put(what: str, content: bytes) -> None:
        spans.append(Span(len(out), len(content), what))
        out.extend(content)

    def number(what: str, code: str, value: Any) -> None:
        put(what, struct.pack(document.order + code, value))

    def text(content: bytes) -> None:
        number("length", "Q", len(content))
        put("text", content)

    def scalar(kind: int, content: Any) -> None:
        if kind == Kind.STRING:
            text(content)
        else:
            number("number", CODES[Kind(kind)], content)

    number("version", "I", document.version)
    number("count", "Q", len(document.tensors))
    number("count", "Q", len(document.values))
    for value in document.values:
        text(value.key)
        number("type", "I", value.kind)
        if value.element is None:
            scalar(value.kind, value.content)
            continue
        number("type", "I", value.element)
        number("length", "Q", len(value.content))
        for content in value.content:
            scalar(value.element, content)

    offset = 0
    for tensor in document.tensors:
        text(tensor.name)
        number("dims", "I", len(tensor.dims))
        for dim in tensor.dims:
            number("dims", "Q", dim % 2**64)
        number("type", "I", tensor.type)
        number("offset", "Q", (offset + tensor.shift) % 2**64)
        offset += _up(len(tensor.data), document.alignment)
    out.extend(bytes(_up(len(out), document.alignment) - len(out)))
    for tensor in document.tensors:
        put("data", tensor.data)
        out.extend(bytes(_up(len(tensor.data), document.alignment) - len(tensor.data)))
    return bytes(out), spans


def _up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def number(key: str, content: float, kind: Kind | None = None) -> Value:
    """A metadata number: u32 or f32 if not told otherwise."""
    default = Kind.FLOAT32 if isinstance(content, float) else Kind.UINT32
    return Value(key.encode(), kind if kind is not None else default, content)


def text(key: str, content: str) -> Value:
    """A metadata string."""
    return Value(key.encode(), Kind.STRING, content.encode())


def array(key: str, content: list[Any], element: Kind) -> Value:
    """A metadata array; strings are encoded."""
    content = [item.encode() if isinstance(item, str) else item for item in content]
    return Value(key.encode(), Kind.ARRAY, content, element)


def matrix(name: str, type: Type, rows: int, cols: int, seed: int = 0) -> Tensor:
    """A tensor of small seeded weights; cols 1 row makes a vector of them."""
    weights = np.random.default_rng((seed, rows, cols)).standard_normal((rows, cols)) / cols**0.5
    if type in (Type.Q4_K, Type.Q6_K):  # which the library decodes but does not quantise
        bytes_a_block = gguf.GGML_QUANT_SIZES[type][1]
        blocks = np.full((rows * cols // 256, bytes_a_block), 0x11, np.uint8)
        data = blocks.tobytes()
    else:
        data = gguf.quants.quantize(weights.astype(np.float32), type).tobytes()
    return Tensor(name.encode(), [cols] if rows == 1 else [cols, rows], type, data)


def llama(
    vocabulary: list[Value],
    vocab: int,
    types: tuple[Type, ...] = (Type.Q4_0,),
    table: Type = Type.Q8_0,
    dim: int = 32,
    tied: bool = False,
) -> Document:
    """A model of one layer with 2 heads over 1 KV head; its matrices take the types in turn."""
    heads, kv_heads, ffn_dim = 2, 1, 2 * dim
    head_dim = dim // heads
    a_type = _in_turn(types)
    return Document(
        values=[
            text("general.architecture", "llama"),
            text("general.name", "a small file"),
            number("llama.block_count", 1),
            number("llama.context_length", 64),
            number("llama.embedding_length", dim),
            number("llama.feed_forward_length", ffn_dim),
            number("llama.attention.head_count", heads),
            number("llama.attention.head_count_kv", kv_heads),
            number("llama.attention.layer_norm_rms_epsilon", 1e-5),
            number("llama.rope.dimension_count", head_dim),
            number("llama.rope.freq_base", 10000.0),
            number("llama.vocab_size", vocab),
            *vocabulary,
        ],
        tensors=[
            matrix("token_embd.weight", table, vocab, dim),
            matrix("blk.0.attn_norm.weight", Type.F32, 1, dim),
            matrix("blk.0.attn_q.weight", next(a_type), dim, dim),
            matrix("blk.0.attn_k.weight", next(a_type), kv_heads * head_dim, dim),
            matrix("blk.0.attn_v.weight", next(a_type), kv_heads * head_dim, dim),
            matrix("blk.0.attn_output.weight", next(a_type), dim, dim),
            matrix("blk.0.ffn_norm.weight", Type.F32, 1, dim),
            matrix("blk.0.ffn_gate.weight", next(a_type), ffn_dim, dim),
            matrix("blk.0.ffn_up.weight", next(a_type), ffn_dim, dim),
            matrix("blk.0.ffn_down.weight", next(a_type), dim, ffn_dim),
            matrix("output_norm.weight", Type.F32, 1, dim),
            *([] if tied else [matrix("output.weight", table, vocab, dim)]),
        ],
    )


def _in_turn(types: tuple[Type, ...]) -> Iterator[Type]:
    while True:
        yield from types


def sentencepiece_vocabulary() -> list[Value]:
    """Bytes and a few tokens of the `llama` family: 283 in all."""
    pieces = [
        "▁",
        *"theonc",
        "▁t",
        "he",
        "▁the",
        "on",
        "ce",
        "▁on",
        "▁once",
        "é",
        "日",
        "▁▁",
        "▁▁▁▁",
    ]
    pieces += ["a", "b", "<|im_end|>"]
    tokens = ["<unk>", "<s>", "</s>", *map("<0x{:02X}>".format, range(256)), *pieces]
    tokens += [f"x{n}" for n in range(283 - len(tokens))]
    last = tokens.index("<|im_end|>")
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    types[last] = 3
    return [
        text("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", tokens, Kind.STRING),
        array("tokenizer.ggml.scores", [-float(n) for n in range(len(tokens))], Kind.FLOAT32),
        array("tokenizer.ggml.token_type", types, Kind.INT32),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", 2),
        number("tokenizer.ggml.unknown_token_id", 0),
        number("tokenizer.ggml.add_bos_token", True, Kind.BOOL),
        number("tokenizer.ggml.add_space_prefix", True, Kind.BOOL),
        text("tokenizer.chat_template", "{% for m in messages %}{{ m['content'] }}{% endfor %}"),
    ]


def byte_level_vocabulary() -> list[Value]:
    """The byte alphabet and a few merges of the `gpt2` family: 264 tokens."""
    # Byte n is the n-th character of this alphabet but for its order, which does not matter here.
    alphabet = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    alphabet += [chr(256 + n) for n in range(256 - len(alphabet))]
    merges = ["t h", "th e", "Ġ the", "o n", "Ġ on"]
    tokens = alphabet + [merge.replace(" ", "") for merge in merges]
    tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return [
        text("tokenizer.ggml.model", "gpt2"),
        text("tokenizer.ggml.pre", "smollm"),
        array("tokenizer.ggml.tokens", tokens, Kind.STRING),
        array("tokenizer.ggml.token_type", [1] * (len(tokens) - 3) + [3, 3, 4], Kind.INT32),
        array("tokenizer.ggml.merges", merges, Kind.STRING),
        number("tokenizer.ggml.bos_token_id", len(tokens) - 3),
        number("tokenizer.ggml.eos_token_id", len(tokens) - 1),
        number("tokenizer.ggml.add_bos_token", False, Kind.BOOL),
    ]
