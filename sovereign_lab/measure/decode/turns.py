"""The run: every phase, and llama.cpp, in turn at each context; then texts, then stages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from gguf import GGMLQuantizationType
from tqdm import tqdm

from sovereign_lab.devices import Device
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.errors import LabError
from sovereign_lab.measure.decode import texts
from sovereign_lab.measure.decode.facts import (
    CONTEXTS,
    LLAMA_CPP,
    NO_GRAPHS,
    DecodeRun,
    Peer,
    Stages,
    TextCheck,
    Times,
)
from sovereign_lab.measure.decode.stages import stages
from sovereign_lab.measure.environment import environment
from sovereign_lab.measure.peer import LlamaCpp, begin
from sovereign_lab.measure.roofline import matrix_bytes, token_bytes
from sovereign_lab.measure.timing import start_at
from sovereign_lab.models.catalog import entries
from sovereign_lab.models.model import Model, load_model

# 9c decodes with the kernels of 9b.
PHASES_MEASURED = tuple(phase for phase in PHASES.timed() if phase != "9c")
WITHOUT_GRAPHS = ("11",)
# Phases before 8b, at longer contexts, would take most of the run's time; chapter 13 has them there.
EARLY, EARLY_CONTEXT = PHASES_MEASURED[: PHASES_MEASURED.index("8b")], 256
ROUNDS, TOKENS = 7, 16  # as many tokens as the persistent kernel makes in one launch
# A block that has no part of attention at a short context, as most have not; and one that has.
STAGE_CONTEXTS, STAGE_BLOCKS = (128, 2048), (5, 0)
TEXT_MODELS = ("storyteller", "smollm2-135m")


def run(
    device: Device,
    model: str,
    phases: Sequence[str] = PHASES_MEASURED,
    contexts: Sequence[int] = CONTEXTS,
    tokens: int = TOKENS,
    rounds: int = ROUNDS,
    text_models: Sequence[str] = TEXT_MODELS,
    text_tokens: int = texts.TOKENS,
    api: Any = None,
    peer_reason: str | None = None,
    progress: bool = False,
    keep: Callable[[DecodeRun], None] = lambda so_far: None,
) -> DecodeRun:
    """Everything of a DecodeRun. `api`: the module llama_cpp, None where llama.cpp takes no turn.

    Left out are contexts that the model has no room for, phases before 8b at long ones (EARLY), and a text model of the
    catalog that would have to be downloaded. `keep` is called with what there is after the times, and after the texts,
    so that a run that is broken off leaves that. Raises LabError where no phase runs.
    """
    loaded = load_model(model, progress=progress)
    config = loaded.config
    contexts = [n for n in contexts if n + tokens <= config.context]
    if not contexts or rounds < 1:
        raise LabError(
            f"There is nothing to measure: {config.name} has a context of {config.context}, and {tokens} tokens are to "
            f"be decoded from each of the contexts asked for, {rounds} rounds."
        )
    room = max(contexts) + tokens
    engines, refused = built(loaded, device, phases, room, progress)
    with ExitStack() as stack:
        peer, theirs = None, None
        if api is not None:
            facts = begin(loaded, device, api, tokens)
            theirs = stack.enter_context(
                LlamaCpp(
                    api,
                    loaded.path,
                    room,
                    config.vocab,
                    facts.peer_on == "the GPU",
                    facts.peer_threads,
                )
            )
            peer = Peer(
                facts.environment["llama_cpp_python"],
                facts.environment["llama_cpp_build"],
                facts.peer_on,
                facts.head_type,
                facts.head_bytes,
            )
        measured = tuple(times(engines, theirs, contexts, tokens, rounds, progress))
    heads = {name: head_bytes(engine) for name, engine in engines.items()}
    if peer is not None:
        heads[LLAMA_CPP] = peer.head_bytes
    nbytes = token_bytes(config)
    found = DecodeRun(
        environment=environment(device),
        times_are=device.properties.times,
        model=config.name,
        tokens=tokens,
        layer_bytes=nbytes.layers,
        kv_bytes=nbytes.kv_per_position,
        heads=heads,
        times=measured,
        refused=refused,
        peer=peer,
        peer_reason=peer_reason,
        stages_reason="the run was broken off before",
    )
    keep(found)
    checked = tuple(_texts(device, phases, text_models, text_tokens, progress))
    found = replace(found, texts=checked)
    keep(found)
    stamped, reason = _stages(engines, contexts)
    return replace(found, stages=stamped, stages_reason=reason)


def built(
    model: Model, device: Device, phases: Sequence[str], context: int, progress: bool = False
) -> tuple[dict[str, Engine], dict[str, str]]:
    """An engine for each of `phases` that runs here, weights shared; and why the others do not.

    Those in WITHOUT_GRAPHS have a second engine that launches each kernel from Python. Raises LabError for none.
    """
    engines: dict[str, Engine] = {}
    refused: dict[str, str] = {}
    last: Engine | None = None
    for phase in phases:
        try:
            # Each from the one before: what a later phase has put on the device, those behind it find there.
            if last is None:
                last = Engine(model, device, phase, context=context, progress=progress)
            else:
                last = last.with_phase(phase)
        except LabError as error:
            refused[phase] = str(error)
            continue
        engines[phase] = last
        if phase in WITHOUT_GRAPHS:
            alone = last.with_phase(phase)
            alone.graphs = False
            engines[phase + NO_GRAPHS] = alone
    if not engines:
        raise LabError(f"None of the phases {', '.join(phases)} runs here: {refused}")
    return engines, refused


def decode_us(engine: Engine, position: int, tokens: int) -> float:
    """Microseconds a token by the device's clock, the mean of `tokens` greedy tokens from `position` on.

    A host that launches from Python is part of the time where the GPU waits for it. Raises as `start_at`.
    """
    start_at(engine, position)
    engine.device.synchronize()
    with engine.device.timer() as timer:
        engine.decode(tokens)
    return 1e3 * timer.milliseconds / tokens


def times(
    engines: Mapping[str, Engine],
    peer: LlamaCpp | None,
    contexts: Sequence[int],
    tokens: int,
    rounds: int,
    progress: bool = False,
) -> Iterator[Times]:
    """Context by context, all in turn, each round beginning with another one: a drift falls on all alike.

    Those in EARLY take no turn beyond EARLY_CONTEXT.
    """
    with tqdm(
        total=len(contexts) * (rounds + 1),
        desc="decode",
        unit="round",
        disable=not progress,
        leave=False,
    ) as bar:
        for context in contexts:
            measures: dict[str, Callable[[], float]] = {
                name: partial(decode_us, engine, context, tokens)
                for name, engine in engines.items()
                if context <= EARLY_CONTEXT or name not in EARLY
            }
            if peer is not None:
                measures[LLAMA_CPP] = partial(_peer_us, peer, context, tokens)
            names = list(measures)
            samples: dict[str, list[float]] = {name: [] for name in names}
            for round_ in range(rounds + 1):
                first = round_ % len(names)
                for name in (*names[first:], *names[:first]):
                    us = measures[name]()
                    if round_:  # the first one warms up: recording, clocks, caches
                        samples[name].append(us)
                bar.update()
            for name in names:
                yield Times(name, context, tuple(samples[name]))


def _peer_us(peer: LlamaCpp, context: int, tokens: int) -> float:
    return 1e3 * peer.decode_ms(context, tokens)


def head_bytes(engine: Engine) -> int:
    """What a token reads of the head: FP32 as in the seed's phases, or Q8_0 from phase 10 on."""
    c = engine.model.config
    in_tiles = {"logits_q8_0", "norm_logits", "persistent"} & set(engine.phase.plan)
    type = GGMLQuantizationType.Q8_0 if in_tiles else GGMLQuantizationType.F32
    return matrix_bytes(c.vocab, c.dim, type)


def _stages(
    engines: Mapping[str, Engine], contexts: Sequence[int]
) -> tuple[tuple[Stages, ...], str | None]:
    """Of the last phase, in STAGE_BLOCKS at those of STAGE_CONTEXTS that were measured; else the reason."""
    last = list(engines.values())[-1]
    wanted = [n for n in STAGE_CONTEXTS if n in contexts] or list(contexts[:1])
    try:
        return tuple(stages(last, n, block=b) for b in STAGE_BLOCKS for n in wanted), None
    except LabError as error:
        return (), str(error)


def _texts(
    device: Device, phases: Sequence[str], names: Sequence[str], tokens: int, progress: bool
) -> Iterator[TextCheck]:
    absent = {e.name for e in entries() if not e.present} - {"storyteller"}
    for name in names:
        if name in absent:
            continue
        model = load_model(name, progress=progress)
        context = min(model.config.context, 256)
        engines, _ = built(model, device, ("8b", *(p for p in phases if p != "8b")), context)
        yield from texts.checks(
            {n: e for n, e in engines.items() if not n.endswith(NO_GRAPHS)}, tokens=tokens
        )
