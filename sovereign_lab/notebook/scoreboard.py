"""The scoreboard: every step of the ladder on the seed's GPU and in the recorded run, and where they disagree."""

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.errors import LabError
from sovereign_lab.measure.compare import WORTH
from sovereign_lab.measure.ladder import LadderRun, climb
from sovereign_lab.measure.profile import Profile
from sovereign_lab.measure.roofline import GPU, find_gpu, token_bytes
from sovereign_lab.measure.stability import StabilityRun
from sovereign_lab.models.model import Config, matrix_shapes
from sovereign_lab.notebook.gap import PEER_HEAD, Peer, on_the_lines
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.runs import NO_FIGURE
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA
from sovereign_lab.notebook.table import Table

LADDER_TOKENS = 16  # forward passes of a measurement in both
DRAWS = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-sample"
STORY_DRAWS = "2026-11-30-sm_90-storyteller-sample"
PROFILE = "2026-11-30-nvidia-h200-synthetic-tinyllama-1.1b-phase-8c-profile"
STABILITY = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-stability"
BENCH = "2026-11-30-sm_90-synthetic-tinyllama-1.1b-contexts"
SAMPLING = Sampling(temperature=0.8, top_p=0.95)
NOT_MEASURED = "not measured"
CHAPTERS = {
    "2": "04", "3": "05", "4": "06", "5": "07", "6": "08", "7": "09", "8a": "10", "8b": "11", "8c": "12"
}  # fmt: skip
"""The chapter that measures a step."""

# FP32 lanes (SMs x 128) and the highest clock in GHz, from the data sheets.
LANES = {"H200": (132 * 128, 1.98), "RTX 5060 Ti": (36 * 128, 2.57)}

WHY = {
    "4": "on the H200 WQ fills at most a quarter of the GPU, so that WK and WV have room beside it: in a graph, phase "
    "4 gained 188 of the 306 us that they take of a pass. Launched one by one, a fork adds 15 us, and the pass was "
    "0.93 times as fast: a loss, as in the seed, whose GPU WQ alone fills. How the seed launched is not in its log; "
    "WDDM was not measured",
    "8a": "the seed's two figures are of 166 and of 300 tokens; at 300 its phase 7 had 135.97 tok/s, so no gain and no "
    "loss. On the H200 a thread adds the values of one position in eight, where it added all: a gain at every position",
    "8c": "on the H200 the two Q4_0 kernels used 5 and 16 % of the bandwidth and had requests and trips of a loop to "
    "save; logits, at 97 %, gained nothing. The seed's float4 kernels are not in its log",
}
"""Where the seed's sign and the recorded run's differ: what the step's chapter measured about it."""


def recorded_stability() -> StabilityRun:
    """The recorded run over several prompts. Raises LabError where it is not there."""
    return StabilityRun.read(in_checkout(f"data/runs/{STABILITY}.json"))


def recorded_profile() -> Profile:
    """The recorded profile of phase 8c, at position 16. Raises LabError where it is not there."""
    return Profile.load(in_checkout(f"data/runs/{PROFILE}.json"))


def origin(run: LadderRun | StabilityRun) -> str:
    """ "NVIDIA H200, recorded 2026-11-30"."""
    return f"{run.environment['device']}, recorded {run.environment['date']}"


def how(run: LadderRun | StabilityRun) -> str:
    """How its tokens were chosen, in a word or two."""
    s = run.sampling
    return "greedy" if s.needs == "argmax" else f"temperature {s.temperature:g}, top-p {s.top_p:g}"


# ---- the ladder ----


def seed_rates() -> dict[str, float]:
    """Phase -> tokens/s in the seed's log, for the phases to which it gives a figure."""
    return {
        i: p.seed_tokens_per_second
        for i, p in PHASES.items()
        if p.seed_tokens_per_second is not None
    }


def rates(run: LadderRun, context: int = 16) -> dict[str, float]:
    """Phase -> tokens/s at a context."""
    return {r.phase: r.tokens_per_second for r in run.rungs if r.context == context}


def over_first(of: Mapping[str, float]) -> dict[str, float]:
    """Each speed over that of phase 0 on the same machine; KeyError without a phase 0."""
    return {phase: rate / of["0"] for phase, rate in of.items()}


