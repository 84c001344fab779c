"""Config and Model: a GGUF file of the architecture `llama`, checked and ready for the engine."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from tqdm import tqdm

from sovereign_lab.errors import LabError
from sovereign_lab.models.gguf_file import GGUFFile, decode, open_gguf
from sovereign_lab.models.quants import (
    BLOCK_WEIGHTS,
    quantise_q4_0,
    relative_rms_error,
    unpack_q4_0,
)
from sovereign_lab.models.tokenizer import (
    Tokenizer,
    VocabularyError,
    tokenizer_from_metadata,
)

Floats = npt.NDArray[np.float32]

ARCHITECTURE = "llama"

# The matrices of a layer: field of Layer -> name in the file after "blk.N.".
MATRICES = {
    "wq": "attn_q.weight",
    "wk": "attn_k.weight",
    "wv": "attn_v.weight",
    "wo": "attn_output.weight",
    "w_gate": "ffn_gate.weight",
    "w_up": "ffn_up.weight",
    "w_down": "ffn_down.weight",
}
NORMS = {"attention_norm": "attn_norm.weight", "ffn_norm": "ffn_norm.weight"}

# Metadata that changes the arithmetic of a `llama` file in ways the engine does not follow.
_NOT_FOLLOWED = {
    "expert_count": "a mixture of experts",
    "attention.scale": "an attention scale of its own",
    "attention.sliding_window": "sliding-window attention",
    "logit_scale": "scaled logits",
    "embedding_scale": "scaled embeddings",
    "residual_scale": "scaled residuals",
}

# Weights past this size cannot be held in Q4_0: the scale is fp16, a level at most 8.
_LARGEST_Q4_0 = 8 * float(np.finfo(np.float16).max)

# Where the fp16 scales stand in a block, by type: what must be finite for every weight to be.
_SCALE_BYTES = {
    GGMLQuantizationType.F16: (0,),
    GGMLQuantizationType.Q4_0: (0,),
    GGMLQuantizationType.Q4_1: (0, 2),
    GGMLQuantizationType.Q5_0: (0,),
    GGMLQuantizationType.Q5_1: (0, 2),
    GGMLQuantizationType.Q8_0: (0,),
    GGMLQuantizationType.Q2_K: (80, 82),
    GGMLQuantizationType.Q3_K: (108,),
    GGMLQuantizationType.Q4_K: (0, 2),
    GGMLQuantizationType.Q5_K: (0, 2),
    GGMLQuantizationType.Q6_K: (208,),
}
_BYTES_AT_ONCE = 1 << 20  # checked for finite weights, so that the check needs little memory


@dataclass(frozen=True)
class Config:
    """What the metadata says about the shape of a model; sizes count elements."""

    architecture: str
    name: str
    layers: int
    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    rope_base: float
    eps: float
    context: int
    vocab: int

    @property
    def q_dim(self) -> int:
        """Rows of wq: heads * head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Rows of wk and of wv: kv_heads * head_dim."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Q4Matrix:
    """A matrix of Q4_0 blocks: uint8 [rows, blocks_per_row * 18], contiguous, maybe in the file."""

    rows: int
    cols: int
    blocks: npt.NDArray[np.uint8] = field(repr=False)

    @property
    def blocks_per_row(self) -> int:
        """cols / 32."""
        return self.cols // BLOCK_WEIGHTS

    def float32(self) -> Floats:
        """The weights, float32 [rows, cols]."""
        return unpack_q4_0(self.blocks)


@dataclass(frozen=True)
class Table:
    """An embedding or a head in the file's own type: whole blocks, uint8 [rows, bytes a row]."""

    name: str
    rows: int
    cols: int
    type: GGMLQuantizationType
    raw: npt.NDArray[np.uint8] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.raw.nbytes

    def float32(self) -> Floats:
        """The whole table, float32 [rows, cols]."""
        return decode(self.raw, self.type, self.name).reshape(self.rows, self.cols)

    def take(self, ids: npt.ArrayLike) -> Floats:
        """The rows with these indices, float32 [len(ids), cols]."""
        chosen = np.ascontiguousarray(self.raw[np.asarray(ids, np.intp)])
        return decode(chosen, self.type, self.name).reshape(-1, self.cols)


@dataclass(frozen=True)
class Layer:
    """One transformer block; norms are float32 [dim], matrices are stored [outputs, inputs]."""

    attention_norm: Floats = field(repr=False)
    wq: Q4Matrix
    wk: Q4Matrix
    wv: Q4Matrix
    wo: Q4Matrix
    ffn_norm: Floats = field(repr=False)
    w_gate: Q4Matrix
    w_up: Q4Matrix
    w_down: Q4Matrix


