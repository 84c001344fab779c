"""What an experiment does in its worker: load, check a change against the reference, and measure it in turn."""

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.engine.decode_loop import DecodeLoop
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.errors import LabError
from sovereign_lab.kernels import drawing
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.compare import Comparison, in_turn
from sovereign_lab.measure.environment import environment
from sovereign_lab.measure.experiment.progress import round_words
from sovereign_lab.measure.ledger.records import Checks, KernelChange
from sovereign_lab.measure.mine import Edit, with_kernels
from sovereign_lab.measure.timing import GREEDY, decode_ms
from sovereign_lab.measure.worker import device, doing, model, retire
from sovereign_lab.models import reference

TEXT = "Once upon a time"
CHECKED_TOKENS = 16
# Of the largest logit. An order of summation moves them by less; twice the baseline's distance is allowed, too.
TOLERANCE = 1e-3
# How much more, of the distance of the rounded reference to FP32, a phase may be off that rounds to halves, to int8.
HALVES_SHARE, INT8_SHARE = 0.5, 1.5
# How a token is drawn where the change is the op that draws: with another choice that op does not run.
DRAW = Sampling(temperature=0.8, top_p=0.95)
# A draw that lies nearer to another token's share, as a probability, may fall either way by rounding.
NEAR = 1e-4
# To load a model may be to download it, and the baseline is as slow as the machine is.
PATIENCE = 3600.0
MIN_ROUNDS = 5
# Tokens a sample and rounds where the caller names none. A forward pass on the SIMT device takes tens of ms, and no
# number of rounds makes its time that of a GPU.
TOKENS = {"cuda": 16, "simt": 2}
ROUNDS = {"cuda": 11, "simt": MIN_ROUNDS}


@dataclass(frozen=True)
class Job:
    """What a worker is to do. `kernels`: by op, a variant's name or an edit. One of `phase` and `kernels` is given.

    `tokens` a sample and `rounds` are None where the device decides: TOKENS and ROUNDS. `time_limit`: seconds for each
    step of the change; None allows 10 s, or 30 times what the baseline took.
    """

    model: str | None
    baseline: str
    phase: str | None
    kernels: Mapping[str, str | Edit]
    position: int
    tokens: int | None
    rounds: int | None
    time_limit: float | None

    @property
    def name(self) -> str:
        """The change, as messages have it."""
        if self.phase is not None:
            return f"Phase {self.phase}"
        named = (f"{o}:{k if isinstance(k, str) else k.name}" for o, k in self.kernels.items())
        return f"Phase {self.baseline} with {', '.join(named)}"


class Outcome(NamedTuple):
    """What came out: no comparison where the checks are not passed."""

    checks: Checks
    comparison: Comparison | None


class Place(NamedTuple):
    """Where a job runs: the model's name, `environment` of the device with what its times mean, and the true sizes."""

    model: str
    environment: dict[str, str]
    tokens: int
    rounds: int


def changed_kernels(job: Job) -> tuple[KernelChange, ...]:
    """Every kernel that a job changes, with the one in whose place it comes."""
    before = PHASES.phase(job.baseline).plan
    chosen: dict[str, str | Edit] = dict(job.kernels)
    if job.phase is not None:
        after = PHASES.phase(job.phase).plan
        chosen = {o: name for o, name in after.items() if before.get(o) != name}
    found = []
    for op_name, kernel in chosen.items():
        variant = kernel.variant() if isinstance(kernel, Edit) else op(op_name).variant(kernel)
        base = before.get(op_name, "")
        found.append(
            KernelChange(
                op=op_name,
                name=variant.name,
                threads=variant.threads,
                rows_per_block=variant.rows_per_block,
                shared_bytes=kernel.shared_bytes if isinstance(kernel, Edit) else None,
                source=kernel.source if isinstance(kernel, Edit) else variant.source,
                base_name=base,
                base_source=op(op_name).variant(base).source if base else "",
                grid=variant.blocks,
                cooperative=variant.cooperative,
            )
        )
    return tuple(found)


def prepare(job: Job) -> Place:
    """Load the model, and say what the job will run on. Raises LabError for positions that the model does not have."""
    doing("Loading the model", PATIENCE)
    config = model(job.model).config
    kind = device().properties.kind
    tokens = TOKENS[kind] if job.tokens is None else job.tokens
    rounds = ROUNDS[kind] if job.rounds is None else job.rounds
    if job.position + tokens > config.context:
        raise LabError(
            f"{tokens} tokens from position {job.position} on do not fit {config.name}'s context of "
            f"{config.context}."
        )
    facts = environment(device()) | {"times": device().properties.times}
    return Place(config.name, facts, tokens, rounds)


