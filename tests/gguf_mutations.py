"""Ways in which a GGUF file goes wrong, for fuzzing: on what it says, and on the bytes that say it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf import GGUFValueType as Kind
from gguf_document import CODES, Document, Span, Tensor, Value, write

INTEGERS = (0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 255, 256, 1000, 2**15, 2**16, 2**20, 2**24 - 1,
            2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 8,
            2**64 - 1)  # fmt: skip
FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e-38, 1e-5, 1.0, 3e38, float("inf"), -float("inf"), float("nan"))
TEXTS = (b"", b" ", b"\0", b"\n", b"\xff\xfe", b"\xed\xa0\x80", "▁".encode(), b"a" * 1025,
         b"<0xZZ>", b"<0x0A>", b"a b", b" ", b"bert", b"llama", b"gpt2", b"yarn", b"default",
         "日本語".encode(), b"</s>", b"{{ 1/0 }}")  # fmt: skip
KEYS = ("general.alignment", "general.architecture", "llama.block_count", "llama.expert_count",
        "llama.attention.key_length", "llama.attention.value_length", "llama.attention.head_count",
        "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.rope.scale_linear",
        "llama.attention.scale", "tokenizer.ggml.pre", "tokenizer.ggml.model",
        "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.merges",
        "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.chat_template",
        "general.name")  # fmt: skip
TENSORS = ("token_embd.weight", "output.weight", "rope_freqs.weight", "blk.0.attn_q.bias",
           "blk.1.attn_q.weight", "blk.0.attn_k.weight", "")  # fmt: skip
TYPES = (*GGMLQuantizationType, 4, 5, 99, 2**31)

# (weights, bytes) of a block, by type.
BLOCKS: dict[int, tuple[int, int]] = {int(type): size for type, size in GGML_QUANT_SIZES.items()}

Change = Callable[[Document, Random], None]


def mutate(document: Document, dice: Random) -> bytes:
    """The bytes of a file with one to four things wrong; the document is changed as well."""
    wrongs = dice.choice((1, 1, 1, 2, 2, 3, 4))
    in_bytes = sum(dice.random() < 0.4 for _ in range(wrongs))
    for _ in range(wrongs - in_bytes):
        dice.choice(CHANGES)(document, dice)
    content, spans = write(document)
    damaged = bytearray(content)
    for _ in range(in_bytes):
        dice.choice(DAMAGES)(damaged, spans, dice)
    return bytes(damaged)


# -- on what the file says --


def drop_value(document: Document, dice: Random) -> None:
    if document.values:
        document.values.pop(dice.randrange(len(document.values)))


def repeat_value(document: Document, dice: Random) -> None:
    if document.values:
        document.values.insert(dice.randrange(len(document.values)), dice.choice(document.values))


def rename_value(document: Document, dice: Random) -> None:
    if document.values:
        value = dice.choice(document.values)
        value.key = dice.choice([*TEXTS, *map(str.encode, KEYS), b"k" * 70000])


def replace_value(document: Document, dice: Random) -> None:
    if document.values:
        value = dice.choice(document.values)
        value.kind, value.element, value.content = any_content(dice)


def add_value(document: Document, dice: Random) -> None:
    kind, element, content = any_content(dice)
    value = Value(dice.choice(KEYS).encode(), kind, content, element)
    document.values.insert(dice.randint(0, len(document.values)), value)


def change_number(document: Document, dice: Random) -> None:
    numbers = [value for value in document.values if value.kind in CODES]
    if numbers:
        value = dice.choice(numbers)
        value.content = any_scalar(Kind(value.kind), dice)


def change_array(document: Document, dice: Random) -> None:
    arrays = [value for value in document.values if value.element is not None and value.content]
    if not arrays:
        return
    value = dice.choice(arrays)
    value.content = items = list(value.content)
    at = dice.randrange(len(items))
    match dice.randrange(6):
        case 0:
            del items[at]
        case 1:
            items.insert(at, dice.choice(items))
        case 2:
            items[at] = dice.choice(items)
        case 3:
            dice.shuffle(items)
        case 4:
            del items[at:]
        case 5:
            for _ in range(dice.choice((1, 1, 5))):
                items[dice.randrange(len(items))] = any_scalar(Kind(value.element or 0), dice)


def change_alignment(document: Document, dice: Random) -> None:
    document.values = [v for v in document.values if v.key != b"general.alignment"]
    alignment = dice.choice((0, 1, 3, 8, 16, 64, 256, 4096, 2**31))
    document.values.append(Value(b"general.alignment", Kind.UINT32, alignment))
    if alignment and alignment < 2**31 and dice.random() < 0.7:
        document.alignment = alignment


def change_order(document: Document, dice: Random) -> None:
    document.order = ">"


def drop_tensor(document: Document, dice: Random) -> None:
    if document.tensors:
        document.tensors.pop(dice.randrange(len(document.tensors)))


def repeat_tensor(document: Document, dice: Random) -> None:
    if document.tensors:
        document.tensors.append(dice.choice(document.tensors))


def rename_tensor(document: Document, dice: Random) -> None:
    if document.tensors:
        dice.choice(document.tensors).name = dice.choice([*TEXTS, *map(str.encode, TENSORS)])


def move_tensor(document: Document, dice: Random) -> None:
    if document.tensors:
        dice.choice(document.tensors).shift = dice.choice(
            (1, -1, 8, -32, 32, 64, 2**32, 2**63, 2**64 - 32)
        )


def reshape_tensor(document: Document, dice: Random) -> None:
    if not document.tensors:
        return
    tensor = dice.choice(document.tensors)
    dims = tensor.dims or [1]
    tensor.dims = dice.choice(
        (dims[::-1], [*dims, 1], [1, *dims], [], [0], dims * 3, [dims[0] * 2, *dims[1:]],
         [dims[0] // 2, *dims[1:]], [*dims[:-1], dims[-1] + 1], [dice.choice(INTEGERS), *dims[1:]],
         [2**32, 2**32], [2**63, 2**63])
    )  # fmt: skip


def retype_tensor(document: Document, dice: Random) -> None:
    """Another type; often with as many bytes as it needs, so that the file holds together."""
    if not document.tensors:
        return
    tensor = dice.choice(document.tensors)
    tensor.type = dice.choice(TYPES)
    if dice.random() < 0.7 and tensor.type in BLOCKS:
        weights, nbytes = BLOCKS[tensor.type]
        elements = 1
        for dim in tensor.dims:
            elements *= dim
        if elements < 2**20:
            tensor.data = fitted(tensor, elements // weights * nbytes, dice)


def change_data(document: Document, dice: Random) -> None:
    """A value that is no number or no end, somewhere: in a scale as likely as anywhere."""
    tensors = [tensor for tensor in document.tensors if len(tensor.data) >= 8]
    if not tensors:
        return
    tensor = dice.choice(tensors)
    data = bytearray(tensor.data)
    step = BLOCKS.get(tensor.type, (1, 1))[1]
    for _ in range(dice.choice((1, 1, 20))):
        at = dice.randrange(len(data) // step) * step if step <= len(data) else 0
        wrong = dice.choice(
            (b"\x00\x7c", b"\x00\xfc", b"\x01\x7e", b"\xff\x7b", b"\0\0\x80\x7f", b"\0\0\xc0\xff",
             b"\xff\xff\x7f\x7f", dice.randbytes(4))
        )  # fmt: skip
        data[at : at + len(wrong)] = wrong
    tensor.data = bytes(data[: len(tensor.data)])


CHANGES: tuple[Change, ...] = (
    drop_value, repeat_value, rename_value, replace_value, replace_value, add_value, change_number,
    change_number, change_array, change_array, change_array, change_alignment, change_order,
    drop_tensor, repeat_tensor, rename_tensor, move_tensor, reshape_tensor, retype_tensor,
    retype_tensor, change_data, change_data,
)  # fmt: skip


def fitted(tensor: Tensor, nbytes: int, dice: Random) -> bytes:
    if dice.random() < 0.3:
        return dice.randbytes(nbytes)
    return (tensor.data + bytes(nbytes))[:nbytes]


def any_content(dice: Random) -> tuple[int, int | None, object]:
    """(kind, element kind, content) of a metadata value that may be anything."""
    kind = dice.choice((*CODES, Kind.STRING, Kind.STRING, Kind.ARRAY, Kind.ARRAY))
    if kind != Kind.ARRAY:
        return kind, None, any_scalar(kind, dice)
    element = dice.choice((*CODES, Kind.STRING, Kind.STRING))
    length = dice.choice((0, 1, 2, 264, 283))
    return kind, element, [any_scalar(element, dice) for _ in range(length)]


def any_scalar(kind: Kind, dice: Random) -> object:
    if kind == Kind.STRING:
        return dice.choice(TEXTS)
    if kind == Kind.BOOL:
        return dice.random() < 0.5
    if kind in (Kind.FLOAT32, Kind.FLOAT64):
        return dice.choice(FLOATS)
    code = "<" + CODES[kind]
    number = dice.choice(INTEGERS).to_bytes(8, "little")
    return struct.unpack_from(code, number)[0]


# -- on the bytes that say it --


def overwrite_field(content: bytearray, spans: list[Span], dice: Random) -> None:
    """A count, length, type, dimension or offset becomes another number."""
    numbers = [span for span in spans if span.what not in ("text", "data", "magic")]
    span = dice.choice(numbers)
    old = int.from_bytes(content[span.at : span.at + span.nbytes], "little")
    value = dice.choice(
        (*INTEGERS, old + 1, old - 1, old * 2, len(content), len(content) - span.at)
    )
    wrong = (value % 2 ** (8 * span.nbytes)).to_bytes(span.nbytes, "little")
    content[span.at : span.at + span.nbytes] = wrong


def flip_bytes(content: bytearray, spans: list[Span], dice: Random) -> None:
    header = next((span.at for span in spans if span.what == "data"), len(content))
    for _ in range(dice.choice((1, 1, 2, 8))):
        if content:
            at = dice.randrange(min(header if dice.random() < 0.8 else 10**9, len(content)))
            content[at] = dice.choice((0, 1, 127, 128, 255, content[at] ^ 1 << dice.randrange(8)))


def cut_short(content: bytearray, spans: list[Span], dice: Random) -> None:
    end = dice.choice(spans).at + dice.choice((-1, 0, 1, 4, 7))
    del content[max(0, end) :]


def insert_bytes(content: bytearray, spans: list[Span], dice: Random) -> None:
    at = dice.choice(spans).at
    content[at:at] = dice.randbytes(dice.choice((1, 4, 8, 32)))


def delete_bytes(content: bytearray, spans: list[Span], dice: Random) -> None:
    span = dice.choice(spans)
    del content[span.at : span.at + dice.choice((1, 4, 8, max(1, span.nbytes)))]


def copy_over(content: bytearray, spans: list[Span], dice: Random) -> None:
    """One field is written over another, as where a writer lost its place."""
    source, target = dice.choice(spans), dice.choice(spans)
    content[target.at : target.at + source.nbytes] = content[source.at : source.at + source.nbytes]


DAMAGES = (
    overwrite_field, overwrite_field, overwrite_field, flip_bytes, cut_short, insert_bytes,
    delete_bytes, copy_over,
)  # fmt: skip
