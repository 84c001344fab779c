"""Chapter 04: two samplers of the host, what they look at, what the host costs the loop, and draws of the kernel."""

import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from IPython.display import Markdown

from sovereign_lab.devices import Device, Properties, open_device
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.engine.decode_loop import DecodeLoop
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.errors import LabError
from sovereign_lab.kernels import INCLUDE, drawing
from sovereign_lab.kernels.cases import Case
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.measure.ladder import LadderRun
from sovereign_lab.measure.memory_trace import Trace, trace
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.runs import NO_FIGURE, here, recorded_run
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA
from sovereign_lab.notebook.table import Table
from sovereign_lab.notebook.threads import meetings

Candidates = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]  # ids, and their probabilities
Sampler = Callable[[np.ndarray, float, float], Candidates]  # of logits, temperature, top_p
UNLIKELY = 1e-4
RECORDED = "2026-11-30-sm_90-"
MADE_UP, STORY = f"{RECORDED}synthetic-tinyllama-1.1b-sample", f"{RECORDED}storyteller-sample"


# ---- on the host ----


def softmax(scores: np.ndarray, temperature: float = 1.0) -> npt.NDArray[np.float64]:
    """exp(scores / temperature), divided by its sum; float64, of any number of scores."""
    exponentials = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    return exponentials / exponentials.sum()


def full_sort(logits: np.ndarray, temperature: float, top_p: float) -> Candidates:
    """What may be drawn, likeliest first, as in phase 0: every token is sorted. `logits` float32 [vocab]."""
    probabilities = softmax(logits)
    order = np.argsort(-probabilities, kind="stable")
    kept = order[: reaching(probabilities[order], top_p)]
    return kept, softmax(logits[kept], temperature)


def filtered(logits: np.ndarray, temperature: float, top_p: float) -> Candidates:
    """What may be drawn as in the seed's phase 2: tokens less likely than 1e-4 are dropped, the others sorted.

    The same as `full_sort` wherever the others together reach top_p; elsewhere the tail is cut. Where no token has
    1e-4, only the likeliest is left, and what equals it.
    """
    probabilities = softmax(logits)
    likely = np.flatnonzero(probabilities >= min(UNLIKELY, probabilities.max()))
    order = likely[np.argsort(-probabilities[likely], kind="stable")]
    kept = order[: reaching(probabilities[order], top_p)]
    return kept, softmax(logits[kept], temperature)


def reaching(probabilities: np.ndarray, top_p: float) -> int:
    """How many of the sorted probabilities it takes to sum to top_p; all where top_p is 1."""
    if top_p >= 1:
        return len(probabilities)
    return int(np.searchsorted(np.cumsum(probabilities), top_p)) + 1


def made_logits(vocab: int = 32_000, seed: int = 0) -> dict[str, np.ndarray]:
    """Logits of made-up distributions over `vocab` tokens in mixed order: sure, as word counts fall, flat."""
    rng = np.random.default_rng(seed)
    ranks = rng.permutation(vocab) + 1.0
    return {
        "sure: 1 / rank^3": (-3 * np.log(ranks)).astype(np.float32),
        "like word counts: 1 / rank": -np.log(ranks).astype(np.float32),
        "nearly flat": (0.1 * rng.standard_normal(vocab)).astype(np.float32),
    }


def filter_table(distributions: Mapping[str, np.ndarray], top_p: float) -> Table:
    """By distribution: tokens, those of at least 1e-4 and their mass, what top_p keeps by each of the two samplers."""
    rows = []
    for name, logits in distributions.items():
        probabilities = softmax(logits)
        likely = probabilities[probabilities >= UNLIKELY]
        full, cut = (sampler(logits, 1.0, top_p)[0] for sampler in (full_sort, filtered))
        rows.append(
            [
                name,
                f"{len(logits):,}",
                f"{len(likely):,}",
                f"{likely.sum():.1%}",
                f"{len(full):,}",
                f"{len(cut):,}",
                "yes" if np.array_equal(full, cut) else "no",
            ]
        )
    head = ["distribution", "tokens", "of at least 1e-4", "their mass"]
    return Table([*head, f"full sort keeps at {top_p:g}", "the filter keeps", "the same"], rows)