@dataclass(frozen=True)
class Model:
    """Everything that a forward pass needs.

    head is the embedding object itself where the file ties them. inv_freq is float32
    [rope_dim / 2], in radians a position. notices says what was requantised at load, and with what
    error.
    """

    path: Path
    config: Config
    tokenizer: Tokenizer
    embedding: Table
    layers: tuple[Layer, ...] = field(repr=False)
    output_norm: Floats = field(repr=False)
    head: Table
    inv_freq: Floats = field(repr=False)
    notices: tuple[str, ...]


def load_model(name: str | Path | None = None, progress: bool = False) -> Model:
    """A model by its name in the catalog (None: the default) or by the path of a GGUF file.

    Q4_0 matrices stay in the file, byte for byte, and are mapped; every other layer matrix is
    decoded and requantised to Q4_0. Raises LabError for whatever the lab cannot run faithfully,
    before it decodes anything.
    """
    # Here, because the catalog builds on this module: it makes files out of models.
    from sovereign_lab.models.catalog import DEFAULT, resolve

    path = resolve(str(name) if name is not None else DEFAULT, progress)
    return build_model(open_gguf(path), progress=progress)


def build_model(
    file: GGUFFile,
    requantise: bool = True,
    importance: Mapping[str, Floats] | None = None,
    progress: bool = False,
) -> Model:
    """The model in an opened file.

    With requantise=False, layer matrices of other types than Q4_0 stay as they are: the engine
    cannot run such a model, but `reference.forward` can, and a requantised one is judged by it.
    importance weighs the columns of the matrices that are requantised, by name of the tensor; see
    `quantise_q4_0`.
    """
    config = read_config(file)
    _check_tensors(file, config)
    try:
        tokenizer = tokenizer_from_metadata(file.metadata)
    except VocabularyError as damage:
        raise file.wrong(damage.key, damage.problem) from None
    if tokenizer.vocab_size != config.vocab:
        raise file.wrong(
            "tokenizer.ggml.tokens",
            f"has {tokenizer.vocab_size} tokens, but token_embd.weight has {config.vocab} rows; "
            "the file is damaged or was converted wrongly",
        )
    for name in file.tensors:
        _demand_finite(file, name)
    inv_freq = rope_frequencies(file, config)
    embedding = _table(file, "token_embd.weight", config.vocab, config.dim)
    head = embedding
    if "output.weight" in file.tensors:
        head = _table(file, "output.weight", config.vocab, config.dim)

    requantised: dict[str, list[float]] = {}
    layers = []
    for index in tqdm(range(config.layers), "load layers", unit="layer", disable=not progress):
        matrices: dict[str, Q4Matrix] = {}
        for attribute, (rows, cols) in matrix_shapes(config).items():
            name = f"blk.{index}.{MATRICES[attribute]}"
            type = file.info(name).type
            if type != GGMLQuantizationType.Q4_0 and not requantise:
                # forward() asks a matrix for nothing but float32(), which a Table has too.
                matrices[attribute] = cast(Q4Matrix, _table(file, name, rows, cols))
                continue
            matrices[attribute], error = _q4_matrix(
                file, name, rows, cols, (importance or {}).get(name)
            )
            if type != GGMLQuantizationType.Q4_0:
                requantised.setdefault(type.name, []).append(error)
        norms = {
            attribute: _vector(file, f"blk.{index}.{name}") for attribute, name in NORMS.items()
        }
        layers.append(Layer(**norms, **matrices))  # type: ignore[arg-type]

    return Model(
        path=file.path,
        config=config,
        tokenizer=tokenizer,
        embedding=embedding,
        layers=tuple(layers),
        output_norm=_vector(file, "output_norm.weight"),
        head=head,
        inv_freq=inv_freq,
        notices=tuple(
            f"{len(errors)} {type} matrices were requantised to Q4_0, with a relative RMS error of "
            f"{np.mean(errors):.4f} on average and {max(errors):.4f} at most"
            for type, errors in requantised.items()
        ),
    )


def matrix_shapes(config: Config) -> dict[str, tuple[int, int]]:
    """(rows, cols) of a layer's matrices, by field of Layer."""
    return {
        "wq": (config.q_dim, config.dim),
        "wk": (config.kv_dim, config.dim),
        "wv": (config.kv_dim, config.dim),
        "wo": (config.dim, config.q_dim),
        "w_gate": (config.ffn_dim, config.dim),
        "w_up": (config.ffn_dim, config.dim),
        "w_down": (config.dim, config.ffn_dim),
    }


