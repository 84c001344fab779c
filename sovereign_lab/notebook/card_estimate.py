"""What another card would do, from counted bytes and measured waits: an estimate with two ends, and exercise 23.1.

A token's bytes come at the card's bandwidth; its waits (messages, barriers, attention, sums) are so many microseconds a
layer and so many more a token. Where bytes come while blocks wait, the longer of the two is the time; where they take
turns, their sum is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sovereign_lab.measure.decode import DecodeRun, Stages
from sovereign_lab.measure.roofline import GPU, GPUS, find_gpu
from sovereign_lab.notebook.table import Table


@dataclass(frozen=True)
class Card:
    """Bandwidth in GB/s (10^9 bytes a second), and the waits in microseconds: of a layer, and of a token besides."""

    bandwidth: float
    layer_us: float
    token_us: float


@dataclass(frozen=True)
class Load:
    """What a token reads, in bytes: `layers` layers together, the head, and for each position before it."""

    layers: int
    layer_bytes: int
    head_bytes: int
    kv_bytes: int


Answer = Callable[[Card, Load, int], Any]


def estimate(card: Card, load: Load, context: int) -> tuple[float, float]:
    """Microseconds of a token at a context: where bytes come during waits, and where the two take turns."""
    nbytes = load.layer_bytes + load.head_bytes + context * load.kv_bytes
    read = nbytes / (card.bandwidth * 1e3)
    wait = load.layers * card.layer_us + card.token_us
    return max(read, wait), read + wait


CASES = (
    ("bytes only", Card(1000.0, 0.0, 0.0), Load(22, 500_000_000, 60_000_000, 20_000), 0, "The bytes: layers and head."),
    ("a long context", Card(500.0, 0.0, 0.0), Load(22, 500_000_000, 60_000_000, 20_000), 2000,
     "Every position before the token adds its keys and values."),
    ("waits only", Card(math.inf, 10.0, 25.0), Load(22, 500_000_000, 60_000_000, 20_000), 16,
     "A wait of each layer, and those of a token once."),
    ("a fast memory", Card(4000.0, 11.0, 20.0), Load(22, 545_000_000, 69_600_000, 22_528), 128,
     "Where bytes come during the waits, the longer of the two counts; in turn, both do."),
    ("a slow memory", Card(448.0, 11.0, 20.0), Load(22, 545_000_000, 69_600_000, 22_528), 128,
     "Where bytes come during the waits, the longer of the two counts; in turn, both do."),
    ("another model", Card(1008.0, 8.0, 5.0), Load(30, 60_000_000, 30_000_000, 11_520), 256,
     "The number of layers is the load's."),
)  # fmt: skip


def fault(answer: Answer) -> str | None:
    """What is wrong with an answer, "" where it is still the starter, None where every estimate is right."""
    for what, card, load, context, hint in CASES:
        try:
            got = answer(card, load, context)
        except Exception as error:  # whatever a learner's code raises is theirs to read
            return f"{what}: yours raises {type(error).__name__}: {error}."
        if got is None:
            return ""
        try:
            pair = tuple(map(float, got))
        except (TypeError, ValueError):
            pair = ()
        if len(pair) != 2:
            return (
                f"Two numbers are asked for, during the waits and in turn; yours returns {got!r}."
            )
        for mine, right, which in zip(
            pair, estimate(card, load, context), ("during the waits", "in turn"), strict=True
        ):
            if not abs(mine - right) <= 1e-6 * right:
                return (
                    f"{what}, {which}: {right:,.2f} us is right, and yours says {mine:,.2f}. {hint}"
                )
    return None


# ---- from a recorded run ----


def waits(found: Stages) -> tuple[float, float]:
    """Microseconds of all stages but the products: a layer's mean, and the start and the best token of a token.

    The head is left out: it is bytes almost alone.
    """
    products = sum(sum(us) for stage, us in found.us.items() if stage.endswith(": product"))
    layers = len(next(iter(found.us.values())))
    return found.layer_us - products / layers, found.start_us + found.best_us


def load_of(run: DecodeRun, name: str, layers: int) -> Load:
    """What a token of an engine of the run reads."""
    return Load(layers, run.layer_bytes, run.heads[name], run.kv_bytes)


def estimates(run: DecodeRun, context: int) -> dict[str, tuple[GPU, float, tuple[float, float]]]:
    """Card -> its bandwidth, the time of the bytes alone, and both ends, with the waits that the run's GPU had."""
    found = run.stages[0]
    layer_us, token_us = waits(found)
    load = load_of(run, found.name, len(next(iter(found.us.values()))))
    results = {}
    for gpu in GPUS:
        card = Card(gpu.bandwidth, layer_us, token_us)
        bytes_us = estimate(Card(gpu.bandwidth, 0, 0), load, context)[0]
        results[gpu.name] = gpu, bytes_us, estimate(card, load, context)
    return results


def estimates_table(run: DecodeRun, context: int) -> Table:
    """Both ends for every card of roofline.GPUS, and what was measured, which is one card alone."""
    here = find_gpu(run.environment["device"])
    rows = []
    for name, (gpu, bytes_us, (during, turns)) in estimates(run, context).items():
        measured = (
            f"{run.us(run.stages[0].name, context):,.0f} us"
            if here and name == here.name
            else "not measured"
        )
        rows.append(
            [
                name,
                f"{gpu.bandwidth:,.0f} GB/s, {gpu.origin}",
                f"{bytes_us:,.0f} us",
                f"{during:,.0f} to {turns:,.0f} us",
                measured,
            ]
        )
    return Table(["card", "bandwidth", "bytes alone", "with this run's waits", "measured"], rows)
