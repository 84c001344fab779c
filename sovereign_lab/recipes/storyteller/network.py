"""The network in PyTorch: a Llama whose parameters bear the names of a GGUF file."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Sizes count elements; dim, ffn_dim and heads * head_dim are multiples of 32, as in Q4_0."""

    layers: int = 6
    dim: int = 256
    ffn_dim: int = 704
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    vocab: int = 2048
    context: int = 1024
    rope_base: float = 10000.0
    eps: float = 1e-5


class Storyteller(nn.Module):
    """Token ids [batch, positions] -> logits [batch, positions, vocab]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.dim)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.dim, shape.eps)
        self.output = nn.Linear(shape.dim, shape.vocab, bias=False)
        angles = rope_angles(shape)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in self.blk:
            x = block(x, cos, sin)
        return self.output(self.output_norm(x))


class Block(nn.Module):
    """Attention, then the feed-forward part, each added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        q_dim, kv_dim = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.attn_norm = nn.RMSNorm(shape.dim, shape.eps)
        self.attn_q = nn.Linear(shape.dim, q_dim, bias=False)
        self.attn_k = nn.Linear(shape.dim, kv_dim, bias=False)
        self.attn_v = nn.Linear(shape.dim, kv_dim, bias=False)
        self.attn_output = nn.Linear(q_dim, shape.dim, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.dim, shape.eps)
        self.ffn_gate = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.ffn_up = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.ffn_down = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attn_norm(x), cos, sin)
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))

    def attention(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal attention; query head i reads KV head i // (heads / kv_heads)."""
        batch, positions, _ = h.shape
        shape = self.shape
        q = self.attn_q(h).view(batch, positions, shape.heads, shape.head_dim)
        k = self.attn_k(h).view(batch, positions, shape.kv_heads, shape.head_dim)
        v = self.attn_v(h).view(batch, positions, shape.kv_heads, shape.head_dim)
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        group = shape.heads // shape.kv_heads
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.repeat_interleave(group, dim=2).transpose(1, 2),
            v.repeat_interleave(group, dim=2).transpose(1, 2),
            is_causal=True,
        )
        return self.attn_output(mixed.transpose(1, 2).reshape(batch, positions, -1))


def rope_angles(shape: Shape) -> Tensor:
    """Radians at each position for each pair: float64 [context, head_dim / 2]."""
    pairs = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    return torch.outer(torch.arange(shape.context, dtype=torch.float64), shape.rope_base**-pairs)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (2i, 2i+1), as `llama` files are read: nothing is permuted on export.

    x [batch, positions, heads, head_dim]; cos and sin [positions, head_dim / 2].
    """
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).type_as(x)


def new_storyteller(shape: Shape, seed: int) -> Storyteller:
    """An untrained network on the CPU; matrices that write to the residual stream start smaller."""
    torch.manual_seed(seed)
    network = Storyteller(shape)
    residual = (2 * shape.layers) ** -0.5
    for name, parameter in network.named_parameters():
        if parameter.ndim == 2:
            smaller = residual if name.endswith(("attn_output.weight", "ffn_down.weight")) else 1.0
            nn.init.normal_(parameter, std=0.02 * smaller)
    return network
