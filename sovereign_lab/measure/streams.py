"""Is it worth running WQ, WK and WV side by side? Phase 4 against phase 3 on a GPU, and what explains the verdict.

    python -m sovereign_lab.measure.streams --model synthetic:tinyllama-1.1b --record data/runs/FILE.json

Measured with the launches in a CUDA graph and from Python one by one. Figures beside the verdicts: what a pass takes
without the launches that could hide behind WQ (more than that no streams can win), the projections alone, how much of
the GPU their blocks fill, and what a fork into streams costs where its kernels do nothing.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np

from sovereign_lab.devices import Device, open_device
from sovereign_lab.engine import Engine
from sovereign_lab.engine.forward import Call
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.bench import Figure
from sovereign_lab.measure.compare import Comparison, compare
from sovereign_lab.measure.environment import environment
from sovereign_lab.measure.static.occupancy import SMS, occupancy
from sovereign_lab.measure.timing import start_at
from sovereign_lab.models.model import load_model

BASE, CHANGE = "3", "4"
CONTEXT, POSITION = 128, 16
PROJECTIONS = {"WQ": "q", "WK": "k", "WV": "v"}  # by the activation that each one writes
MODES = {True: "in a graph", False: "launched one by one"}

NOTHING = 'extern "C" __global__ void nothing() {}'
# Says that it is here, then looks for the other one, for a fraction of a second at most.
MEET = """
extern "C" __global__ void meet(int* signs, int* seen, int mine, int tries) {
  volatile int* here = signs;
  here[mine] = 1;
  for (int i = 0; i < tries && !seen[mine]; i++) {
    __threadfence();
    if (here[1 - mine]) seen[mine] = 1;
  }
}
"""
TRIES = 1_000_000


@dataclass(frozen=True)
class Schedule:
    """What the calls of a forward pass ask a device for.

    `records` and `waits` count events: a fork records one that every branch waits for, and each branch records one
    that the device's own stream waits for. In a recording there are no events left: `edges` say what waits for what.
    """

    launches: int
    forks: int
    records: int
    waits: int
    edges: int


def schedule(calls: Sequence[Call]) -> Schedule:
    """Count launches, forks and events of `calls`, as `Engine.launch_all` makes them."""
    branches = [1 + max(branch for _, branch in group) for group in _forks(calls)]
    return Schedule(
        launches=len(calls),
        forks=len(branches),
        records=sum(1 + n for n in branches),
        waits=sum(2 * n for n in branches),
        edges=len(edges(calls)),
    )


def _forks(calls: Sequence[Call]) -> list[list[tuple[int, int]]]:
    """The groups of neighbours that have a branch: (index in calls, branch) each."""
    groups = groupby(enumerate(calls), key=lambda at: at[1].branch is not None)
    return [[(i, call.branch or 0) for i, call in group] for forked, group in groups if forked]


def edges(calls: Sequence[Call]) -> list[tuple[int, int]]:
    """Which launch waits for which: (earlier, later) by index in `calls`, without what follows from others."""
    branch_of = {i: branch for group in _forks(calls) for i, branch in group}
    found: list[tuple[int, int]] = []
    before: list[int] = []  # what the next fork or the next call outside one waits for
    ends: dict[int, int] = {}  # the last call of each branch of the fork that is open
    for i in range(len(calls)):
        if i in branch_of:
            branch = branch_of[i]
            waits_for = [ends[branch]] if branch in ends else before
            ends[branch] = i
        else:
            waits_for = list(ends.values()) or before
            before, ends = [i], {}
        found += [(earlier, i) for earlier in waits_for]
    return found


def met(device: Device, captured: bool) -> int:
    """How many of two kernels, each in a branch of its own, see the other while they run: 2 only side by side.

    In turn it is 1: the second sees the sign of the first, which has long given up. `captured`: within a graph.
    """
    kernel = device.compile(MEET, name="meet.cu")
    signs, seen = (device.array(np.zeros(2, np.int32)) for _ in range(2))
    device.launch(kernel, 1, 1, [signs, seen, 0, 1])  # a kernel's first launch may wait for others
    for array in (signs, seen):
        device.update(array, np.zeros(2, np.int32))

    def launch() -> None:
        with device.fork(2) as streams:
            for mine, stream in enumerate(streams):
                device.launch(kernel, 1, 1, [signs, seen, mine, TRIES], stream=stream)

    _recorded(device, launch)() if captured else launch()
    return int(device.to_host(seen).sum())


def _recorded(device: Device, launch: Callable[[], None]) -> Callable[[], None]:
    with device.capture() as capture:
        launch()
    return capture.replay


# ---- figures ----


def verdicts(engine: Engine, rounds: int, tokens: int) -> Iterator[tuple[str, Comparison]]:
    """Phase 4 against phase 3 in both modes, then phase 3 against itself: what the method sees in no change."""
    for e, change in ((engine, CHANGE), (_loose(engine, BASE), CHANGE), (engine, BASE)):
        yield MODES[e.graphs], compare(e, BASE, change, POSITION, tokens, rounds)


def _loose(engine: Engine, phase: str) -> Engine:
    """The same model and weights at `phase`, without graphs."""
    e = engine
    return Engine(e.model, e.device, phase, e.kv_dtype, False, e.context, weights=e.weights)


def pass_figures(engine: Engine, rounds: int, tokens: int) -> Iterator[Figure]:
    """A whole pass in a graph, the same without WK and WV, and without all three, measured in turn; ms.

    The launches that are left do the same work whatever the arrays hold.
    """
    left_out = {
        "all launches": (),
        "without WK and WV": ("WK", "WV"),
        "without WQ, WK and WV": ("WQ", "WK", "WV"),
    }
    replays = {}
    for what, names in left_out.items():
        gone = [id(c) for name in names for c in _projections(engine, name)]
        kept = [c for c in engine.decode_calls if id(c) not in gone]
        replays[what] = _recorded(engine.device, partial(engine.launch_all, kept))
    samples: dict[str, list[float]] = {what: [] for what in replays}
    for i in range(rounds + 1):
        for what, replay in replays.items():
            start_at(engine, POSITION)
            ms = _milliseconds(engine.device, replay, tokens)
            if i:  # the first round is a warm-up
                samples[what].append(ms)
    for what, values in samples.items():
        yield Figure.of(f"phase {engine.phase.id}, a pass in a graph, {what}", "ms", values)


def projection_figures(engine: Engine, replays: int) -> Iterator[Figure]:
    """WQ, WK and WV: each alone, and all behind the rmsnorm before them, in turn and side by side; us a layer."""
    start_at(engine, POSITION)
    engine.run(engine.decode_calls)  # so that every activation holds numbers
    for name in PROJECTIONS:
        calls = [c._replace(branch=None) for c in _projections(engine, name)]
        launch = partial(engine.launch_all, calls)
        yield _a_layer(engine, f"{name} alone, in a graph", launch, True, replays)
    # The rmsnorm in between is where the branches of a layer meet before those of the next.
    wanted = {id(c) for name in PROJECTIONS for c in _projections(engine, name)}
    calls = engine.decode_calls
    groups = [
        calls[i - 1 : i + 3] for i in range(len(calls) - 2) if _is_all(calls[i : i + 3], wanted)
    ]
    no_more = [c._replace(branch=None) for group in groups for c in group[:2]]
    launch = partial(engine.launch_all, no_more)
    yield _a_layer(engine, "rmsnorm, then WQ and no more, in a graph", launch, True, replays)
    in_turn = [c._replace(branch=None) for group in groups for c in group]
    branches = (None, 0, 1, 2)
    side_by_side = [
        c._replace(branch=b) for group in groups for c, b in zip(group, branches, strict=True)
    ]
    for graphs, mode in MODES.items():
        for how, listed in (("in turn", in_turn), ("side by side", side_by_side)):
            what = f"rmsnorm, then WQ, WK and WV {how}, {mode}"
            yield _a_layer(engine, what, partial(engine.launch_all, listed), graphs, replays)


def _projections(engine: Engine, name: str) -> list[Call]:
    """The launches of WQ, WK or WV, one a layer."""
    output = getattr(engine.state, PROJECTIONS[name])
    return [c for c in engine.decode_calls if c.op == "gemv_q4_0" and c.args["y"] is output]


def _is_all(calls: Sequence[Call], wanted: set[int]) -> bool:
    return all(id(c) in wanted for c in calls)


def fork_figures(engine: Engine, replays: int) -> Iterator[Figure]:
    """A kernel that does nothing, then three of them, in turn and side by side, once a layer; us a layer."""
    device, layers = engine.device, engine.model.config.layers
    kernel = device.compile(NOTHING, name="nothing.cu")

    def in_turn() -> None:
        for _ in range(4 * layers):
            device.launch(kernel, 1, 32, [])

    def side_by_side() -> None:
        for _ in range(layers):
            device.launch(kernel, 1, 32, [])
            with device.fork(3) as streams:
                for stream in streams:
                    device.launch(kernel, 1, 32, [], stream=stream)

    for graphs, mode in MODES.items():
        for how, launch in (("in turn", in_turn), ("side by side", side_by_side)):
            what = f"an empty kernel, then three {how}, {mode}"
            yield _a_layer(engine, what, launch, graphs, replays)


def _a_layer(
    engine: Engine, what: str, launch: Callable[[], None], graphs: bool, replays: int
) -> Figure:
    """What `launch`, which launches for every layer, takes: us a layer, the mean of `replays`; 7 samples."""
    run = _recorded(engine.device, launch) if graphs else launch
    _milliseconds(engine.device, run, 2)
    samples = [_milliseconds(engine.device, run, replays) for _ in range(7)]
    return Figure.of(what, "us", [1e3 * ms / engine.model.config.layers for ms in samples])


def _milliseconds(device: Device, run: Callable[[], object], times: int) -> float:
    with device.timer() as timer:
        for _ in range(times):
            run()
    return timer.milliseconds / times


def host_figures(engine: Engine, repeats: int) -> Iterator[Figure]:
    """How long the host is busy with a pass before it may go on, with the GPU idle at its start; us."""
    for phase in (BASE, CHANGE):
        for e in (engine.with_phase(phase), _loose(engine, phase)):
            samples = []
            for i in range(repeats + 1):
                start_at(e, POSITION)
                e.device.synchronize()
                start = time.perf_counter()
                e.run(e.decode_calls)
                if i:
                    samples.append(1e6 * (time.perf_counter() - start))
                e.device.synchronize()
            yield Figure.of(
                f"phase {phase}, the host's part of a pass, {MODES[e.graphs]}", "us", samples
            )


def block_figures(engine: Engine) -> Iterator[Figure]:
    """Blocks that each projection launches, and, on a GPU whose SM is known, how many it holds at once."""
    variant, kernel = engine.kernels["gemv_q4_0"]
    for name in PROJECTIONS:
        blocks = op("gemv_q4_0").grid(variant, _projections(engine, name)[0].args)
        yield Figure.of(f"{name}, blocks of {variant.threads} threads", "blocks", [blocks])
    properties = engine.device.properties
    arch = int(properties.arch.removeprefix("sm_")) if properties.kind == "cuda" else None
    if arch in SMS:
        function = kernel.handle.function(kernel.name)
        held = occupancy(function.num_regs, function.shared_size_bytes, variant.threads, arch)
        yield Figure.of(
            f"gemv_q4_0 {variant.name}, registers a thread", "registers", [function.num_regs]
        )
        yield Figure.of("blocks of it that an SM holds", "blocks", [held.blocks])
        yield Figure.of(
            "blocks of it that the GPU holds", "blocks", [held.blocks * properties.sm_count]
        )


def event_figures(engine: Engine) -> Iterator[Figure]:
    """Launches, forks, events and a graph's edges of a pass, by phase; and that branches run side by side at all."""
    for phase in (BASE, CHANGE):
        for what, count in asdict(schedule(engine.with_phase(phase).decode_calls)).items():
            yield Figure.of(f"phase {phase}, {what} of a pass", "", [count])
    for graphs, mode in MODES.items():
        seen = met(engine.device, graphs)
        yield Figure.of(f"kernels of two branches that saw each other run, {mode}", "of 2", [seen])