def ladder_table(columns: Mapping[str, Mapping[str, float]]) -> Table:
    """Every timed phase: tok/s and the ratio to phase 0 in each column ("H200" -> phase -> tok/s)."""
    ratios = {name: over_first(of) for name, of in columns.items()}
    rows = []
    for phase in PHASES.measured():
        row = [phase, PHASES[phase].title]
        for name, of in columns.items():
            known = phase in of
            missing = NO_FIGURE if GPU_NAME in name else NOT_MEASURED
            row += [
                f"{of[phase]:.1f} tok/s" if known else missing,
                f"{ratios[name][phase]:.2f}" if known else "",
            ]
        rows.append(row)
    head = [cell for name in columns for cell in (name, "over its phase 0")]
    return Table(["phase", "", *head], rows)


def choosing_us(sampled: LadderRun, greedy: LadderRun, context: int = 16) -> dict[str, float]:
    """Phase -> microseconds a token that drawing it takes longer than the argmax does, at a context of both runs."""
    found = {}
    for phase in PHASES.measured():
        drawn, best = sampled.rung(phase, context), greedy.rung(phase, context)
        if drawn is not None and best is not None:
            found[phase] = 1e3 * (drawn.ms_per_forward - best.ms_per_forward)
    return found


def choosing_table(sampled: LadderRun, greedy: LadderRun, context: int = 16) -> Table:
    """Each phase with tokens drawn and greedily: ms a token, the difference in us, and who draws."""
    drawn, best = rates(sampled, context), rates(greedy, context)
    rows = [
        [
            phase,
            *(f"{1e3 / of[phase]:.3f} ms" for of in (drawn, best)),
            f"{us:,.0f} us",
            "the GPU" if "sample" in PHASES[phase].plan else "the host",
        ]
        for phase, us in choosing_us(sampled, greedy, context).items()
    ]
    return Table(["phase", how(sampled), how(greedy), "the draw costs", "drawn by"], rows)


# ---- step by step: signs ----


@dataclass(frozen=True)
class Step:
    """One phase over its base: ratios of tokens/s on the seed's GPU and in a recorded run, None where not known."""

    phase: str
    seed: float | None
    recorded: float | None

    @property
    def seed_word(self) -> str:
        """faster, slower or no difference on the seed's GPU; of 8c its log says so without a figure."""
        return word(1.0 if self.phase == "8c" else self.seed)

    @property
    def word(self) -> str:
        """The same in the recorded run."""
        return word(self.recorded)

    @property
    def agrees(self) -> bool | None:
        """Whether both have the same sign; None where one is not known."""
        if NOT_MEASURED in (self.seed_word, self.word):
            return None
        return self.seed_word == self.word


def word(ratio: float | None) -> str:
    """What a ratio of speeds says: within 1 % of 1 there is no difference worth a name (as `compare` has it)."""
    if ratio is None:
        return NOT_MEASURED
    if abs(ratio - 1) <= WORTH:
        return "no difference"
    return "faster" if ratio > 1 else "slower"


def steps(run: LadderRun, context: int = 16) -> list[Step]:
    """Every timed phase that has a base."""
    seed, found = seed_rates(), []
    for phase in PHASES.measured():
        base = PHASES[phase].base
        if base is None:
            continue
        rung = run.rung(phase, context)
        ratio = seed[phase] / seed[base] if phase in seed and base in seed else None
        found.append(Step(phase, ratio, rung.gain if rung else None))
    return found


def steps_table(run: LadderRun, context: int = 16) -> Table:
    """Each step's ratio and sign on both GPUs, whether they agree, and the chapter that measures it."""
    rows = []
    for step in steps(run, context):
        rows.append(
            [
                f"{step.phase} over {PHASES[step.phase].base}",
                PHASES[step.phase].title,
                f"{step.seed:.2f}" if step.seed else NO_FIGURE,
                step.seed_word,
                f"{step.recorded:.2f}" if step.recorded else "",
                step.word,
                {True: "yes", False: "NO", None: ""}[step.agrees],
                CHAPTERS[step.phase],
            ]
        )
    head = ["step", "", "seed", "", run.environment["device"], "", "same sign", "chapter"]
    return Table(head, rows)


