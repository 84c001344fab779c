"""python -m sovereign_lab.recipes.storyteller build --out data/storyteller [--tiny]"""

import argparse
import dataclasses
import datetime
import importlib.util
import json
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from sovereign_lab.errors import LabError

if importlib.util.find_spec("torch") is None:
    sys.exit("The recipe trains with PyTorch: pip install 'sovereign-lab[recipe]'")

import torch

from sovereign_lab.models.storyteller import FILE
from sovereign_lab.recipes.storyteller import corpus, evaluate, export
from sovereign_lab.recipes.storyteller.card import Report, model_card
from sovereign_lab.recipes.storyteller.network import Shape, Storyteller, new_storyteller
from sovereign_lab.recipes.storyteller.train import Schedule, train
from sovereign_lab.recipes.storyteller.vocabulary import train_vocabulary

HELD_OUT = "held-out"


@dataclass(frozen=True)
class Plan:
    """How much of everything; the shape's vocabulary is the one that is learned."""

    shape: Shape
    schedule: Schedule
    stories: int
    vocabulary_stories: int
    validation_stories: int
    prompts: int
    max_tokens: int
    samples: int = 5
    seed: int = 1


FULL = Plan(
    shape=Shape(),
    schedule=Schedule(steps=10_000, quantised_steps=4_000, batch_rows=64),
    stories=1_000_000,
    vocabulary_stories=40_000,
    validation_stories=2_000,
    prompts=200,
    max_tokens=512,
)
# All stages in seconds on a CPU. What comes out tells nothing.
TINY = Plan(
    shape=Shape(
        layers=2, dim=64, ffn_dim=96, heads=2, kv_heads=1, head_dim=32, vocab=600, context=512
    ),
    schedule=Schedule(steps=6, quantised_steps=4, batch_rows=2, warm_up=2),
    stories=60,
    vocabulary_stories=300,
    validation_stories=8,
    prompts=4,
    max_tokens=8,
    samples=2,
)


def build(plan: Plan, out: Path, progress: bool = True) -> Report:
    """Data, vocabulary, training, file, figures, card: everything from the seed, into `out`."""
    started = time.monotonic()
    seed, shape = plan.seed, plan.shape

    def say(stage: str) -> None:
        if progress:
            print(f"{time.monotonic() - started:6.1f} s  {stage}", file=sys.stderr, flush=True)

    # The data first: a process that has used the GPU must not be forked.
    say("vocabulary")
    texts = corpus.texts(seed, "train", plan.vocabulary_stories)
    vocabulary = train_vocabulary(texts, shape.vocab)
    say("stories")
    rows, validation, held_out = (
        corpus.rows(vocabulary, seed, split, count, shape.context, progress)
        for split, count in (
            ("train", plan.stories),
            ("validation", plan.validation_stories),
            (HELD_OUT, plan.validation_stories),
        )
    )

    say(f"training on {len(rows):,} rows")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = new_storyteller(shape, seed).to(device)
    splits = {"validation": validation, HELD_OUT: held_out}
    training = train(network, rows, splits, plan.schedule, seed, progress)

    say("export")
    path = out / FILE
    export.write_gguf(path, shape, vocabulary, training.masters)
    shipped = _load(path, network)

    say("stories from held-out openings")
    tokenizer = vocabulary.tokenizer()
    stories = list(corpus.stories(seed, HELD_OUT, plan.prompts, first=plan.validation_stories))
    told = {
        "the grammar": evaluate.as_told(stories),
        "greedy": evaluate.tell_all(shipped, tokenizer, stories, 0.0, seed, plan.max_tokens),
        "temperature 0.8": evaluate.tell_all(
            shipped, tokenizer, stories, 0.8, seed, plan.max_tokens
        ),
    }
    report = Report(
        machine=_machine(device),
        date=datetime.date.today().isoformat(),
        software=f"PyTorch {torch.__version__}, Python {platform.python_version()}",
        minutes=(time.monotonic() - started) / 60,
        seed=seed,
        shape=shape,
        schedule=plan.schedule,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        file_bytes=path.stat().st_size,
        stories=plan.stories,
        story_tokens=int((rows != corpus.PADDING).sum()),
        trained_tokens=training.tokens,
        losses=training.losses,
        perplexity=evaluate.perplexity(shipped, held_out),
        told={teller: evaluate.measure(part) for teller, part in told.items()},
    )
    say("card")
    figures = dataclasses.asdict(report) | {"loss_curve": training.curve}
    (out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    samples = {how: part[: plan.samples] for how, part in told.items() if how != "the grammar"}
    (out / "README.md").write_text(model_card(report, samples))
    _write_told(out / "told.jsonl", told)
    say("done")
    return report


def _load(path: Path, trained: Storyteller) -> Storyteller:
    """A network with the weights of the file, which are those that the trained one saw last."""
    device = trained.token_embd.weight.device
    shipped = Storyteller(trained.shape)
    shipped.load_state_dict(export.read_weights(path))
    shipped.to(device)
    for (name, ours), theirs in zip(trained.named_parameters(), shipped.parameters(), strict=True):
        if not torch.equal(ours, theirs):
            raise LabError(f"{path}: {name} is not what the network was trained with")
    return shipped


def _write_told(path: Path, told: dict[str, list[evaluate.Told]]) -> None:
    """Every story of the evaluation, one JSON object a line."""
    with path.open("w") as file:
        for teller, part in told.items():
            for one in part:
                file.write(json.dumps({"teller": teller} | dataclasses.asdict(one)) + "\n")


def _machine(device: torch.device) -> str:
    cores = f"{os.cpu_count()} CPU cores"
    return f"one {torch.cuda.get_device_name()} and {cores}" if device.type == "cuda" else cores


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m sovereign_lab.recipes.storyteller")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("build", help="make the model from scratch")
    command.add_argument("--out", type=Path, required=True, help="directory for what is made")
    command.add_argument("--tiny", action="store_true", help="all stages, seconds on a CPU")
    options = parser.parse_args(arguments)
    try:
        build(TINY if options.tiny else FULL, options.out)
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
