"""The trained weights become a GGUF file, and a GGUF file becomes weights again."""

from pathlib import Path

import torch
from gguf import GGUFWriter, LlamaFileType
from gguf.quants import quantize
from torch import Tensor

from sovereign_lab.models.cache import whole_or_nothing
from sovereign_lab.models.gguf_file import open_gguf
from sovereign_lab.models.quants import quantise_q4_0_plain
from sovereign_lab.recipes.storyteller.network import Shape
from sovereign_lab.recipes.storyteller.quantise import F32, Q4_0, stored_type
from sovereign_lab.recipes.storyteller.vocabulary import Vocabulary

_DESCRIPTION = (
    "Tells short children's stories in simple English. Trained from scratch on stories that a "
    "seeded grammar wrote; grammar, recipe and weights are part of Sovereign Lab"
)


def write_gguf(
    path: Path, shape: Shape, vocabulary: Vocabulary, weights: dict[str, Tensor]
) -> None:
    """Write the file: layer matrices Q4_0, embedding and head Q8_0, norms F32.

    weights: float32 on the CPU, by their names in the file. The same weights give the same bytes.
    """
    with whole_or_nothing(path) as part:
        writer = GGUFWriter(part, "llama")
        _add_provenance(writer)
        _add_shape(writer, shape)
        _add_vocabulary(writer, vocabulary)
        for name, weight in weights.items():
            type, data = stored_type(name), weight.numpy()
            if type == Q4_0:
                writer.add_tensor(name, quantise_q4_0_plain(data), raw_dtype=type)
            elif type == F32:
                writer.add_tensor(name, data)
            else:
                writer.add_tensor(name, quantize(data, type), raw_dtype=type)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


def read_weights(path: Path) -> dict[str, Tensor]:
    """Every tensor of a GGUF file as float32: what the engine computes with."""
    file = open_gguf(path)
    return {name: torch.from_numpy(file.float32(name).copy()) for name in file.tensors}


def _add_provenance(writer: GGUFWriter) -> None:
    writer.add_name("Storyteller")
    writer.add_author("Sovereign Lab contributors")
    writer.add_license("MIT")
    writer.add_description(_DESCRIPTION)
    writer.add_languages(["en"])
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(2)


def _add_shape(writer: GGUFWriter, shape: Shape) -> None:
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
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_vocab_size(shape.vocab)


def _add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    for key, value in vocabulary.metadata().items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
