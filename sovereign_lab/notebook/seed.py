"""What the log of SovereignKernel, the engine that this lab re-creates, reports: figures, not text of ours."""

from sovereign_lab.models.model import Config

GPU_NAME = "RTX 5060 Ti"
TINYLLAMA = Config(
    architecture="llama",
    name="TinyLlama-1.1B",
    layers=22,
    dim=2048,
    ffn_dim=5632,
    heads=32,
    kv_heads=4,
    head_dim=64,
    rope_dim=64,
    rope_base=10000.0,
    eps=1e-5,
    context=2048,
    vocab=32000,
)
"""The model that it ran: the shape is all that bytes and floors need."""
