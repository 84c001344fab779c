"""Attention in splits, for chapter 21: steps that wait for one another, exact counts, and parts of a softmax that meet.

Counts are of one KV head of TinyLlama and its eight query heads; the other three do the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.kernels import INCLUDE
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import SECTOR_BYTES, Trace, trace
from sovereign_lab.models.model import Config
from sovereign_lab.notebook.attention_counts import KV, arguments, count_head, sectors_by_array
from sovereign_lab.notebook.runs import Run
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.notebook.table import Table

# In kernels/include/split_attention.cuh: query heads of a bundle, positions of a warp, of a block.
BUNDLE, PER_WARP, SPLIT = 8, 32, 256
WARPS = 8
PRODUCT = 16 * 8 * 16  # multiplications of an mma_16x8x16
GROUP = replace(TINYLLAMA, heads=TINYLLAMA.heads // TINYLLAMA.kv_heads, kv_heads=1)

# ---- what the kernel of phases 8b to 11 waits for, from a recorded run ----


def chain_table(run: Run, positions: Sequence[int], config: Config = TINYLLAMA) -> Table:
    """attention:online_softmax by position: us a token, us a launch, positions a warp takes in turn, us a position."""
    rows = []
    for position in positions:
        us, steps = attention_us(run, position), -(-position // WARPS)
        rows.append(
            [
                f"{position:,}",
                f"{us:,.0f} us",
                f"{us / config.layers:,.1f} us",
                f"{steps:,}",
                f"{us / config.layers / steps:.2f} us",
            ]
        )
    head = ["position", "22 launches", "a launch", "positions a warp takes in turn", "a position"]
    return Table(head, rows)


def attention_us(run: Run, position: int) -> float:
    """Microseconds a token of attention:online_softmax at a position of the recorded run; KeyError for another."""
    return run.value(f"  attention:online_softmax, at position {position}")


def kv_bytes(length: int, config: Config = TINYLLAMA) -> int:
    """Bytes of all cached keys and values in fp16."""
    return 2 * config.layers * length * config.kv_dim * 2


def units_table(lengths: Sequence[int], sms: int, config: Config = TINYLLAMA) -> Table:
    """By length: blocks of either kernel, and how long the chain of the busiest warp is, in positions and in loads."""
    bundles = config.kv_heads * -(-config.heads // config.kv_heads // BUNDLE)
    rows = []
    for length in lengths:
        splits = -(-length // SPLIT)
        rows.append(
            [
                f"{length:,}",
                f"{config.heads}",
                f"{-(-length // WARPS):,}, one by one",
                f"{bundles} x {splits} = {bundles * splits} (of {sms} SMs)",
                f"{min(length, PER_WARP)}, all at once",
            ]
        )
    return Table(["positions", "blocks, a head each", "a warp's", "blocks, in splits", "a warp's"], rows)  # fmt: skip


# ---- counts ----


@dataclass(frozen=True)
class Counts:
    """What one KV head's share of an attention does; traffic of keys and values in bytes moved."""

    blocks: int
    bytes_of_keys: int
    bytes_of_values: int
    products: int
    steps: int
    launches: int