def host_times(distributions: Mapping[str, np.ndarray], repeats: int = 15) -> Table:
    """Times of this machine's CPU, medians: the softmax alone, and the two samplers with it, at top_p 0.95."""

    def us(function: Any, *args: Any) -> float:
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            function(*args)
            samples.append(1e6 * (time.perf_counter() - start))
        return statistics.median(samples)

    rows = []
    for name, logits in distributions.items():
        alone = us(softmax, logits)
        full, cut = us(full_sort, logits, 0.8, 0.95), us(filtered, logits, 0.8, 0.95)
        cells = [f"{t:,.0f} us" for t in (alone, full, cut)]
        rows.append([name, *cells, f"{full / cut:.1f} times as fast"])
    return Table(["distribution", "softmax alone", "full sort", "filter, then sort", "ratio"], rows)


# ---- in the loop ----


@dataclass
class Traffic:
    """What passed between host and device: how often the host waited for a copy, and bytes each way."""

    waits: int = 0
    to_host: int = 0
    to_device: int = 0


@contextmanager
def counted(device: Device) -> Iterator[Traffic]:
    """Count the copies of `device` while the block runs; each copy to the host waits for all launches before it."""
    traffic = Traffic()
    to_host, update = device.to_host, device.update

    def counted_to_host(array: Any) -> np.ndarray:
        host = to_host(array)
        traffic.waits += 1
        traffic.to_host += host.nbytes
        return host

    def counted_update(array: Any, host: np.ndarray) -> None:
        traffic.to_device += host.nbytes
        update(array, host)

    vars(device).update(to_host=counted_to_host, update=counted_update)
    try:
        yield traffic
    finally:
        del vars(device)["to_host"], vars(device)["update"]


def on_host(sampling: Sampling, vocab: int) -> Sampling:
    """The same choice, left to the host: a top_k of the whole vocabulary drops nothing, and no kernel has it."""
    return replace(sampling, top_k=vocab)


def loop_traffic(engine: Engine, sampling: Sampling, tokens: int) -> Traffic:
    """What passes between host and device while `tokens` tokens are decoded in one go."""
    prompt = engine.model.tokenizer.encode("Once upon a time")
    loop = DecodeLoop(engine, sampling, prompt)
    engine.prefill(prompt, loop.given)
    with counted(engine.device) as traffic:
        loop.run(tokens)
    return traffic