def differences_table(run: LadderRun, context: int = 16) -> Table:
    """The steps whose signs differ, with what their chapter measured about it."""
    rows = [
        [
            f"{s.phase} over {PHASES[s.phase].base}",
            f"{s.seed_word} / {s.word}",
            WHY.get(s.phase, "see the chapter"),
            CHAPTERS[s.phase],
        ]
        for s in steps(run, context)
        if s.agrees is False
    ]
    return Table(["step", "seed / recorded", "what was measured about it", "chapter"], rows)


# ---- bytes and operations ----


def operations(config: Config, position: int) -> int:
    """Additions and multiplications of a token: two a weight, and four a dimension of a head and earlier position."""
    weights = config.layers * sum(rows * cols for rows, cols in matrix_shapes(config).values())
    attention = 4 * config.layers * config.heads * config.head_dim * position
    return 2 * (weights + config.vocab * config.dim) + attention


@dataclass(frozen=True)
class Roof:
    """What a GPU cannot exceed: bandwidth in GB/s, and FP32 operations without Tensor Cores in TFLOP/s."""

    gpu: GPU
    tflops: float


@dataclass(frozen=True)
class Dot:
    """A measured point under a roof: operations a byte, TFLOP/s, and its name."""

    name: str
    intensity: float
    tflops: float


def roof(name: str) -> Roof:
    """The roof of one of the two GPUs. Raises LabError for another one: its lanes and clock are not in the lab."""
    gpu = find_gpu(name)
    if gpu is None or gpu.name not in LANES:
        raise LabError(f"The roofs of {', '.join(LANES)} are known; {name} was asked for.")
    lanes, gigahertz = LANES[gpu.name]
    return Roof(gpu, 2 * lanes * gigahertz / 1e3)  # a multiplication and an addition a clock


def dots(speeds: Mapping[str, float], context: int = 16) -> list[Dot]:
    """Phases as dots, from their tokens/s: all at the same place on the axis, since they must read the same bytes."""
    done = operations(TINYLLAMA, context)
    intensity = done / token_bytes(TINYLLAMA).at(context)
    return [Dot(f"phase {p}", intensity, done * rate / 1e12) for p, rate in speeds.items()]


def peer_dot(peer: Peer) -> Dot:
    """llama.cpp's 128 tokens at depth 0: the same operations, and a smaller head."""
    done = operations(TINYLLAMA, 64)
    nbytes = token_bytes(TINYLLAMA, PEER_HEAD).at(64)
    return Dot("llama.cpp", done / nbytes, done * peer.rates[0] / 1e12)


def roofs(run: LadderRun, peer: Peer) -> dict[str, tuple[Roof, list[Dot]]]:
    """The seed's GPU and the recorded run's, each with what was measured on it."""
    device = run.environment["device"]
    return {
        f"{GPU_NAME}, the seed's log": (roof(GPU_NAME), dots(seed_rates())),
        origin(run): (roof(device), [*dots(rates(run)), peer_dot(peer)]),
    }


def bandwidth_table(run: LadderRun, gpu: GPU, contexts: Sequence[int] = (16, 4000)) -> Table:
    """Each phase's bytes a second if every byte is read once, and its share of `gpu`'s bandwidth, at each context."""
    rows = []
    for phase in PHASES.measured():
        row = [phase]
        for context in contexts:
            rung = run.rung(phase, context)
            if rung is None:
                row += [NOT_MEASURED, ""]
                continue
            rate = token_bytes(TINYLLAMA).at(context) / rung.ms_per_forward / 1e6
            row += [f"{rate:,.0f} GB/s", f"{rate / gpu.bandwidth:.1%}"]
        rows.append(row)
    head = [cell for c in contexts for cell in (f"at {c:,}", f"of {gpu.bandwidth:,.0f} GB/s")]
    return Table(["phase", *head], rows)


# ---- contexts ----


