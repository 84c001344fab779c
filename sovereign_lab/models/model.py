"""Config and Model: a GGUF file of the architecture `llama`, checked and ready for the engine."""

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
from sovereign_lab.models.tokenizer import Tokenizer, tokenizer_from_metadata

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

# Where the fp16 scales stand in a block, by type: what must be finite for every weight to be.
_SCALE_BYTES = {
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
    decoded and requantised to Q4_0. Raises LabError for whatever the lab cannot run faithfully.
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
    _refuse_unknown_tensors(file, config)
    inv_freq = rope_frequencies(file, config)
    _check_shape(file, "token_embd.weight", (config.vocab, config.dim))
    tokenizer = tokenizer_from_metadata(file.metadata)
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
            _check_shape(file, name, (rows, cols))
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
            attribute: _vector(file, f"blk.{index}.{name}", config.dim)
            for attribute, name in NORMS.items()
        }
        layers.append(Layer(**norms, **matrices))  # type: ignore[arg-type]

    return Model(
        path=file.path,
        config=config,
        tokenizer=tokenizer,
        embedding=embedding,
        layers=tuple(layers),
        output_norm=_vector(file, "output_norm.weight", config.dim),
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
        raise LabError(
            f"{file.path} has the architecture {architecture!r}; only {ARCHITECTURE!r} is computed "
            "here, and others would give nonsense: choose a model of the Llama family"
        )
    for key, meaning in _NOT_FOLLOWED.items():
        if file.metadata.get(f"{ARCHITECTURE}.{key}"):
            raise LabError(
                f"{file.path} declares {meaning} ({ARCHITECTURE}.{key}), which is not computed here"
            )
    heads = _count(file, "attention.head_count")
    dim = _count(file, "embedding_length")
    head_dim = _count(file, "attention.key_length", dim // heads)
    config = Config(
        architecture=ARCHITECTURE,
        name=str(file.metadata.get("general.name", file.path.stem)),
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
    demands = {
        "attention.value_length is attention.key_length": (
            _count(file, "attention.value_length", head_dim) == head_dim
        ),
        "attention.head_count is a multiple of attention.head_count_kv": (
            heads % config.kv_heads == 0
        ),
        "rope.dimension_count is even and at most the head size": (
            config.rope_dim % 2 == 0 and config.rope_dim <= head_dim
        ),
        "rows of every matrix are whole blocks of 32": not (
            dim % BLOCK_WEIGHTS or config.ffn_dim % BLOCK_WEIGHTS or config.q_dim % BLOCK_WEIGHTS
        ),
        "vocab_size is the count of embedding rows": (
            _count(file, "vocab_size", config.vocab) == config.vocab
        ),
    }
    for demand, holds in demands.items():
        if not holds:
            raise LabError(f"{file.path}: the metadata breaks the rule that {demand}: {config}")
    return config


def rope_frequencies(file: GGUFFile, config: Config) -> Floats:
    """float32 [rope_dim / 2]: how far pair i turns from one position to the next, in radians.

    Computed in float64 from the base; divided by `rope_freqs.weight` (Llama 3.1) and by the factor
    of `linear` scaling where the file has them. LabError names any other scaling.
    """
    exponents = np.arange(0, config.rope_dim, 2, dtype=np.float64) / config.rope_dim
    inv_freq = config.rope_base**-exponents
    if "rope_freqs.weight" in file.tensors:
        factors = _vector(file, "rope_freqs.weight", config.rope_dim // 2)
        if not (factors > 0).all():
            raise LabError(f"{file.path}: rope_freqs.weight has factors that are not positive")
        inv_freq /= factors
    scaling = file.metadata.get(f"{ARCHITECTURE}.rope.scaling.type", "linear")
    if scaling not in ("none", "linear"):
        raise LabError(
            f"{file.path} uses the RoPE scaling {scaling!r}; only 'linear' is known here"
        )
    if scaling == "linear":
        # Files from before rope.scaling.* kept the factor under rope.scale_linear.
        factor = _positive(file, "rope.scaling.factor", _positive(file, "rope.scale_linear", 1.0))
        inv_freq /= factor
    return inv_freq.astype(np.float32)


def _value(file: GGUFFile, key: str, default: Any) -> Any:
    value = file.metadata.get(f"{ARCHITECTURE}.{key}", default)
    if value is None:
        raise LabError(f"{file.path}: the metadata lacks {ARCHITECTURE}.{key}")
    return value


def _count(file: GGUFFile, key: str, default: int | None = None) -> int:
    value = _value(file, key, default)
    # 2^24 is far past any model's sizes, and small enough that no product of two overflows.
    if not isinstance(value, int) or not 0 < value < 1 << 24:
        raise LabError(f"{file.path}: {ARCHITECTURE}.{key} is {value!r}; one size was expected")
    return value


def _positive(file: GGUFFile, key: str, default: float | None = None) -> float:
    value = _value(file, key, default)
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise LabError(
            f"{file.path}: {ARCHITECTURE}.{key} is {value!r}; a number above 0 is needed"
        )
    return float(value)


def _refuse_unknown_tensors(file: GGUFFile, config: Config) -> None:
    """A tensor that the forward pass would skip (a bias, an adapter) is an error, not a detail."""
    known = {"token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight"}
    for index in range(config.layers):
        known.update(f"blk.{index}.{name}" for name in (*MATRICES.values(), *NORMS.values()))
    for name in file.tensors:
        if name not in known:
            raise LabError(
                f"{file.path}: the tensor {name!r} has no place in a plain {ARCHITECTURE!r} model "
                f"of {config.layers} layers, so the file cannot be run faithfully here"
            )


def _check_shape(file: GGUFFile, name: str, shape: tuple[int, ...]) -> None:
    found = file.info(name).shape
    if found != shape:
        raise LabError(
            f"{file.path}: {name} has the shape {found}, but the metadata asks for {shape}; "
            "the file is damaged or was converted wrongly"
        )


def _q4_matrix(
    file: GGUFFile, name: str, rows: int, cols: int, importance: Floats | None
) -> tuple[Q4Matrix, float]:
    """A layer matrix in Q4_0, and its relative RMS error against the file (0: as it lay there)."""
    table = _table(file, name, rows, cols)
    if table.type == GGMLQuantizationType.Q4_0:
        return Q4Matrix(rows, cols, table.raw), 0.0
    weights = table.float32()
    _demand_finite(file, name, weights)
    matrix = Q4Matrix(rows, cols, quantise_q4_0(weights, importance))
    return matrix, relative_rms_error(matrix.float32(), weights)


def _table(file: GGUFFile, name: str, rows: int, cols: int) -> Table:
    """A matrix in the file's own type, its scales known to be finite."""
    _check_shape(file, name, (rows, cols))
    raw = file.raw(name).reshape(rows, -1)
    table = Table(name, rows, cols, file.info(name).type, raw)
    if table.type in _SCALE_BYTES:
        block_bytes = GGML_QUANT_SIZES[table.type][1]
        blocks = raw.reshape(-1, block_bytes)
        for at in _SCALE_BYTES[table.type]:
            _demand_finite(file, name, blocks[:, at : at + 2].copy().view(np.float16))
    else:
        table.take([0])  # a type without a decoder is refused now, not in the middle of a run
        if table.type in (GGMLQuantizationType.F16, GGMLQuantizationType.F32):
            _demand_finite(file, name, table.float32())
    return table


def _vector(file: GGUFFile, name: str, length: int) -> Floats:
    """A norm or the like as float32 [length], widened where the file keeps it narrower."""
    _check_shape(file, name, (length,))
    vector = file.float32(name).copy()
    _demand_finite(file, name, vector)
    return vector


def _demand_finite(file: GGUFFile, name: str, values: npt.NDArray[np.floating]) -> None:
    if not np.isfinite(values).all():
        raise LabError(
            f"{file.path}: {name} (at offset {file.info(name).offset}) holds scales or weights "
            "that are not finite; the file is damaged"
        )
