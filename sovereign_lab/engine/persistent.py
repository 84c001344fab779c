"""The persistent kernel's side of the host (phases 13a to 13c): one launch for many tokens, sized from the device."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sovereign_lab.devices import Device
from sovereign_lab.engine.forward import Call, DeviceWeights, State
from sovereign_lab.engine.kv_cache import KVCache
from sovereign_lab.engine.tiled import TiledWeights
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.persistent_op import (
    NOT_YET,
    STAMPS,
    STATIC_BYTES,
    largest_tile,
    message_words,
    shared_beside_ring,
)
from sovereign_lab.models.model import Config


@dataclass(frozen=True)
class PersistentState:
    """What the blocks of the persistent kernel say to each other. Poisoned when made; each launch leaves it ready."""

    messages: Any  # uint32 [2, layers, words]
    bests: Any  # uint32 [3, blocks, 2]
    turn: Any  # int32 [1]
    stamps: Any  # int64, of the stages of one token where the kernel is compiled with STAMPS
    ring_bytes: int  # shared memory for weights on their way; 0 for a kernel without

    @classmethod
    def allocate(cls, device: Device, c: Config, context: int, ring: bool) -> "PersistentState":
        """A block an SM. Raises LabError where a `ring` is wanted, and a block's shared memory is too small for it."""
        blocks = device.properties.sm_count
        words = message_words(c.dim, c.ffn_dim, c.heads, c.kv_heads, c.head_dim, context)
        return cls(
            messages=device.array(np.full((2, c.layers, words), NOT_YET, np.uint32)),
            bests=device.array(np.full((3, blocks, 2), NOT_YET, np.uint32)),
            turn=device.array(np.zeros(1, np.int32)),
            stamps=device.array(np.zeros(STAMPS * c.layers + STAMPS, np.int64)),
            ring_bytes=ring_bytes(c, device) if ring else 0,
        )


def ring_bytes(c: Config, device: Device) -> int:
    """Shared memory of a block that is left for the ring: room for eight of the largest tiles, four of which are
    multiplied while others come. Raises LabError where it is less."""
    beside = shared_beside_ring(c.dim, c.ffn_dim, c.heads, c.head_dim, device.properties.sm_count)
    left = (device.properties.shared_per_block - STATIC_BYTES - beside) // 16 * 16
    needed = 8 * largest_tile(c.dim, c.ffn_dim, c.q_dim)
    if left < needed:
        raise LabError(
            f"Phase 13c needs {needed:,} bytes of shared memory a block for the weights of {c.name} on their way; "
            f"{device.properties.name} leaves {max(left, 0):,}. Choose phase 13b."
        )
    return left


def tokens(
    c: Config,
    w: DeviceWeights,
    t: TiledWeights,
    s: State,
    p: PersistentState,
    kv: KVCache,
    context: int,
    count: int,
    advance: bool = True,
) -> Call:
    """`count` tokens from the device's position on; without `advance` one, which the caller chooses from the logits."""
    return Call("persistent", dict(
        matrices=t.matrices, head=t.head.tiles, norms=t.norms, embedding=w.embedding, inv_freq=w.inv_freq,
        keys=kv.all_keys, values=kv.all_values, messages=p.messages, bests=p.bests, logits=s.logits, best=s.best,
        tokens=s.tokens, argmaxes=s.argmaxes, position=s.position, given=s.given, turn=p.turn, stamps=p.stamps,
        layers=c.layers, dim=c.dim, ffn_dim=c.ffn_dim, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim,
        rope_dim=c.rope_dim, vocab=c.vocab, context=context, eps=np.float32(c.eps), count=count,
        advance=int(advance), ring_bytes=p.ring_bytes,
    ))  # fmt: skip
