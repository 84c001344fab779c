"""Is a speed the same for every prompt? Decode speed prompt by prompt; a run of it, kept and read.

python -m sovereign_lab.measure.stability --model synthetic:tinyllama-1.1b --device cuda --phase 8c --record run.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sovereign_lab.devices import open_device
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.engine.decode_loop import DecodeLoop
from sovereign_lab.engine.sampling import Sampling
from sovereign_lab.engine.stream import RUN_AHEAD
from sovereign_lab.errors import LabError
from sovereign_lab.measure.environment import environment
from sovereign_lab.models.model import load_model

SAMPLING = Sampling(temperature=0.8, top_p=0.95)
# Of different lengths and kinds; any text will do.
PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle on the beach.",
    "def fibonacci(n):",
    "One day, a little girl named Lily went to the park with her dog. The sun was warm and the grass was green. "
    "She threw a red ball as far as she could, and the dog ran after it. But when he came back",
)


@dataclass(frozen=True)
class PromptSpeed:
    """Decoding behind one prompt of `prompt_tokens` tokens: tokens/s of each repeat, after a warm-up.

    `text_ended_at`: which of the generated tokens was the first that ends a text, counted from 1; None where
    none did. Decoding goes on behind it to the asked length, since a forward pass costs the same whatever it says.
    """

    prompt: str
    prompt_tokens: int
    tokens: int
    samples: tuple[float, ...]
    text_ended_at: int | None

    @property
    def tokens_per_second(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.samples)


@dataclass(frozen=True)
class StabilityRun:
    """Speeds over several prompts: measured with what (`measure/environment.py`), on which model, at which phase."""

    environment: Mapping[str, str]
    model: str
    phase: str
    sampling: Sampling
    speeds: tuple[PromptSpeed, ...]

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest of the prompts' medians, tokens/s: the form in which the seed gives it."""
        medians = [speed.tokens_per_second for speed in self.speeds]
        return min(medians), max(medians)

    @property
    def width(self) -> float:
        """How far apart the range's ends are, as a share of the median of all prompts' medians."""
        low, high = self.range
        return (high - low) / statistics.median(s.tokens_per_second for s in self.speeds)

    @property
    def widest_repeats(self) -> float:
        """The same over the repeats of one prompt, for the prompt where it is the most: what the machine does alone."""
        return max((max(s.samples) - min(s.samples)) / s.tokens_per_second for s in self.speeds)

    def rows(self) -> list[list[str]]:
        """A table of the prompts, its head first."""
        head = ["prompt", "its tokens", "generated", "tok/s, median", "lowest", "highest"]
        return [head] + [
            [
                s.prompt if len(s.prompt) <= 40 else f"{s.prompt[:37]}...",
                str(s.prompt_tokens),
                str(s.tokens),
                *(f"{v:.2f}" for v in (s.tokens_per_second, min(s.samples), max(s.samples))),
            ]
            for s in self.speeds
        ]

    def __str__(self) -> str:
        lines = self.rows()
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        table = [
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        low, high = self.range
        table.append(
            f"range {low:.1f} to {high:.1f} tok/s over {len(self.speeds)} prompts, {self.width:.1%} of the median; "
            f"the repeats of a prompt differ by up to {self.widest_repeats:.1%}"
        )
        return "\n".join(table)

    def write(self, path: Path) -> None:
        """Keep the run as JSON."""
        speeds = [asdict(s) | {"tokens_per_second": s.tokens_per_second} for s in self.speeds]
        path.write_text(json.dumps(asdict(self) | {"speeds": speeds}, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "StabilityRun":
        """A run that `write` kept."""
        content = json.loads(path.read_text())
        known = PromptSpeed.__dataclass_fields__
        speeds = [
            PromptSpeed(
                **{k: v for k, v in s.items() if k in known} | {"samples": tuple(s["samples"])}
            )
            for s in content["speeds"]
        ]
        return cls(
            content["environment"],
            content["model"],
            content["phase"],
            Sampling(**content["sampling"]),
            tuple(speeds),
        )


def stability(
    engine: Engine,
    prompts: Sequence[str] = PROMPTS,
    tokens: int = 200,
    sampling: Sampling = SAMPLING,
    repeats: int = 3,
) -> StabilityRun:
    """Decode `tokens` tokens behind each prompt, `repeats` times, prompt after prompt, so that a drift falls on all.

    The clock is the host's and runs while the engine decodes, its choice of tokens included; the prompt itself is
    outside. Every repeat draws the same tokens. Raises LabError for no prompts, tokens or repeats, an empty prompt,
    or a prompt and its tokens that the context does not hold.
    """
    for what, count in (("prompts", len(prompts)), ("tokens", tokens), ("repeats", repeats)):
        if count < 1:
            raise LabError(f"A measurement of stability needs at least one of: {what}; got 0.")
    tokenizer = engine.model.tokenizer
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    for prompt, its_ids in zip(prompts, ids, strict=True):
        if not its_ids:
            raise LabError(f"The prompt {prompt!r} has no tokens; give one that has.")
        if len(its_ids) + tokens > engine.context:
            raise LabError(
                f"{len(its_ids)} tokens of a prompt and {tokens} behind it do not fit a context of {engine.context}."
            )
    _decode(engine, ids[0], min(tokens, 2 * RUN_AHEAD), sampling)  # warm-up: recording, clocks
    samples: list[list[float]] = [[] for _ in ids]
    generated: list[list[int]] = [[] for _ in ids]
    for _ in range(repeats):
        for i, its_ids in enumerate(ids):
            seconds, generated[i] = _decode(engine, its_ids, tokens, sampling)
            samples[i].append(tokens / seconds)
    ends = [
        next((at for at, token in enumerate(text, 1) if token in tokenizer.eog_ids), None)
        for text in generated
    ]
    return StabilityRun(
        environment=environment(engine.device),
        model=engine.model.config.name,
        phase=engine.phase.id,
        sampling=sampling,
        speeds=tuple(
            PromptSpeed(prompt, len(ids[i]), tokens, tuple(samples[i]), ends[i])
            for i, prompt in enumerate(prompts)
        ),
    )


def _decode(
    engine: Engine, ids: Sequence[int], tokens: int, sampling: Sampling
) -> tuple[float, list[int]]:
    """Seconds to decode, and the tokens: not stopped by one that ends a text, as a stream of text would be."""
    loop = DecodeLoop(engine, sampling, ids)
    engine.prefill(list(ids), loop.given)
    chosen: list[int] = []
    start = time.perf_counter()
    while len(chosen) < tokens:
        chosen += [token for token, _ in loop.run(min(RUN_AHEAD, tokens - len(chosen)))]
    return time.perf_counter() - start, chosen


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line (sys.argv by default), measure, and print the table."""
    parser = argparse.ArgumentParser(description="Decode speed prompt by prompt.")
    parser.add_argument("--model", help="a catalog name or a path; the default model without")
    parser.add_argument("--device", choices=("auto", "simt", "cuda"), default="auto")
    parser.add_argument("--phase", default="8c", help=f"one of {', '.join(PHASES)}")
    parser.add_argument("--tokens", type=int, default=200, help="tokens behind each prompt")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the run there as JSON")
    options = parser.parse_args(arguments)
    device = open_device(options.device)
    model = load_model(options.model, progress=True)
    engine = Engine(model, device, options.phase, progress=True)
    run = stability(engine, tokens=options.tokens, repeats=options.repeats)
    print(f"{run.model}, phase {run.phase}, {device.properties.name}: {device.properties.times}")
    print(run)
    if options.record is not None:
        run.write(options.record)
        print(f"recorded in {options.record}")


if __name__ == "__main__":
    main()