def split_arguments(length: int, config: Config = GROUP) -> dict[str, Any]:
    """Arguments of attention_split at `length` cached positions: those of attention, and room for the parts."""
    given, splits = arguments(length, config), -(-length // SPLIT)
    return {
        **{name: given[name] for name in ("q", "keys", "values")},
        "parts": np.zeros((splits, config.heads, config.head_dim), np.float32),
        "softmax": np.zeros((splits, config.heads, 2), np.float32),
        **{name: given[name] for name in ("position", "heads", "kv_heads", "head_dim", "context")},
    }


def trace_split(length: int) -> Trace:
    """Every access of attention_split:mma for one KV head and its query heads."""
    split = op("attention_split")
    variant, args = split.variant("mma"), split_arguments(length)
    grid = -(-length // SPLIT)
    return trace(
        variant.path, grid, variant.threads, args, KV, shared_bytes=variant.shared_bytes(args)
    )


@cache
def count(length: int) -> tuple[Counts, Counts]:
    """One KV head at `length` positions: attention:online_softmax, and attention_split:mma."""
    head = count_head(op("attention").variant("online_softmax"), length)
    traced = trace_split(length)
    moved = sectors_by_array(traced)
    before = Counts(
        blocks=GROUP.heads,
        bytes_of_keys=GROUP.heads * head.sectors["keys"] * SECTOR_BYTES,
        bytes_of_values=GROUP.heads * head.sectors["values"] * SECTOR_BYTES,
        products=0,
        steps=head.key_steps,
        launches=1,
    )
    after = Counts(
        blocks=traced.blocks_launched,
        bytes_of_keys=moved["keys"] * SECTOR_BYTES,
        bytes_of_values=moved["values"] * SECTOR_BYTES,
        products=sum(row.products for row in traced.flow),
        steps=-(-min(length, SPLIT) // (WARPS * PER_WARP)),
        launches=2,
    )
    return before, after


def count_table(length: int) -> Table:
    """Both kernels side by side; last, how much of what the Tensor Cores multiply is needed."""
    before, after = count(length)
    made = after.products * PRODUCT
    needed = 2 * GROUP.heads * length * GROUP.head_dim
    rows = [
        ["blocks", f"{before.blocks}", f"{after.blocks}"],
        ["trips of a warp's loop", f"{before.steps:,}", f"{after.steps}"],
        ["bytes of keys moved", f"{before.bytes_of_keys:,}", f"{after.bytes_of_keys:,}"],
        ["bytes of values moved", f"{before.bytes_of_values:,}", f"{after.bytes_of_values:,}"],
        ["products of Tensor Cores", "0", f"{after.products:,}"],
        ["multiplications made / needed", "1", f"{made / needed:g}"],
        ["launches a layer", f"{before.launches}", f"{after.launches}"],
    ]
    names = ["attention: online_softmax", "attention_split: mma"]
    return Table([f"one KV head, {length:,} positions", *names], rows)


def function_source(name: str, header: str = "split_attention.cuh") -> str:
    """A function of a kernel header with the comment before it. Raises LabError where the header has none."""
    lines = (INCLUDE / header).read_text().splitlines()
    at = next((i for i, line in enumerate(lines) if f" {name}(" in line and "__device__" in line), None)  # fmt: skip
    if at is None:
        raise LabError(f"{header} has no function {name}.")
    indent = len(lines[at]) - len(lines[at].lstrip())
    last = next(i for i in range(at, len(lines)) if lines[i] == " " * indent + "}")
    while lines[at - 1].lstrip().startswith("//"):
        at -= 1
    return "\n".join(
        line[indent:] if indent and line[:indent].isspace() else line
        for line in lines[at : last + 1]
    )


# ---- parts that meet ----


def parts_of(
    scores: np.ndarray, values: np.ndarray, cuts: Sequence[int]
) -> list[tuple[float, float, np.ndarray]]:
    """The parts between `cuts`: each its largest score, its sum of weights, and its mean of values, already divided.

    scores [n], values [n, head_dim]. A part without a position has -inf, 0, and zeros.
    """
    found = []
    for s, v in zip(np.split(scores, cuts), np.split(values, cuts), strict=True):
        if not len(s):
            found.append((-np.inf, 0.0, np.zeros(values.shape[1])))
            continue
        weights = np.exp(s - s.max())
        found.append((float(s.max()), float(weights.sum()), weights @ v / weights.sum()))
    return found


# ---- exercise 21.1: a merge in one pass, that needs nothing of an empty split ----

# By what makes them hard: the largest scaled score of each split (None: it has no position), in base 2.
SPLITS: Mapping[str, Sequence[float | None]] = {
    "one split": [3.0],
    "five splits of different sizes": [1.0, 2.5, 0.5, 2.0, -1.0],
    "two splits, the larger scores first": [9.0, -4.0],
    "two splits, the larger scores last": [-4.0, 9.0],
    "scores above 200": [210.0, 260.0, 255.0],
    "scores below -200": [-300.0, -290.0],
    "an empty split at the end": [1.0, 2.0, None],
    "an empty split in the middle": [1.0, None, 2.0],
    "two empty splits at the start": [None, None, 1.0, 3.0],
}
# Heads and head_dim of the cases.
SHAPES = ((3, 64), (2, 128), (1, 40))


def merge_case(
    name: str, heads: int, head_dim: int, seed: int = 0
) -> tuple[dict[str, Any], np.ndarray]:
    """Arguments of attention_merge, and what `out` must hold. An empty split has -inf and 0, and NaN for its mean."""
    rng = np.random.default_rng(seed)
    splits = SPLITS[name]
    largest = np.array([[-np.inf if s is None else s for s in splits]] * heads).T
    largest = largest + rng.uniform(-0.5, 0.5, (len(splits), heads))
    sums = np.where(np.isinf(largest), 0, rng.uniform(1, 200, largest.shape))
    parts = rng.standard_normal((len(splits), heads, head_dim))
    weights = sums * np.exp2(largest - largest.max(0))
    out = (weights[..., None] * parts).sum(0) / weights.sum(0)[:, None]
    parts[np.isinf(largest)] = np.nan
    args = {
        "parts": parts.astype(np.float32),
        "softmax": np.stack([largest, sums], -1).astype(np.float32),
        "out": np.full((heads, head_dim), np.nan, np.float32),
        "position": np.array([len(splits) * SPLIT - 1], np.int32),
        "heads": heads,
        "head_dim": head_dim,
        "split": SPLIT,
    }
    return args, out


@cache
def softmax_requests(source: str) -> int:
    """Load requests to `softmax` of one head of 64 dimensions and five splits."""
    args, _ = merge_case("five splits of different sizes", 1, 64)
    threads = op("attention_merge").variant("block_per_head").threads
    traced = trace(source, 1, threads, args, name="yours.cu")
    base, nbytes = next((b, n) for name, b, n in traced.arrays if name == "softmax")
    table = traced.requests_table[traced.requests_table["shared"] == 0]
    first = traced.events["address"][table["first"]]
    return int(((first >= base) & (first < np.uint64(base + nbytes))).sum())


def fault(source: str) -> str | None:
    """What is wrong with a merge of exercise 21.1; None for nothing. Raises LabError where it does not run."""
    threads = op("attention_merge").variant("block_per_head").threads
    device = SimtDevice()
    try:
        kernel = device.compile(source, name="yours.cu")
        for heads, head_dim in SHAPES:
            for name in SPLITS:
                args, expected = merge_case(name, heads, head_dim)
                given = device.arguments(args)
                device.launch(kernel, heads, threads, list(given.values()))
                out = device.to_host(given["out"])
                if wrong := _said_of(out, expected):
                    return f"{name}, {heads} heads of {head_dim}: {wrong}"
    finally:
        device.close()
    splits = len(SPLITS["five splits of different sizes"])
    least = softmax_requests(op("attention_merge").variant("block_per_head").source) // 2
    if (now := softmax_requests(source)) > least:
        return (
            f"The results are right, but the softmax of {splits} splits is asked for {now} times; {least} are enough, "
            "where every split is looked at once."
        )
    return None


def _said_of(out: np.ndarray, expected: np.ndarray) -> str | None:
    strange = ~np.isfinite(out)
    if strange.any():
        h, d = np.argwhere(strange)[0]
        hint = (
            "a mean that was never written is no number, even times 0, and -inf minus -inf is none either"
            if np.isnan(out[h, d])
            else "which exponent was not finite?"
        )
        return f"out[{h}, {d}] is {out[h, d]:g}; {hint}."
    wrong = np.abs(out - expected) > 1e-4 * (1 + np.abs(expected))
    if wrong.any():
        h, d = np.argwhere(wrong)[0]
        return f"out[{h}, {d}] is {out[h, d]:.5g}, and should be {expected[h, d]:.5g}."
    return None


def check(source: str) -> str:
    """What a solved exercise says. Raises LabError with what is wrong."""
    wrong = fault(source)
    if wrong is not None:
        raise LabError(wrong)
    before = softmax_requests(op("attention_merge").variant("block_per_head").source)
    return (
        f"{len(SPLITS)} kinds of splits right at {len(SHAPES)} shapes, empty ones among them; requests for the softmax "
        f"of five splits: {before} before, {softmax_requests(source)} after."
    )
