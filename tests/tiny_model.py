"""A model file that llama.cpp loads around a vocabulary, as small as one can be."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write_tiny_model(path: Path, metadata: dict[str, Any]) -> Path:
    """A llama model of one small layer that llama.cpp loads, around the tokenizer under test."""
    vocab, dim, heads = len(metadata["tokenizer.ggml.tokens"]), 32, 2
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(dim)
    writer.add_feed_forward_length(dim)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(dim // heads)
    writer.add_vocab_size(vocab)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    matrix = np.zeros((dim, dim), np.float32)
    writer.add_tensor("token_embd.weight", np.zeros((vocab, dim), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(dim, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", matrix)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(dim, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
