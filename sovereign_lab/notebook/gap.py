"""What the gap to llama.cpp is made of on an H200: from recorded figures only, and no further than they go.

Ours is taken apart by op; of llama.cpp only the time of a whole token was recorded. So what each part has above the
least its bytes allow is known on our side and not on the other: a part's share of the gap has bounds, no value.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType

from sovereign_lab.errors import LabError
from sovereign_lab.measure.roofline import GPU, find_gpu, floor, token_bytes
from sovereign_lab.notebook.context_times import by_position
from sovereign_lab.notebook.op_times import op_times
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.runs import Run
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.notebook.table import Table

PEER_RUN = "data/runs/2026-11-30-sm_90-llama_cpp-tinyllama-1.1b.json"
PEER_HEAD = GGMLQuantizationType.Q6_K
# llama-bench generates 128 tokens behind each depth, `bench` measured 32 forward passes from each position on.
PEER_TOKENS, OUR_TOKENS = 128, 32
Q4_0_OPS = ("gemv_q4_0", "ffn_swiglu")
NODE_US = 0.54
"""Microseconds of an empty kernel as a node of a CUDA graph, measured on an H200 through CuPy 14.2."""


@dataclass(frozen=True)
class Peer:
    """llama.cpp with flash attention, as recorded: tokens/s by depth, the positions before the first token."""

    device: str
    date: str
    rates: Mapping[int, float]

    @property
    def origin(self) -> str:
        """ "llama.cpp, NVIDIA H200, recorded 2026-11-30"."""
        return f"llama.cpp, {self.device}, recorded {self.date}"

    def us(self, depth: int = 0) -> float:
        """Microseconds a token."""
        return 1e6 / self.rates[depth]


@dataclass(frozen=True)
class Part:
    """Time of ours above the least that bytes allow: `us` a token, where it comes from, and in how many launches.

    `peer_us`: what llama.cpp spends on the same, None where that is not known.
    """

    name: str
    us: float
    evidence: str
    launches: int = 0
    peer_us: float | None = None


@dataclass(frozen=True)
class Gap:
    """Ours and llama.cpp's time of a token, us; `floor_us` is the least for llama.cpp's bytes, so below both.

    ours = floor_us + the sum of all parts; the peer's = floor_us + `peer_above_us`, which nothing takes apart.
    """

    ours_us: float
    peer_us: float
    floor_us: float
    parts: tuple[Part, ...]

    @property
    def us(self) -> float:
        """How much longer ours takes."""
        return self.ours_us - self.peer_us

    @property
    def peer_above_us(self) -> float:
        """What llama.cpp takes above the same floor."""
        return self.peer_us - self.floor_us

    def bounds(self, part: Part) -> tuple[float, float]:
        """The least and the most that a part can be of the gap, us: llama.cpp spends between 0 and all it has on it."""
        if part.peer_us is not None:
            return part.us - part.peer_us, part.us - part.peer_us
        return part.us - self.peer_above_us, part.us


def peer() -> Peer:
    """The recorded run of llama.cpp with flash attention."""
    content = json.loads(in_checkout(PEER_RUN).read_text())
    facts = content["environment"]
    rates = {t["depth"]: t["tokens_per_second"] for t in content["tests"] if t["flash_attention"]}
    return Peer(facts["device"], facts["date"], rates)


def our_us(run: Run, phase: str, position: float) -> float:
    """Microseconds of our forward pass at a position, `on_the_lines` of a recorded run of `bench`."""
    return 1e3 * on_the_lines(by_position(run, phase), OUR_TOKENS, position)


def on_the_lines(times: Mapping[int, float], tokens: int, position: float) -> float:
    """The time at a position, on the straight lines through `times`: the first position of `tokens` -> their mean.

    Such a mean stands for the middle of its positions. Raises LabError for a position that they do not cover.
    """
    starts, means = np.array(list(times)), np.array(list(times.values()))
    middles = starts + (tokens - 1) / 2
    if not starts[0] <= position <= middles[-1]:
        raise LabError(
            f"Positions {starts[0]:g} to {middles[-1]:g} were recorded; {position:g} was asked for."
        )
    i = max(1, int(np.searchsorted(middles, position)))
    slope = (means[i] - means[i - 1]) / (middles[i] - middles[i - 1])
    return float(means[i - 1] + slope * (position - middles[i - 1]))


def gap(run: Run, phase: str = "8c") -> Gap:
    """The gap at short context, taken apart; `run` has the ops of `phase` alone, at position 16."""
    them, gpu = peer(), _gpu(run)
    ops, alone_at = op_times(run, phase), 16
    ours, theirs = token_bytes(TINYLLAMA), token_bytes(TINYLLAMA, PEER_HEAD)
    at = (PEER_TOKENS - 1) / 2
    ours_us, pass_us = (our_us(run, phase, position) for position in (at, alone_at))
    layers_us = 1e3 * floor(ours.layers, gpu).ms
    head_us, their_head_us = (1e3 * floor(b.head, gpu).ms for b in (ours, theirs))
    small = [name for name in ops if name not in (*Q4_0_OPS, "logits", "attention")]
    parts = (
        Part(
            "the head in FP32",
            head_us - their_head_us,
            f"{(ours.head - theirs.head) / 1e6:.0f} MB more than as {PEER_HEAD.name}, at {gpu.bandwidth:,.0f} GB/s",
            peer_us=0.0,
        ),
        Part(
            "the head, above its bytes",
            ops["logits"].us - head_us,
            "logits alone, less its floor",
            ops["logits"].launches,
        ),
        Part(
            "Q4_0 products, above their bytes",
            sum(ops[name].us for name in Q4_0_OPS) - layers_us,
            f"{' and '.join(Q4_0_OPS)} alone, less {layers_us:.0f} us for {ours.layers / 1e6:.0f} MB",
            sum(ops[name].launches for name in Q4_0_OPS),
        ),
        Part(
            f"attention at position {alone_at}",
            ops["attention"].us,
            "attention alone",
            ops["attention"].launches,
        ),
        Part(
            f"attention, from {alone_at} to {at:.0f}",
            ours_us - pass_us,
            f"the pass at {at:.0f}, less the one at {alone_at}, on a line through the recorded ones",
        ),
        Part(
            "small ops",
            sum(ops[name].us for name in small),
            f"{', '.join(small)}, each alone",
            sum(ops[name].launches for name in small),
        ),
        Part(
            "between the ops: the rest",
            pass_us - sum(op.us for op in ops.values()),
            f"the pass at {alone_at}, less all ops alone",
        ),
    )
    return Gap(ours_us, them.us(), layers_us + their_head_us, parts)


def parts_table(found: Gap) -> Table:
    """Each part: its time, launches, where it comes from, and the least and the most of the gap that it can be."""
    rows = []
    for part in found.parts:
        least, most = found.bounds(part)
        bounds = (
            (f"{least:,.0f} us", f"{least:,.0f} us")
            if least == most
            else (f"{max(0.0, least):,.0f} us", f"{min(found.us, most):,.0f} us")
        )
        rows.append(
            [part.name, f"{part.us:,.0f} us", str(part.launches or ""), *bounds, part.evidence]
        )
    total, launches = sum(p.us for p in found.parts), sum(p.launches for p in found.parts)
    rows.append(["ours above the floor", f"{total:,.0f} us", str(launches), "", "", ""])
    rows.append(["llama.cpp above it", f"{found.peer_above_us:,.0f} us", "", "", "", "one figure"])
    rows.append(["the gap", f"{found.us:,.0f} us", "", "", "", ""])
    head = ["part", "ours", "launches", "of the gap, at least", "at most", "from"]
    return Table(head, rows)


def growth_table(run: Run, phase: str = "8c") -> Table:
    """By depth: both times, and how much of the gap grew with the position, which only attention depends on."""
    them, rows = peer(), []
    for depth, (ours_us, gap_us, grown) in growth(run, phase).items():
        share = f"{grown / gap_us:.0%}" if depth else ""
        times = (ours_us, them.us(depth), gap_us, grown)
        rows.append([f"{depth:,}", *(f"{us:,.0f} us" for us in times), share])
    head = ["depth", f"ours, phase {phase}", "llama.cpp", "the gap", "grown", "of the gap"]
    return Table(head, rows)


def growth(run: Run, phase: str = "8c") -> dict[int, tuple[float, float, float]]:
    """Depth -> our us, the gap, and what of the gap was not there at depth 0."""
    them = peer()
    ours = {d: our_us(run, phase, d + (PEER_TOKENS - 1) / 2) for d in them.rates}
    gaps = {d: ours[d] - them.us(d) for d in ours}
    return {d: (ours[d], gaps[d], gaps[d] - gaps[0]) for d in ours}


def _gpu(run: Run) -> GPU:
    gpu = find_gpu(run.device)
    if gpu is None:
        raise LabError(f"No bandwidth is known for {run.device}; see roofline.GPUS.")
    return gpu