def measure(
    engine: Engine, rounds: int = 11, tokens: int = 12, replays: int = 20
) -> Iterator[Figure | tuple[str, Comparison]]:
    """Everything, one after the other as soon as it is known. `engine` is at phase 3 and runs in graphs."""
    with engine.device.fork(3):
        pass  # makes the streams, which no figure should hold
    yield from event_figures(engine)
    yield from block_figures(engine)
    yield from verdicts(engine, rounds, tokens)
    yield from pass_figures(engine, rounds, tokens)
    yield from projection_figures(engine, replays)
    yield from fork_figures(engine, replays)
    yield from host_figures(engine, rounds)


# ---- the command ----


def record(path: Path, facts: dict[str, str], model: str, results: Sequence[object]) -> None:
    """Keep what is known so far as JSON: the environment, the figures, and every comparison with its verdict."""
    figures = [asdict(r) for r in results if isinstance(r, Figure)]
    comparisons = [
        {"mode": r[0], **asdict(r[1]), "verdict": r[1].verdict}
        for r in results
        if isinstance(r, tuple)
    ]
    run = {"environment": facts, "model": model, "figures": figures, "comparisons": comparisons}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1) + "\n")


def check_device(device: Device) -> None:
    """Raises LabError on a device whose branches run in turn."""
    if device.properties.kind != "cuda":
        raise LabError(
            f"{device.properties.name}: branches run one after the other here, so there is nothing to compare. "
            "Streams need a CUDA GPU."
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, print; 1 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="synthetic:tinyllama-1.1b", help="a name or a path")
    parser.add_argument("--device", default="auto", help="auto, cuda or simt")
    parser.add_argument("--record", type=Path, help="a file: the run is kept there as JSON")
    options = parser.parse_args(argv)
    try:
        device = open_device(options.device)
        check_device(device)
        model = load_model(options.model, progress=True)
        engine = Engine(model, device, BASE, context=CONTEXT, progress=True)
        facts = environment(device)
        results: list[Figure | tuple[str, Comparison]] = []
        for result in measure(engine):
            print(result if isinstance(result, Figure) else f"{result[1]}, {result[0]}", flush=True)
            results.append(result)
            # Again after every result, so that a run that breaks off keeps what it found.
            if options.record:
                record(options.record, facts, options.model, results)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
