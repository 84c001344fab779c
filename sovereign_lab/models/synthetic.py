"""Synthetic models: true shapes and seeded random Q4_0 weights, as real GGUF files.

They say nothing sensible, but they cost what a model of that shape costs, and activations stay of
ordinary size through all layers, so that a wrong kernel shows. llama.cpp loads them as well.
"""

import itertools
import math
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from tqdm import tqdm

from sovereign_lab.errors import LabError
from sovereign_lab.models.cache import cache_dir, whole_or_nothing

PREFIX = "synthetic:"
SEED = 0

Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0
F32 = GGMLQuantizationType.F32

_LEVELS_Q4 = np.arange(-8, 8)
_RMS_Q4 = math.sqrt(np.mean(_LEVELS_Q4**2))  # of uniform nibbles
_RMS_Q8 = math.sqrt(np.mean(np.arange(-127, 128) ** 2))
_SPREAD = 0.5  # scales are uniform in mean * (1 - spread .. 1 + spread)
_RMS_SPREAD = math.sqrt(1 + _SPREAD**2 / 3)
_LOGIT_SIZE = 3.0  # enough that one token stands out, as in a trained model


@dataclass(frozen=True)
class SyntheticShape:
    """The dimensions of a model of the architecture `llama`; sizes count elements."""

    layers: int
    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int = 8192
    tied: bool = False
    rope_base: float = 10000.0

    def describe(self) -> str:
        """The shape in a few words."""
        return (
            f"{self.layers} layers, dim {self.dim}, ffn {self.ffn_dim}, "
            f"{self.heads}/{self.kv_heads} heads of {self.head_dim}, vocabulary {self.vocab}"
        )


SHAPES = {
    "tinyllama-1.1b": SyntheticShape(
        layers=22, dim=2048, ffn_dim=5632, heads=32, kv_heads=4, head_dim=64, vocab=32000
    ),
    "smollm2-135m": SyntheticShape(
        layers=30, dim=576, ffn_dim=1536, heads=9, kv_heads=3, head_dim=64, vocab=49152,
        tied=True, rope_base=100000.0,
    ),
    "tiny": SyntheticShape(
        layers=2, dim=128, ffn_dim=256, heads=4, kv_heads=2, head_dim=32, vocab=512
    ),
}  # fmt: skip


def present(name: str) -> Path | None:
    """The file of a shape in the cache, None where it is yet to be written."""
    path = _file(name)
    return path if path.is_file() else None


def make(name: str, progress: bool = False) -> Path:
    """Write the model of a named shape into the cache."""
    write_synthetic(_file(name), SHAPES[name], SEED, progress)
    return _file(name)


def write_synthetic(
    path: str | Path, shape: SyntheticShape, seed: int = 0, progress: bool = False
) -> Path:
    """Write a GGUF file of this shape: Q4_0 layers, Q8_0 embedding and head, F32 norms.

    The same shape and seed give the same bytes. Written tensor by tensor, and there whole or not at
    all. Raises LabError for a shape that no llama model can have, and for a full disk.
    """
    path = Path(path)
    _check(shape)
    tensors = list(_tensors(shape))
    nbytes = sum(tensor.nbytes for tensor in tensors)
    with whole_or_nothing(path, nbytes) as part:
        writer = GGUFWriter(part, "llama")
        _add_metadata(writer, shape, path.stem, seed)
        for tensor in tensors:
            writer.add_tensor_info(
                tensor.name, tensor.stored_shape, tensor.dtype, tensor.nbytes, tensor.type
            )
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            with tqdm(
                total=nbytes,
                desc=f"write {path.name}", unit="B", unit_scale=True, disable=not progress,
            ) as bar:  # fmt: skip
                for index, tensor in enumerate(tensors):
                    writer.write_tensor_data(_values(tensor, (seed, index)))
                    bar.update(tensor.nbytes)
        finally:
            writer.close()
    return path