def read_config(file: GGUFFile) -> Config:
    """The Config that the metadata declares; LabError where it is wrong, or not for `llama`."""
    architecture = file.metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise file.wrong(
            "general.architecture",
            f"is {_shown(architecture)}; only {ARCHITECTURE!r} is computed here, and others would "
            "give nonsense: choose a model of the Llama family",
        )
    for key, meaning in _NOT_FOLLOWED.items():
        if file.metadata.get(f"{ARCHITECTURE}.{key}"):
            raise file.wrong(
                f"{ARCHITECTURE}.{key}", f"declares {meaning}, which is not computed here"
            )
    heads = _count(file, "attention.head_count")
    dim = _count(file, "embedding_length")
    head_dim = _count(file, "attention.key_length", dim // heads)
    name = file.metadata.get("general.name")
    config = Config(
        architecture=ARCHITECTURE,
        name=name if isinstance(name, str) else file.path.stem,
        layers=_count(file, "block_count"),
        dim=dim,
        ffn_dim=_count(file, "feed_forward_length"),
        heads=heads,
        kv_heads=_count(file, "attention.head_count_kv", heads),
        head_dim=head_dim,
        rope_dim=_count(file, "rope.dimension_count", head_dim),
        rope_base=_positive(file, "rope.freq_base", 10000.0),
        eps=_positive(file, "attention.layer_norm_rms_epsilon"),
        context=_count(file, "context_length"),
        vocab=file.info("token_embd.weight").shape[0],
    )
    demands = (
        (
            "attention.value_length",
            "the head size of keys and values is the same",
            _count(file, "attention.value_length", head_dim) == head_dim,
        ),
        (
            "attention.head_count",
            "attention.head_count is a multiple of attention.head_count_kv",
            heads % config.kv_heads == 0,
        ),
        (
            "rope.dimension_count",
            "rope.dimension_count is even and at most the head size",
            config.rope_dim % 2 == 0 and config.rope_dim <= head_dim,
        ),
        (
            "embedding_length",
            "rows of every matrix are whole blocks of 32",
            not any(size % BLOCK_WEIGHTS for size in (config.dim, config.ffn_dim, config.q_dim)),
        ),
        (
            "vocab_size",
            "vocab_size is the count of embedding rows",
            _count(file, "vocab_size", config.vocab) == config.vocab,
        ),
    )
    for key, rule, holds in demands:
        if not holds:
            raise file.wrong(
                f"{ARCHITECTURE}.{key}",
                f"breaks the rule that {rule}: the file says {config.heads} heads over "
                f"{config.kv_heads} KV heads of {head_dim} elements, {config.rope_dim} of them "
                f"rotated, dim {dim}, ffn {config.ffn_dim}, and has {config.vocab} embedding rows",
            )
    return config


def rope_frequencies(file: GGUFFile, config: Config) -> Floats:
    """float32 [rope_dim / 2]: how far pair i turns from one position to the next, in radians.

    Computed in float64 from the base; divided by `rope_freqs.weight` (Llama 3.1) and by the factor
    of `linear` scaling where the file has them. LabError names any other scaling.
    """
    exponents = np.arange(0, config.rope_dim, 2, dtype=np.float64) / config.rope_dim
    inv_freq = config.rope_base**-exponents
    if "rope_freqs.weight" in file.tensors:
        factors = _vector(file, "rope_freqs.weight")
        if not (factors > 0).all():
            raise file.wrong("rope_freqs.weight", "has factors that are not positive")
        inv_freq /= factors
    scaling = file.metadata.get(f"{ARCHITECTURE}.rope.scaling.type", "linear")
    if scaling not in ("none", "linear"):
        raise file.wrong(
            f"{ARCHITECTURE}.rope.scaling.type",
            f"asks for the RoPE scaling {_shown(scaling)}; only 'linear' is known here",
        )
    if scaling == "linear":
        # Files from before rope.scaling.* kept the factor under rope.scale_linear.
        factor = _positive(file, "rope.scaling.factor", _positive(file, "rope.scale_linear", 1.0))
        inv_freq /= factor
    if inv_freq.max() > np.finfo(np.float32).max:
        raise file.wrong(
            f"{ARCHITECTURE}.rope.freq_base", "leads to RoPE frequencies beyond float32"
        )
    return inv_freq.astype(np.float32)


def _value(file: GGUFFile, key: str, default: Any) -> Any:
    value = file.metadata.get(f"{ARCHITECTURE}.{key}", default)
    if value is None:
        raise LabError(f"{file.path}: the metadata lacks {ARCHITECTURE}.{key}")
    return value


def _count(file: GGUFFile, key: str, default: int | None = None) -> int:
    value = _value(file, key, default)
    # 2^24 is far past any model's sizes, and small enough that no product of two overflows.
    if type(value) is not int or not 0 < value < 1 << 24:
        raise file.wrong(f"{ARCHITECTURE}.{key}", f"is {_shown(value)}; one size was expected")
    return value


def _positive(file: GGUFFile, key: str, default: float | None = None) -> float:
    value = _value(file, key, default)
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise file.wrong(f"{ARCHITECTURE}.{key}", f"is {_shown(value)}; a number above 0 is needed")
    return float(value)


def _shown(value: Any) -> str:
    """A value from the file as a sentence can bear it."""
    return reprlib.repr(value)


def _check_tensors(file: GGUFFile, config: Config) -> None:
    """Every tensor is there, in the shape that the metadata asks for and in a type that we decode.

    One that the forward pass would skip (a bias, an adapter) is an error, not a detail.
    """
    known = {"token_embd.weight", "output_norm.weight"}
    _check_shape(file, "token_embd.weight", (config.vocab, config.dim))
    _check_shape(file, "output_norm.weight", (config.dim,))
    for name, shape in (
        ("output.weight", (config.vocab, config.dim)),
        ("rope_freqs.weight", (config.rope_dim // 2,)),
    ):
        if name in file.tensors:
            _check_shape(file, name, shape)
            known.add(name)
    # The count of layers may be any number: the first layer that is missing ends this.
    for index in range(config.layers):
        for attribute, matrix_shape in matrix_shapes(config).items():
            name = f"blk.{index}.{MATRICES[attribute]}"
            _check_shape(file, name, matrix_shape)
            known.add(name)
        for norm in NORMS.values():
            _check_shape(file, f"blk.{index}.{norm}", (config.dim,))
            known.add(f"blk.{index}.{norm}")
    for name, info in file.tensors.items():
        if name not in known:
            raise file.wrong(
                name,
                f"has no place in a plain {ARCHITECTURE!r} model of {config.layers} layers, so the "
                "file cannot be run faithfully here",
            )
        one_block = np.zeros(GGML_QUANT_SIZES[info.type][1], np.uint8)
        decode(one_block, info.type, f"{file.path}: {name} at offset {info.entry}")


def _check_shape(file: GGUFFile, name: str, shape: tuple[int, ...]) -> None:
    found = file.info(name).shape
    if found != shape:
        raise file.wrong(
            name,
            f"has the shape {found}, but the metadata asks for {shape}; "
            "the file is damaged or was converted wrongly",
        )


def _q4_matrix(
    file: GGUFFile, name: str, rows: int, cols: int, importance: Floats | None
) -> tuple[Q4Matrix, float]:
    """A layer matrix in Q4_0, and its relative RMS error against the file (0: as it lay there)."""
    table = _table(file, name, rows, cols)
    if table.type == GGMLQuantizationType.Q4_0:
        return Q4Matrix(rows, cols, table.raw), 0.0
    weights = table.float32()
    largest = max(weights.max(), -weights.min())
    if largest > _LARGEST_Q4_0:
        raise file.wrong(
            name,
            f"holds a weight of {largest:.4g}, beyond what Q4_0 can hold ({_LARGEST_Q4_0:.4g}); "
            "the file is damaged",
        )
    matrix = Q4Matrix(rows, cols, quantise_q4_0(weights, importance))
    return matrix, relative_rms_error(matrix.float32(), weights)


def _table(file: GGUFFile, name: str, rows: int, cols: int) -> Table:
    """A matrix in the file's own type."""
    return Table(name, rows, cols, file.info(name).type, file.raw(name).reshape(rows, -1))


def _vector(file: GGUFFile, name: str) -> Floats:
    """A norm or the like as float32 [length], widened where the file keeps it narrower."""
    return file.float32(name).copy()


def _demand_finite(file: GGUFFile, name: str) -> None:
    """LabError at the first block of a tensor whose scale, or a weight without one, is not finite."""
    info = file.info(name)
    block_bytes = GGML_QUANT_SIZES[info.type][1]
    blocks = file.raw(name).reshape(-1, block_bytes)
    at_once = max(1, _BYTES_AT_ONCE // block_bytes)
    for first in range(0, len(blocks), at_once):
        finite = _finite(blocks[first : first + at_once], info.type, name)
        if not finite.all():
            offset = info.offset + (first + int(np.argmin(finite))) * block_bytes
            raise file.wrong(
                name, "holds a scale or a weight that is not finite; the file is damaged", offset
            )


def _finite(
    blocks: npt.NDArray[np.uint8], type: GGMLQuantizationType, name: str
) -> npt.NDArray[np.bool_]:
    """For blocks, uint8 [n, bytes of a block], whether the weights of each are finite, bool [n]."""
    if type not in _SCALE_BYTES:
        with np.errstate(all="ignore"):  # what overflows here is what is looked for
            return np.all(np.isfinite(decode(blocks, type, name)), axis=1)
    # fp16 is not finite where the five bits of the exponent, in the upper byte, are all ones.
    uppers = np.stack([blocks[:, at + 1] for at in _SCALE_BYTES[type]])
    return np.all(uppers & 0x7C != 0x7C, axis=0)