def context_table(run: LadderRun) -> Table:
    """Each phase's tok/s by context, what the longest keeps of the shortest's speed, and what a position adds."""
    contexts = sorted({r.context for r in run.rungs})
    rows = []
    for phase in PHASES.measured():
        of = {r.context: r for r in run.rungs if r.phase == phase}
        if not of:
            continue
        first, last = of[contexts[0]], of[contexts[-1]]
        added = 1e6 * (last.ms_per_forward - first.ms_per_forward) / (last.context - first.context)
        rows.append(
            [
                phase,
                PHASES[phase].plan["attention"],
                *(f"{of[c].tokens_per_second:.1f}" for c in contexts),
                f"{last.tokens_per_second / first.tokens_per_second:.0%}",
                f"{added:,.0f} us",
            ]
        )
    head = ["phase", "attention", *(f"tok/s at {c:,}" for c in contexts)]
    return Table([*head, f"{contexts[-1]:,} over {contexts[0]}", "1,000 positions add"], rows)


# ---- prompts ----


def seed_prompts() -> dict[str, list[float]]:
    """The seed's last engine on four texts, by how the log names them: one tokens/s each."""
    with in_checkout("data/seed_results.csv").open(newline="") as file:
        found = [row for row in csv.DictReader(file) if row["phase"] == "8b"]
    return {
        f"text {i}, {row['tokens']} tokens": [float(row["tokens_per_second"])]
        for i, row in enumerate(found, 1)
    }


def stability_table(columns: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    """`columns`: a machine -> prompt -> tokens/s of its repeats. The range of the prompts' medians, and its width."""
    rows = []
    for name, prompts in columns.items():
        medians = [statistics.median(samples) for samples in prompts.values()]
        low, high, middle = min(medians), max(medians), statistics.median(medians)
        widest = max((max(s) - min(s)) / middle for s in prompts.values())
        repeats = max(len(s) for s in prompts.values())
        rows.append(
            [
                name,
                str(len(prompts)),
                f"{low:.1f} to {high:.1f} tok/s",
                f"{(high - low) / middle:.1%}",
                f"up to {widest:.1%}, {repeats} each" if repeats > 1 else "run once",
            ]
        )
    return Table(["", "prompts", "range", "its width", "repeats of one prompt differ by"], rows)


def samples_of(run: StabilityRun) -> dict[str, list[float]]:
    """Prompt -> tokens/s of its repeats; a prompt is named by how it begins, and by its tokens."""
    return {f"{_short(s.prompt)} ({s.prompt_tokens} tokens)": list(s.samples) for s in run.speeds}


def by_position_table(run: StabilityRun, ladder: LadderRun) -> Table:
    """Each prompt's speed beside that of the ladder's same phase at the middle of the positions it was decoded at.

    The last row: the width of both columns as a share of their medians.
    """
    rows, measured, expected = [], [], []
    for speed in sorted(run.speeds, key=lambda s: s.prompt_tokens):
        middle = speed.prompt_tokens - 1 + (speed.tokens - 1) / 2
        at = 1e3 / ladder_ms(ladder, run.phase, middle)
        measured.append(speed.tokens_per_second)
        expected.append(at)
        rows.append(
            [
                _short(speed.prompt),
                str(speed.prompt_tokens),
                f"{middle:.1f}",
                f"{measured[-1]:.1f} tok/s",
                f"{at:.1f} tok/s",
            ]
        )
    widths = [(max(v) - min(v)) / statistics.median(v) for v in (measured, expected)]
    rows.append(["width", "", "", *(f"{width:.1%}" for width in widths)])
    return Table(["prompt", "its tokens", "middle position", "measured", "the ladder there"], rows)


def ladder_ms(run: LadderRun, phase: str, position: float) -> float:
    """Milliseconds of a phase at a position, on the straight lines through its rungs; LabError outside of them."""
    times = {r.context: r.ms_per_forward for r in run.rungs if r.phase == phase}
    return on_the_lines(times, LADDER_TOKENS, position)


def _short(prompt: str) -> str:
    return prompt if len(prompt) <= 28 else f"{prompt[:25].rstrip()}..."


# ---- this machine ----


def climb_here(engine: Engine) -> LadderRun:
    """The whole ladder on the engine's device, at one short context: one token a phase where a CPU imitates a GPU."""
    on_gpu = engine.device.properties.kind == "cuda"
    tokens, repeats = (32, 5) if on_gpu else (1, 1)
    rungs = climb(engine, PHASES.measured(), (16,), tokens, repeats, SAMPLING)
    facts = {"device": engine.device.properties.name, "date": ""}
    return LadderRun(facts, engine.model.config.name, SAMPLING, tuple(rungs))