@dataclass(frozen=True)
class _Tensor:
    """One tensor to write: rows x cols weights of the given root mean square (rows 1: a norm)."""

    name: str
    rows: int
    cols: int
    type: GGMLQuantizationType
    rms: float

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """What GGUFWriter expects: the shape in bytes of a quantised tensor, else in elements."""
        if self.type == F32:
            return (self.cols,)
        return (self.rows, self.cols // 32 * self.block_bytes)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return np.dtype(np.float32 if self.type == F32 else np.uint8)

    @property
    def block_bytes(self) -> int:
        return {Q4_0: 18, Q8_0: 34}[self.type]

    @property
    def nbytes(self) -> int:
        return math.prod(self.stored_shape) * self.dtype.itemsize


def _tensors(shape: SyntheticShape) -> Iterator[_Tensor]:
    """Every tensor with the size of its weights.

    An input of root mean square 1 leaves a matrix with about 1 again. What returns to the residual
    stream is smaller by sqrt(2 * layers), so that the sum over all layers stays near 1.
    """
    q_dim, kv_dim = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    inward, residual = 1 / math.sqrt(shape.dim), 1 / math.sqrt(2 * shape.layers)
    logits = _LOGIT_SIZE * inward
    yield _Tensor("token_embd.weight", shape.vocab, shape.dim, Q8_0, logits if shape.tied else 1.0)
    for layer in range(shape.layers):
        for name, rows, cols, rms in (
            ("attn_q", q_dim, shape.dim, inward),
            ("attn_k", kv_dim, shape.dim, inward),
            ("attn_v", kv_dim, shape.dim, inward),
            ("attn_output", shape.dim, q_dim, residual / math.sqrt(q_dim)),
            ("ffn_gate", shape.ffn_dim, shape.dim, inward),
            ("ffn_up", shape.ffn_dim, shape.dim, inward),
            ("ffn_down", shape.dim, shape.ffn_dim, residual / math.sqrt(shape.ffn_dim)),
        ):
            yield _Tensor(f"blk.{layer}.{name}.weight", rows, cols, Q4_0, rms)
        for name in ("attn_norm", "ffn_norm"):
            yield _Tensor(f"blk.{layer}.{name}.weight", 1, shape.dim, F32, 1.0)
    yield _Tensor("output_norm.weight", 1, shape.dim, F32, 1.0)
    if not shape.tied:
        yield _Tensor("output.weight", shape.vocab, shape.dim, Q8_0, logits)


def _values(tensor: _Tensor, seed: tuple[int, int]) -> npt.NDArray[np.generic]:
    """A tensor's content from its own seed: float32 [cols], or uint8 [rows, bytes of a row]."""
    random = np.random.Generator(np.random.SFC64(seed))
    if tensor.type == F32:
        return (1 + 0.1 * random.standard_normal(tensor.cols)).astype(np.float32)
    count = tensor.rows * tensor.cols // 32
    blocks = np.frombuffer(random.bytes(count * tensor.block_bytes), np.uint8).copy()
    blocks = blocks.reshape(count, tensor.block_bytes)
    rms = _RMS_Q4 if tensor.type == Q4_0 else _RMS_Q8
    scales = random.uniform(1 - _SPREAD, 1 + _SPREAD, count) * (tensor.rms / rms / _RMS_SPREAD)
    # Nibbles run from -8 to 7, so their mean is not 0: with scales of one sign, a mean in the
    # activations would grow from layer to layer. Signs at random keep it away.
    scales *= random.integers(0, 2, count) * 2 - 1
    blocks[:, :2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(tensor.rows, -1)


def _add_metadata(writer: GGUFWriter, shape: SyntheticShape, name: str, seed: int) -> None:
    writer.add_name(name)
    writer.add_description(
        f"Random Q4_0 weights from seed {seed}, for speed work: {shape.describe()}"
    )
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(2)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.dim)
    writer.add_feed_forward_length(shape.ffn_dim)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)

    tokens, types = _vocabulary(shape.vocab)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(len(tokens))])
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


_FIXED_TOKENS = 3 + 256


def _vocabulary(size: int) -> tuple[list[str], list[int]]:
    """SentencePiece-style tokens and their types: specials, bytes, characters, letter groups."""
    specials = [
        ("<unk>", TokenType.UNKNOWN),
        ("<s>", TokenType.CONTROL),
        ("</s>", TokenType.CONTROL),
    ]
    fallback = [(f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)]
    pieces = itertools.islice(_pieces(), size - _FIXED_TOKENS)
    vocabulary = [*specials, *fallback, *((piece, TokenType.NORMAL) for piece in pieces)]
    return [text for text, _ in vocabulary], [int(type) for _, type in vocabulary]


def _pieces() -> Iterator[str]:
    """Distinct pieces without end: printable ASCII, `▁` for the space, then longer groups."""
    printable = string.ascii_lowercase + string.ascii_uppercase + string.digits + string.punctuation
    yield from ("▁", *printable)
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            word = "".join(letters)
            yield "▁" + word
            if length > 1:
                yield word


def _check(shape: SyntheticShape) -> None:
    whole_blocks = (shape.dim, shape.ffn_dim, shape.heads * shape.head_dim)
    if (
        shape.layers < 1
        or shape.heads % shape.kv_heads
        or shape.head_dim % 2
        or any(cols % 32 or cols < 32 for cols in whole_blocks)
        or shape.vocab < _FIXED_TOKENS
    ):
        raise LabError(
            f"no llama model has {shape.describe()}: dim, ffn and heads * head_dim are multiples "
            "of 32, heads a multiple of kv_heads, head_dim even, and the vocabulary has at least "
            f"{_FIXED_TOKENS} tokens"
        )


def _file(name: str) -> Path:
    return cache_dir() / f"synthetic-{name}.gguf"
