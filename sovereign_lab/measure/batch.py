"""What a batch is worth: tokens a second of 1 to 64 sequences that decode together.

python -m sovereign_lab.measure.batch --model synthetic:tinyllama-1.1b --device cuda --record run.json
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sovereign_lab.devices import open_device
from sovereign_lab.devices.open import CHOICES
from sovereign_lab.engine import Engine
from sovereign_lab.engine.batch import begin, prepare
from sovereign_lab.errors import LabError
from sovereign_lab.measure.environment import environment
from sovereign_lab.models.model import load_model

SIZES = (1, 2, 4, 8, 16, 32, 64)
TOKENS = 64
PROMPT = 17  # tokens of each prompt; decoding begins with the last of them
REPEATS = 5


@dataclass(frozen=True)
class BatchSpeed:
    """`sequences` that decode together, `tokens` each from position `position` on, none of which ends before.

    `samples`: milliseconds a step, one a repeat; a step is one more token of every sequence.
    """

    sequences: int
    tokens: int
    position: int
    samples: tuple[float, ...]

    @property
    def ms(self) -> float:
        """Milliseconds a step, the median."""
        return statistics.median(self.samples)

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return self.sequences * 1e3 / self.ms

    def __str__(self) -> str:
        return f"{self.sequences:4} sequences: {self.tokens_per_second:10,.1f} tokens/s, {self.ms:.3f} ms a step"


@dataclass(frozen=True)
class BatchRun:
    """Speeds, with what they were measured with (measure/environment.py) and of which model and phase."""

    environment: Mapping[str, str]
    model: str
    phase: str
    speeds: tuple[BatchSpeed, ...]

    def write(self, path: Path) -> None:
        """Keep the run as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "BatchRun":
        """A run that `write` kept."""
        content: dict[str, Any] = json.loads(path.read_text())
        speeds = (
            BatchSpeed(**{**s, "samples": tuple(s["samples"])}) for s in content.pop("speeds")
        )
        return cls(**content, speeds=tuple(speeds))

    def __str__(self) -> str:
        title = f"{self.model}, phase {self.phase}, {self.environment['device']}"
        return "\n".join([title, *map(str, self.speeds)])


def batch_speeds(
    engine: Engine,
    sizes: Sequence[int] = SIZES,
    tokens: int = TOKENS,
    repeats: int = REPEATS,
    progress: bool = False,
) -> tuple[BatchSpeed, ...]:
    """Time `tokens` steps of greedy decoding for each number of sequences, `repeats` times after a warm-up.

    Prompts are random tokens, and texts go on whatever tokens come: no sequence ends before the last step. Raises
    LabError for a size below 1, tokens that the context has no room for, and a phase that has no batches.
    """
    if not sizes or min(sizes) < 1:
        raise LabError(f"A batch has at least 1 sequence; got the sizes {tuple(sizes)}.")
    # The last token is one more than the context holds.
    if tokens < 1 or PROMPT + tokens > engine.context + 1:
        raise LabError(
            f"A batch is timed over 1 to {engine.context + 1 - PROMPT} tokens in a context of {engine.context}; "
            f"got {tokens}."
        )
    bar = tqdm(sizes, "batches", disable=not progress, leave=False)
    return tuple(
        BatchSpeed(count, tokens, PROMPT - 1, tuple(_ms(engine, count, tokens, repeats)))
        for count in bar
    )


def _ms(engine: Engine, count: int, tokens: int, repeats: int) -> Iterator[float]:
    device = engine.device
    last = PROMPT + tokens - 1
    batch = prepare(engine, count, last)
    prompts = np.random.default_rng(0).integers(0, engine.model.config.vocab, (count, PROMPT))
    begin(engine, batch, prompts.tolist(), [last] * count, ends=())
    for repeat in range(repeats + 1):
        device.update(batch.state.position, np.full(count, PROMPT - 1, np.int32))
        device.update(batch.state.active, np.ones(count, np.int32))
        with device.timer() as timer:
            for _ in range(tokens):
                engine.run(batch.greedy)
        if repeat:  # the first one warms up
            yield timer.milliseconds / tokens


def main() -> None:
    """Parse the command line; print the speeds and keep them."""
    parser = argparse.ArgumentParser(description="Tokens a second of several sequences.")
    parser.add_argument("--device", choices=CHOICES, default="auto")
    parser.add_argument("--model", default="synthetic:tinyllama-1.1b")
    parser.add_argument("--phase", default="9c")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the run as JSON here")
    options = parser.parse_args()
    device = open_device(options.device)
    model = load_model(options.model, progress=True)
    engine = Engine(model, device, options.phase, progress=True)
    speeds = batch_speeds(engine, options.sizes, options.tokens, progress=True)
    run = BatchRun(environment(device), model.config.name, engine.phase.id, speeds)
    print(run)
    if options.record:
        run.write(options.record)


if __name__ == "__main__":
    main()
