"""The five challenges of the open bench: an op each, what is counted, and the grades.

A grade rests on counts of the memory trace alone, which are the same on every machine. Each `gold` is what a kernel
under notebooks/solutions/ reaches; each `parent` is what the registry's kernel makes at the same arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sovereign_lab.kernels.cases import Case
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.memory_trace import Trace
from sovereign_lab.measure.workload import config_of, workload
from sovereign_lab.notebook.table import Table

Grade = Literal["bronze", "silver", "gold"]
GRADES: tuple[Grade, ...] = ("bronze", "silver", "gold")
MODEL = "synthetic:tinyllama-1.1b"
ROWS = 64  # of a matrix that is counted: its rows are alike


@dataclass(frozen=True)
class Measure:
    """Something that a trace counts, with its name in the plural."""

    name: str
    of: Callable[[Trace], int]


@dataclass(frozen=True)
class Challenge:
    """What to improve, how it is counted, and from how few on which grade is given.

    `ways` names for each grade the idea that leads there, without the code. `limits` are further measures with the
    most that a graded kernel may make, so that one cost is not paid with another. `sizes` says at which arguments is
    counted. `more` makes further arguments that a kernel must be right at, beside the op's odd shapes and the
    arguments that are counted. `one_block_of` is the number of threads that the one block must have, where that is
    fixed. `refused`: a pattern that may not stand in the source, and why.
    """

    id: str
    op: str
    like: str
    bottleneck: str
    task: str
    measure: Measure
    parent: int
    bronze: int
    silver: int
    gold: int
    ways: tuple[str, str, str]
    limits: tuple[tuple[Measure, int], ...]
    sizes: str
    more: Callable[[], list[Case]]
    one_block_of: int | None = None
    refused: tuple[str, str] | None = None

    def most(self, grade: Grade) -> int:
        """The most that a kernel of this grade makes."""
        return {"bronze": self.bronze, "silver": self.silver, "gold": self.gold}[grade]

    def grade(self, count: int) -> Grade | None:
        """The best grade of a count, None below bronze."""
        return next((g for g in reversed(GRADES) if count <= self.most(g)), None)

    def arguments(self) -> dict[str, Any]:
        """The arguments of the launch that is counted: TinyLlama's, at position 63; of a matrix ROWS rows."""
        args = workload(op(self.op), config_of(MODEL))
        if "rows" in args:
            args |= {"W": args["W"][:ROWS], "y": args["y"][:ROWS], "rows": ROWS}
        return args


# ---- what is counted ----


def _requests(t: Trace) -> int:
    return t.requests("load") + t.requests("store")


def _sectors(t: Trace) -> int:
    return t.sectors("load") + t.sectors("store")


def _barriers(t: Trace) -> int:
    return sum(row.barriers for row in t.flow)


def _exchanges(t: Trace) -> int:
    handed = sum(row.shuffles + row.votes for row in t.flow)
    return handed + _barriers(t) + sum(row.wavefronts for row in t.lines if row.space == "shared")


REQUESTS = Measure("requests to global memory", _requests)
LOADS = Measure("load requests", lambda t: t.requests("load"))
SECTORS = Measure("sectors of all requests", _sectors)
LOAD_SECTORS = Measure("sectors of load requests", lambda t: t.sectors("load"))
BARRIERS = Measure("barriers, each counted for every warp", _barriers)
EXCHANGES = Measure(
    "shuffles, votes, barriers and shared-memory wavefronts of all warps", _exchanges
)


# ---- at which arguments a kernel must be right besides ----


