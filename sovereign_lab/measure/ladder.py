"""Every phase of the ladder on one model and device, at several lengths of context; a run of it, kept and read."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.measure.timing import GREEDY, decode_ms


@dataclass(frozen=True)
class Rung:
    """One phase at one context: the median of `samples` (ms a forward pass), and the gain over its base.

    `gain` is base ms / ms at the same context, None where the base was not measured; `seed_gain` the seed's ratio of
    tokens/s, None where its log has no figure for one of the two.
    """

    phase: str
    title: str
    context: int
    ms_per_forward: float
    samples: tuple[float, ...]
    gain: float | None
    seed_gain: float | None

    @property
    def tokens_per_second(self) -> float:
        """1,000 / ms_per_forward."""
        return 1e3 / self.ms_per_forward


@dataclass(frozen=True)
class LadderRun:
    """A ladder that was climbed: with what (`measure/environment.py`), on which model, choosing tokens how."""

    environment: Mapping[str, str]
    model: str
    sampling: Sampling
    rungs: tuple[Rung, ...]

    def rung(self, phase: str, context: int) -> Rung | None:
        """The measurement of a phase at a context, None where there is none."""
        return next((r for r in self.rungs if (r.phase, r.context) == (phase, context)), None)

    def write(self, path: Path) -> None:
        """Keep the run as JSON."""
        rungs = [asdict(r) | {"tokens_per_second": r.tokens_per_second} for r in self.rungs]
        path.write_text(json.dumps(asdict(self) | {"rungs": rungs}, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "LadderRun":
        """A run that `write` kept."""
        content = json.loads(path.read_text())
        rungs = [
            Rung(**{k: v for k, v in r.items() if k != "tokens_per_second"})
            for r in content["rungs"]
        ]
        return cls(
            content["environment"], content["model"], Sampling(**content["sampling"]), tuple(rungs)
        )


def climb(
    engine: Engine,
    phases: Sequence[str],
    contexts: Sequence[int],
    tokens: int,
    repeats: int = 5,
    sampling: Sampling = GREEDY,
) -> Iterator[Rung]:
    """Measure phase by phase; a rung is yielded as soon as it is known.

    `engine` gives model, device and the weights that all phases share. Raises LabError for an unknown phase or
    a context that the engine does not have.
    """
    known: dict[tuple[str, int], float] = {}
    for phase in [PHASES.phase(p) for p in phases]:
        at_phase = engine.with_phase(phase.id)
        for context in contexts:
            decode_ms(at_phase, context, min(2, tokens), sampling)  # warm-up
            samples = tuple(decode_ms(at_phase, context, tokens, sampling) for _ in range(repeats))
            ms = statistics.median(samples)
            known[phase.id, context] = ms
            before = known.get((phase.base or "", context))
            yield Rung(
                phase=phase.id,
                title=phase.title,
                context=context,
                ms_per_forward=ms,
                samples=samples,
                gain=before / ms if before else None,
                seed_gain=_seed_gain(phase.id),
            )


def _seed_gain(phase_id: str) -> float | None:
    phase = PHASES.phase(phase_id)
    base = PHASES.phase(phase.base).seed_tokens_per_second if phase.base else None
    rate = phase.seed_tokens_per_second
    return rate / base if rate and base else None