def traffic_table(by_place: Mapping[str, Traffic], tokens: int, vocab: int) -> Table:
    """A token's share of each `loop_traffic`; and its bytes to the host for a vocabulary of 32,000."""
    rows = []
    for name, t in by_place.items():
        logits = t.to_host - t.to_host % (4 * vocab)
        larger = (t.to_host - logits + logits // vocab * 32_000) / tokens
        cells = (t.waits / tokens, t.to_host / tokens, t.to_device / tokens, larger)
        rows.append([name, *(f"{cell:,g}" for cell in cells)])
    head = ["who draws", "waits a token", "bytes to the host", "bytes to the device"]
    return Table([*head, "bytes to the host, were there 32,000 tokens"], rows)


# ---- the kernel ----


def excerpt(header: str, *names: str) -> Markdown:
    """Functions of a header under kernels/include/, by name, with the comments above them; without names, all of it."""
    text = (INCLUDE / header).read_text()
    if names:
        # From the comment above a function to the brace that ends it, at the start of a line.
        function = r"((?:^//.*\n)*^__device__ [^;]*?\b(\w+)\([^;]*?\{\n(?:.*\n)*?\})"
        by_name = {name: block for block, name in re.findall(function, text, re.M)}
        text = "\n\n".join(by_name[name] for name in names)
    return Markdown(f"**`include/{header}`**\n\n```c++\n{text}\n```")


def sample_args(
    logits: np.ndarray, temperature: float, top_p: float, seed: int = 0, position: int = 0
) -> Case:
    """Arguments of the op `sample`, on the host."""
    return {
        "logits": np.asarray(logits, np.float32),
        "best": np.array([np.argmax(logits)], np.int32),
        "choice": np.array([temperature, top_p], np.float32),
        "seed": np.array([seed], np.int32),
        "position": np.array([position], np.int32),
        "drawn": np.array([-1], np.int32),
        "vocab": len(logits),
    }


def draws(
    device: Device, source: Variant | str, args: Case, positions: Sequence[int]
) -> npt.NDArray[np.int64]:
    """The tokens that a variant of `sample`, or a text of one, draws at `positions`, all else as in `args`."""
    kernel = device.compile(source if isinstance(source, str) else source.path, name="sample.cu")
    arrays = device.arguments(args)
    tokens = []
    for position in positions:
        device.update(arrays["position"], np.array([position], np.int32))
        device.launch(kernel, 1, 1024, list(arrays.values()))
        tokens.append(int(device.to_host(arrays["drawn"])[0]))
    return np.array(tokens)


def passes_table(variants: Sequence[Variant], logits: np.ndarray) -> Table:
    """Exact counts of one draw: reads of a logit (the median), load requests, and how often a thread meets others."""
    rows = []
    for variant in variants:
        traced = sample_trace(variant, logits)
        counts = f"{np.median(reads(traced)):g}", f"{traced.requests('load'):,}"
        rows.append([variant.name, *counts, f"{meetings(traced):,}"])
    head = ["variant", "times that a logit is read", "load requests"]
    return Table([*head, "barriers and shuffles of a thread"], rows)


def reads(traced: Trace) -> npt.NDArray[np.int64]:
    """How often each logit is read in a `sample_trace`: int64 [vocab]."""
    first, nbytes = next((base, size) for name, base, size in traced.arrays if name == "logits")
    events = traced.events[(traced.events["store"] == 0) & (traced.events["shared"] == 0)]
    offsets = events["address"].astype(np.int64) - first
    mine = offsets[(offsets >= 0) & (offsets < nbytes)]
    return np.bincount(mine // 4, minlength=nbytes // 4)


def sample_trace(source: Variant | str, logits: np.ndarray, top_p: float = 0.95) -> Trace:
    """One draw at temperature 0.8 with every access kept."""
    args = sample_args(logits, 0.8, top_p, seed=1, position=3)
    if isinstance(source, str):
        return trace(source, 1, 1024, args, name="yours.cu")
    return trace(source.path, 1, 1024, args)


def frequencies(tokens: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """How often each of `ids` is among `tokens`, as a share; raises LabError where a token is none of them."""
    foreign = np.setdiff1d(tokens, ids)
    if foreign.size:
        raise LabError(
            f"Token {foreign[0]} was drawn, and is not one of the {len(ids)} that may be: the kernel is wrong."
        )
    return np.array([(tokens == i).mean() for i in ids])


# ---- as recorded ----


def recorded_table(run: LadderRun, phases: tuple[str, str] = ("0", "2")) -> Table:
    """Milliseconds a token by phase and context, and what the second phase saves."""
    rows = []
    for context in sorted({r.context for r in run.rungs}):
        before, after = (run.rung(phase, context) for phase in phases)
        if before and after:
            saved = 1e3 * (before.ms_per_forward - after.ms_per_forward)
            cells = [f"{r.ms_per_forward:.3f} ms" for r in (before, after)]
            ratio = f"{before.ms_per_forward / after.ms_per_forward:.2f} times as fast"
            rows.append([f"{context:,}", *cells, f"{saved:,.0f} us", ratio])
    return Table(["context", *(f"phase {p}, a token" for p in phases), "saved", "ratio"], rows)


@dataclass(frozen=True)
class DrawTimes:
    """A draw on a GPU at one position of a story: microseconds by variant, and how many tokens `gather` looks at."""

    position: int
    candidates: int
    us: Mapping[str, float]


def story_draws() -> list[DrawTimes]:
    """As recorded on an H200, at every position of the storyteller's story."""
    content = json.loads(in_checkout(f"data/runs/{STORY}.json").read_text())
    return [
        DrawTimes(p["position"], p["candidates"], {v: p[v] for v in op("sample").variants})
        for p in content["positions"]
    ]


def draw_table(story: Sequence[DrawTimes]) -> Table:
    """A draw on an H200 by variant, as recorded: over flat made-up logits, and over a story's."""
    made_up = recorded_run(MADE_UP)
    names = list(op("sample").variants)
    us = {name: [p.us[name] for p in story] for name in names}
    most = max(story, key=lambda p: p.candidates)
    made = [made_up.value(f"  sample:{name}, at position 16") for name in names]
    rows = {
        "made-up weights, 32,000 tokens": made,
        "the storyteller, 2,048 tokens: the median position": [
            statistics.median(us[n]) for n in names
        ],
        "the mean of its positions": [statistics.mean(us[n]) for n in names],
        f"where {most.candidates} tokens are likely enough": [most.us[n] for n in names],
    }
    cells = [[what, *(f"{t:.1f} us" for t in times)] for what, times in rows.items()]
    return Table(["logits", *names], cells)


def sampled_columns(
    run: LadderRun, here_rates: Mapping[str, float], model: str, device: Properties
) -> Table:
    """Phases 0 and 2, sampling, tok/s: the seed's log, the recorded run at its least context, and here."""
    least = min(r.context for r in run.rungs)
    recorded = {r.phase: r.tokens_per_second for r in run.rungs if r.context == least}
    origin = f"{run.environment['device']}, recorded {run.environment['date']}"
    columns: list[tuple[str, str, Mapping[str, float | None]]] = [
        (f"{GPU_NAME}, the seed's log", TINYLLAMA.name,
         {p: PHASES[p].seed_tokens_per_second for p in ("0", "2")}),
        (origin, run.model, dict(recorded)),
        (here(device), model, dict(here_rates)),
    ]  # fmt: skip
    pairs = [(rates.get("0"), rates.get("2")) for _, _, rates in columns]
    rows = [["model", *(name for _, name, _ in columns)]]
    for phase, rates in zip(("0", "2"), zip(*pairs, strict=True), strict=True):
        rows.append([f"phase {phase}", *(f"{r:.2f} tok/s" if r else NO_FIGURE for r in rates)])
        rows.append(["", *(f"{1e3 / r:.2f} ms" if r else "" for r in rates)])
    ratios = [f"{b / a:.2f} times as fast" if a and b else NO_FIGURE for a, b in pairs]
    rows.append(["2 over 0", *ratios])
    return Table(["", *(name for name, _, _ in columns)], rows)


# ---- exercise 04.1: min-p in place of top-p ----

MIN_P_CASES = (
    # what makes it hard, vocabulary, spread, temperature, min_p
    ("one token in ten kept", 900, 1.0, 1.0, 0.1),
    ("a hot temperature", 900, 3.0, 3.0, 0.1),
    ("a cold temperature", 900, 3.0, 0.3, 0.02),
    ("all logits negative", 900, 3.0, 1.0, 0.05),
    ("min_p 1: the likeliest, and what equals it", 50, 1.0, 1.0, 1.0),
    ("min_p 0: all tokens", 50, 3.0, 3.0, 0.0),
    ("one token", 1, 1.0, 1.0, 0.5),
)
MIN_P_DRAWS = 40


def min_p_fault(source: str) -> str | None:
    """What is wrong with a `sample` that takes choice[1] for min_p; None for nothing. Raises LabError as devices do."""
    device = open_device("simt")
    rng = np.random.default_rng(4)
    for name, vocab, spread, temperature, min_p in MIN_P_CASES:
        logits = (spread * rng.standard_normal(vocab)).astype(np.float32)
        if "negative" in name:
            logits -= 100
        if min_p == 1:
            logits[[7, 3, 30]] = 5
        likelihood = np.exp(logits.astype(np.float64) - logits.max())
        kept = np.flatnonzero(likelihood >= float(np.float32(min_p)) * (1 - 1e-6))
        expected = _inside(logits, kept, temperature)
        args = sample_args(logits, temperature, min_p)
        found = draws(device, source, args, list(expected))
        case = f"{name} (min_p {min_p:g}, temperature {temperature:g})"
        for token, right in zip(found.tolist(), expected.values(), strict=True):
            if not 0 <= token < vocab:
                return f"{case}: {token} was drawn, which is no token."
            if token not in kept:
                return (
                    f"{case}: token {token} was drawn. It is {likelihood[token]:.2g} times as likely as the likeliest, "
                    f"which is too little."
                )
            if token != right:
                return (
                    f"{case}: token {token} was drawn in place of {right}: not all of the {len(kept)} tokens are kept "
                    "that should be, or their shares are others."
                )
    return None


def _inside(logits: np.ndarray, kept: np.ndarray, temperature: float) -> dict[int, int]:
    """Positions of seed 0 at which rounding cannot decide the draw, and what is drawn there."""
    ends = np.cumsum(softmax(logits[kept], temperature))
    found: dict[int, int] = {}
    position = 0
    while len(found) < MIN_P_DRAWS:
        point = drawing.uniform(0, position)
        if np.abs(ends[:-1] - point).min(initial=1.0) > 1e-6:
            found[position] = int(kept[np.searchsorted(ends, point * ends[-1], side="right")])
        position += 1
    return found


def logit_loads(source: str) -> int:
    """Load requests of one draw over 2,048 logits that fall off as word counts do."""
    logits = made_logits(2048)["like word counts: 1 / rank"]
    return sample_trace(source, logits, top_p=0.05).requests("load")