def _poison(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def _long_norms() -> list[Case]:
    """A vector longer than threads can keep, and one whose length is even and no multiple of 4."""
    rng = np.random.default_rng(14)
    return [
        {
            "x": rng.standard_normal(dim, np.float32),
            "weight": rng.standard_normal(dim, np.float32),
            "y": _poison(dim),
            "dim": dim,
            "eps": np.float32(1e-5),
        }
        for dim in (5000, 2050)
    ]


def _equal_logits() -> list[Case]:
    """Nothing but equals; and two of them of which a later thread finds the first, in the same lane of another warp."""
    pair = np.full(2100, -3, np.float32)
    pair[[37, 1029]] = 1  # of threads 37 and 5
    logits = (np.zeros(2100, np.float32), pair)
    return [{"logits": x, "best": np.array([-1], np.int32), "vocab": x.size} for x in logits]


def _long_text() -> list[Case]:
    """A later position, at which every warp has several turns; one score far above those before it."""
    rng = np.random.default_rng(14)
    heads, kv_heads, head_dim, length, context = 6, 2, 64, 301, 310
    keys, values = (np.full((context, kv_heads, head_dim), np.nan, np.float16) for _ in range(2))
    keys[:length] = rng.standard_normal((length, kv_heads, head_dim), np.float32)
    values[:length] = rng.standard_normal((length, kv_heads, head_dim), np.float32)
    keys[290] *= 6
    return [
        {
            "q": rng.standard_normal((heads, head_dim), np.float32),
            "keys": keys,
            "values": values,
            "scores": _poison(heads, context),
            "out": _poison(heads, head_dim),
            "position": np.array([length - 1], np.int32),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "context": context,
        }
    ]


# ---- the challenges, from easy to hard ----

CHALLENGES: dict[str, Challenge] = {}


def _challenge(**facts: Any) -> None:
    CHALLENGES[facts["id"]] = Challenge(**facts)


_challenge(
    id="14.1",
    op="rmsnorm",
    like="block",
    bottleneck="requests: every value of x is asked for twice, and four bytes at a time",
    task="ask global memory less often",
    measure=REQUESTS,
    parent=256,
    bronze=192,
    silver=64,
    gold=48,
    ways=(
        "read x once: a thread can keep what it squared until it scales it",
        "move 16 bytes with each request; a length that is no multiple of 4 needs another way",
        "do both: each thread keeps a few float4, and a vector that is longer is read again behind them",
    ),
    limits=((BARRIERS, 8),),
    sizes="dim = 2,048",
    more=_long_norms,
    one_block_of=256,
)
_challenge(
    id="14.2",
    op="argmax",
    like="block",
    bottleneck="the reduction: 32 warps shuffle two numbers five times, and then all do it again",
    task="let the threads hand over less",
    measure=EXCHANGES,
    parent=800,
    bronze=430,
    silver=330,
    gold=140,
    ways=(
        "behind the barrier one warp is enough",
        "shuffle the values alone: once the largest is known, a ballot tells which lanes have it",
        "31 warps need not reduce at all: let them write down what they found, and one warp look at it",
    ),
    limits=((LOADS, 1000),),
    sizes="vocab = 32,000",
    more=_equal_logits,
    one_block_of=1024,
    refused=(
        r"\blong\b|\bdouble\b|int64_t|\bsize_t\b",
        "A shuffle moves 32 bits; of 64 a GPU makes two, and the trace counts one. So that counts compare, do with "
        "types of 32 bits: `long`, `double`, `size_t` and their kin are not accepted here.",
    ),
)
_challenge(
    id="14.3",
    op="rope_kv",
    like="fixed",
    bottleneck="sectors: each request takes every other float, so that two requests fetch the same sectors",
    task="touch each sector once",
    measure=SECTORS,
    parent=1396,
    bronze=900,
    silver=800,
    gold=700,
    ways=(
        "the two numbers of a pair lie side by side: load and store q's as one float2",
        "the same for k, v and both caches, where two halves make a half2",
        "each warp fetches position and angles: let a thread turn two neighbouring pairs, and there are half as many",
    ),
    limits=(),
    sizes="32 heads and 4 KV heads of 64, position 63, the cache in FP16",
    more=list,
)
_challenge(
    id="14.4",
    op="attention",
    like="online_softmax",
    bottleneck="requests: a lane takes two bytes of a key at a time, and a whole warp one position",
    task="fetch keys and values with fewer requests, and no more sectors than it takes",
    measure=LOADS,
    parent=8960,
    bronze=4900,
    silver=2600,
    gold=1800,
    ways=(
        "two neighbouring dimensions a lane: half2",
        "four of them: sixteen lanes cover a head of 64, so that a warp works on two positions at once",
        "eight of them, 16 bytes: a warp works on four positions, and each group keeps a softmax of its own",
    ),
    limits=((LOAD_SECTORS, 21_000),),
    sizes="32 heads and 4 KV heads of 64, 64 positions, the cache in FP16",
    more=_long_text,
)
_challenge(
    id="14.5",
    op="gemv_q4_0",
    like="float4",
    bottleneck="requests: a block of 18 bytes is picked up in pieces of one and two bytes",
    task="fetch W and x with fewer requests, and no more sectors",
    measure=LOADS,
    parent=6144,
    bronze=4096,
    silver=1280,
    gold=512,
    ways=(
        "16 bits at a time, as in exercise 12.1",
        "a row is a run of bytes like any other: fetch it 16 aligned bytes a lane into shared memory, and pick it "
        "apart there",
        "the warps of a block need the same x: fetch it once for all of them",
    ),
    limits=((LOAD_SECTORS, 31_232),),
    sizes="64 rows of 2,048 columns",
    more=list,
)


def challenge_table() -> Table:
    """All challenges, a line each: what is counted, what the registry's kernel makes, and the grades."""
    rows = [
        [c.id, c.op, c.measure.name, c.sizes, f"{c.parent:,} ({c.like})", *(f"{c.most(g):,}" for g in GRADES)]
        for c in CHALLENGES.values()
    ]  # fmt: skip
    return Table(["", "op", "counted", "at", "now", *GRADES], rows)