def examine(job: Job, tokens: int, rounds: int) -> Outcome:
    """Check the change, and where it computes the same, measure it against the baseline in `rounds` of `tokens`.

    Raises LabError for a kernel that does not compile, or fails.
    """
    if job.kernels:
        retire()  # an edit may damage this process's memory without ending it
    doing(f"Phase {job.baseline}", PATIENCE)
    loaded = model(job.model)
    context = min(loaded.config.context, max(job.position + tokens, 64))
    base = Engine(loaded, device(), job.baseline, context=context)
    start = time.perf_counter()
    decode_ms(base, job.position, tokens)
    limit = job.time_limit
    if limit is None:
        longest = max(tokens, CHECKED_TOKENS + len(prompt_ids(base)))
        limit = max(10.0, 30 * (time.perf_counter() - start) * longest / tokens)

    def turn(to_change: bool, number: int = 0) -> None:
        what = job.name if to_change else f"Phase {job.baseline}"
        doing(
            round_words(what, number, rounds) if number else what, limit if to_change else PATIENCE
        )

    doing(f"Compiling {job.name}", PATIENCE)
    change = base.with_phase(job.phase) if job.phase else with_kernels(base, job.kernels)
    changed = {k.op for k in changed_kernels(job)}
    checks = check(base, change, "sample" in changed, turn)
    if not checks.ok:
        return Outcome(checks, None)
    names = (f"phase {job.baseline}", job.name)
    sampling = DRAW if "sample" in changed else GREEDY

    measured = itertools.count(-2)  # two to warm up, then two a round

    def timed(engine: Engine) -> float:
        number = next(measured) // 2 + 1
        turn(engine is change, number)
        return decode_ms(engine, job.position, tokens, sampling)

    on = device().properties.name
    comparison = in_turn(lambda: timed(base), lambda: timed(change), names, on, rounds)
    return Outcome(checks, comparison)


def prompt_ids(engine: Engine) -> list[int]:
    """The tokens of the text that the checks begin with; at most half of the context."""
    return engine.model.tokenizer.encode(TEXT)[: engine.context // 2]


def check(
    base: Engine, change: Engine, draws: bool = False, turn: Callable[[bool], None] = lambda _: None
) -> Checks:
    """Whether `change` computes what the NumPy reference does, and chooses tokens that follow from it.

    Both continue TEXT by the most likely tokens. `draws`: `change` draws some as well, which are compared with what
    the op `sample` means. `turn(to_change)` is called before each of the two runs.
    """
    ids = prompt_ids(base)
    count = min(CHECKED_TOKENS, base.context - len(ids))
    turn(False)
    expected, base_rows = _continue(base, ids, count, GREEDY)
    truth = _truth(base, ids, expected, base)
    turn(True)
    tokens, rows = _continue(change, ids, count, GREEDY)
    error = math.inf
    base_error = _distance(truth, base_rows)
    allowed = max(TOLERANCE, 2 * base_error)
    if _are_tokens(base, tokens):
        if tokens != expected or _roundings(change) != _roundings(base):
            turn(False)  # what follows is the reference's time and not the change's
            truth = _truth(base, ids, tokens, change)
            if any(_roundings(change)):
                # Where a value lies between two levels, the last digit of a sum decides which it becomes. Levels of
                # int8 are so far apart that after a few layers two roundings have little in common: then either is as
                # far from the other as both are from FP32, and half as much again.
                share = INT8_SHARE if change.int8_inputs else HALVES_SHARE
                allowed += share * _distance(_truth(base, ids, tokens), truth)
        error = _distance(truth, rows)
    wrong = sum(int(row.argmax()) != token for row, token in zip(rows, tokens, strict=True))
    ok = error <= allowed and wrong == 0
    if ok and draws:
        turn(True)
        wrong = _wrong_draws(change, ids, count)
    return Checks(
        logits_error=error,
        base_logits_error=base_error,
        tokens_same=_same(tokens, expected),
        tokens=count,
        wrong_choices=wrong,
        ok=ok and wrong == 0,
    )


def _continue(
    engine: Engine, ids: list[int], count: int, sampling: Sampling
) -> tuple[list[int], np.ndarray]:
    """`count` tokens behind `ids`, and the logits that each was chosen from: float32 [count, vocab].

    Fewer where one is no token: to go on from it would be to read outside the embedding.
    """
    loop = DecodeLoop(engine, sampling, ids)
    engine.prefill(ids, loop.given)
    tokens: list[int] = []
    rows = []
    while len(tokens) < count and _are_tokens(engine, tokens[-1:]):
        tokens += [token for token, _ in loop.run(1)]
        rows.append(engine.device.to_host(engine.state.logits))
    return tokens, np.stack(rows)


def _are_tokens(engine: Engine, tokens: list[int]) -> bool:
    return all(0 <= token < engine.model.config.vocab for token in tokens)


def _roundings(engine: Engine) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What this engine's products round, to halves and to int8, as reference.forward takes them."""
    return engine.halves, engine.int8_inputs


def _truth(
    engine: Engine, ids: list[int], tokens: list[int], like: Engine | None = None
) -> np.ndarray:
    """The reference's logits for each of `tokens`, rounded as `like` rounds: float32 [len(tokens), vocab]."""
    text = [*ids, *tokens[:-1]]
    halves, int8_inputs = _roundings(like) if like else ((), ())
    logits = reference.forward(
        engine.model, text, engine.kv.dtype, halves=halves, int8_inputs=int8_inputs
    )
    return logits[len(ids) - 1 :]


def _distance(truth: np.ndarray, logits: np.ndarray) -> float:
    """The largest difference, as a share of the largest true logit; infinity where a logit is no number."""
    off = float(np.abs(logits - truth).max() / np.abs(truth).max())
    return off if math.isfinite(off) else math.inf


def _same(tokens: list[int], expected: list[int]) -> int:
    pairs = zip(tokens, expected, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(expected))


def _wrong_draws(engine: Engine, ids: list[int], count: int) -> int:
    """How many drawn tokens are not those that the op `sample` must draw, where rounding cannot decide."""
    choice = (float(np.float32(DRAW.temperature)), float(np.float32(DRAW.top_p)), DRAW.seed)
    tokens, rows = _continue(engine, ids, count, DRAW)
    return sum(
        drawing.margin(row, *choice, position) > NEAR
        and drawing.drawn(row, *choice, position) != token
        for position, (row, token) in enumerate(zip(rows, tokens, strict=True), len(ids) - 1)
    )
