"""What one head of an attention kernel does, counted exactly: barriers, steps that wait for one another, traffic.

All heads do the same, so one block is launched. The counts come from the unmodified kernel file on the SIMT device,
but for the barriers: for these each `__syncthreads` gets a store before it, and the stores are counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import Variant
from sovereign_lab.measure.memory_trace import SECTOR_BYTES, Trace, trace
from sovereign_lab.models.model import Config
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.notebook.table import Table

KV = {"KV": "half"}
# Volatile, so that no two marks become one; the name of a macro is not expanded again inside itself.
MARK = """\
__shared__ volatile int barrier_mark;
#define __syncthreads() (barrier_mark = 1, __syncthreads())
"""


@dataclass(frozen=True)
class Counts:
    """One head at one length. `barriers`: that the block passes.

    `key_steps`, `value_steps`: positions that the busiest thread takes one after the other, for the scores and for
    the weighted sum. `value_threads`: threads that add up values at all. `stored_scores`:
    bytes written to the scratch array. Sectors are of 32 bytes, loads and stores together; `shared` counts requests.
    """

    threads: int
    barriers: int
    key_steps: int
    value_steps: int
    value_threads: int
    sectors: Mapping[str, int]  # array -> sectors
    stored_scores: int
    shared: int


def arguments(length: int, config: Config = TINYLLAMA, seed: int = 0) -> dict[str, object]:
    """Arguments of the attention op at `length` cached positions, by name: seeded noise, KV in fp16."""
    rng = np.random.default_rng(seed)
    shape = (length, config.kv_heads, config.head_dim)
    return {
        "q": rng.standard_normal((config.heads, config.head_dim), np.float32),
        "keys": rng.standard_normal(shape, np.float32).astype(np.float16),
        "values": rng.standard_normal(shape, np.float32).astype(np.float16),
        "scores": np.zeros((config.heads, length), np.float32),
        "out": np.zeros((config.heads, config.head_dim), np.float32),
        "position": np.array([length - 1], np.int32),
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "context": length,
    }


def trace_head(variant: Variant, length: int, source: str | None = None) -> Trace:
    """Every access of the first head's block, with the heads of TinyLlama; `source` in place of the variant's own."""
    if length < 1:
        raise LabError(f"Attention needs at least 1 position; got {length}.")
    chosen = variant.source if source is None else source
    return trace(chosen, 1, variant.threads, arguments(length), KV, variant.path.name)


def count_head(variant: Variant, length: int) -> Counts:
    """The counts of one head at `length` positions. Raises LabError for a length below 1."""
    plain, marked = trace_head(variant, length), trace_head(variant, length, MARK + variant.source)
    marks = _shared_stores(marked) - _shared_stores(plain)
    events = plain.events[plain.events["shared"] == 0]
    position_bytes = TINYLLAMA.kv_dim * 2
    steps, threads = {}, {}
    for name in ("keys", "values"):
        mine, base = _of(plain, events, name)
        places = np.stack([mine["thread"], (mine["address"] - base) // position_bytes], axis=1)
        who, each = np.unique(np.unique(places, axis=0)[:, 0], return_counts=True)
        steps[name], threads[name] = int(each.max()), len(who)
    scores, _ = _of(plain, events, "scores")
    return Counts(
        threads=variant.threads,
        barriers=marks // variant.threads,
        key_steps=steps["keys"],
        value_steps=steps["values"],
        value_threads=threads["values"],
        sectors=sectors_by_array(plain),
        stored_scores=int(scores["size"][scores["store"] == 1].sum()),
        shared=sum(row.requests for row in plain.lines if row.space == "shared"),
    )


def sectors_by_array(traced: Trace) -> dict[str, int]:
    """Sectors of all global requests, loads and stores, by the array that they go to."""
    table = traced.requests_table[traced.requests_table["shared"] == 0]
    addresses = traced.events["address"][table["first"]]
    return {
        name: int(
            table["sectors"][(addresses >= base) & (addresses < np.uint64(base + nbytes))].sum()
        )
        for name, base, nbytes in traced.arrays
    }


def count_table(variants: Sequence[Variant], length: int) -> Table:
    """The counts side by side: a row a count, a column a variant."""
    counts = [count_head(variant, length) for variant in variants]
    rows = [
        ["threads of the block", *(f"{c.threads}" for c in counts)],
        ["barriers", *(f"{c.barriers:,}" for c in counts)],
        ["keys that a warp takes, one after the other", *(f"{c.key_steps:,}" for c in counts)],
        ["values that a thread adds, one after the other", *(f"{c.value_steps:,}" for c in counts)],
        ["threads that add values", *(f"{c.value_threads}" for c in counts)],
        ["bytes of scores stored", *(f"{c.stored_scores:,}" for c in counts)],
        ["bytes of scores moved", *(f"{c.sectors['scores'] * SECTOR_BYTES:,}" for c in counts)],
        ["bytes of keys moved", *(f"{c.sectors['keys'] * SECTOR_BYTES:,}" for c in counts)],
        ["bytes of values moved", *(f"{c.sectors['values'] * SECTOR_BYTES:,}" for c in counts)],
        ["requests to shared memory", *(f"{c.shared:,}" for c in counts)],
    ]
    return Table([f"one head, {length:,} positions", *(v.name for v in variants)], rows)


def _shared_stores(traced: Trace) -> int:
    return int(((traced.events["shared"] == 1) & (traced.events["store"] == 1)).sum())


def _of(traced: Trace, events: np.ndarray, array: str) -> tuple[np.ndarray, np.uint64]:
    """The events that go to one array, and its first address."""
    base, nbytes = next((b, n) for name, b, n in traced.arrays if name == array)
    low, high = np.uint64(base), np.uint64(base + nbytes)
    return events[(events["address"] >= low) & (events["address"] < high)], low
