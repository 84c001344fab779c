"""The model card, written from the figures of a build, so that no figure in it is typed by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sovereign_lab.models.storyteller import FILE
from sovereign_lab.recipes.storyteller.evaluate import Figures, Told
from sovereign_lab.recipes.storyteller.network import Shape
from sovereign_lab.recipes.storyteller.train import Losses, Schedule


@dataclass(frozen=True)
class Report:
    """What a build did, where and when; what `figures.json` beside the card holds too.

    told: figures by who told the stories: the grammar, the network greedily, at a temperature.
    """

    machine: str
    date: str
    software: str
    minutes: float
    seed: int
    shape: Shape
    schedule: Schedule
    parameters: int
    file_bytes: int
    stories: int
    story_tokens: int
    trained_tokens: int
    losses: Mapping[str, Losses]
    perplexity: float
    told: Mapping[str, Figures]


def model_card(report: Report, samples: Mapping[str, Sequence[Told]]) -> str:
    """The card in Markdown; samples by how they were told, each printed as it came."""
    r, shape, schedule = report, report.shape, report.schedule
    return f"""\
# Storyteller

`{FILE}` ({r.file_bytes:,} bytes) tells short children's stories in simple English. It is the
lab's model in the box: small enough to be fast on a CPU that imitates a GPU, and shaped like
TinyLlama, so that it walks the same paths through the engine.

This card and `figures.json` were written by the build itself.

| | |
|---|---|
| architecture | `llama`: {shape.layers} layers, dim {shape.dim}, feed-forward {shape.ffn_dim}, \
{shape.heads} query and {shape.kv_heads} KV heads of {shape.head_dim}, untied head |
| parameters | {r.parameters:,} |
| context | {shape.context:,} tokens |
| vocabulary | {shape.vocab:,} SentencePiece-style pieces with scores and byte fallback |
| formats | layer matrices Q4_0, embedding and head Q8_0, norms F32 |
| licence | MIT, the file and what it was made from |

## Data

{r.stories:,} stories ({r.story_tokens:,} tokens), all written by the grammar in
`sovereign_lab/recipes/storyteller/grammar` from the seed {r.seed}. No other text was used, no text
of another model, and nothing about a real person. Some pairs of a hero and an object are held
out: they occur in no training story, and all figures below that say "held-out" are about them.

## Method

    python -m sovereign_lab.recipes.storyteller build --out data/storyteller

on a machine with a GPU and `pip install 'sovereign-lab[recipe]'` runs everything from the seed. A
vocabulary is learned from the stories as BPE and written as scores. The network is trained by
AdamW with bf16 arithmetic: {schedule.steps:,} steps of {schedule.batch_rows} rows of \
{shape.context:,} tokens, then
{schedule.quantised_steps:,} steps in which it sees its weights as the file will hold them (Q4_0 and \
Q8_0,
straight-through); {r.trained_tokens:,} tokens in all. This build took {r.minutes:.1f} minutes on
{r.machine}, {r.date}, with {r.software}.

## Figures

Mean cross-entropy of a token, in nats, on stories that were not trained on:

| weights | {" | ".join(f"{split} stories" for split in r.losses)} |
|---|{"---|" * len(r.losses)}
{_loss_rows(r.losses)}

The last part goes on training while it makes the network used to its stored weights, so the last
row is lower than the first for both reasons.

Perplexity of the shipped file on held-out stories: {r.perplexity:.3f} a token. The grammar draws
its words at random, so even a perfect model of it would stay above 1.

The openings of held-out stories, continued to the end by the shipped file, beside the grammar's
own stories. Consistent: the story ends, hero and thing of the opening are in its last third, no
other thing and no third name has come in, and the hero's pronoun is right until a friend appears;
`grammar.consistency` judges that by rules, and now and then wrongly. Distinct-n: different runs of
n words over all runs in all the stories. Repeated: runs of four words that stood in the same story
before.

| told by | stories | consistent | finished | words | distinct-1 | distinct-2 | distinct-3 | repeated |
|---|---|---|---|---|---|---|---|---|
{_figure_rows(r.told)}

## Limits

It knows the stories of its grammar and nothing else: no facts, no chat, no other language. An
opening far from those stories is continued as one of them, often with a break. Its stories end by
themselves after some 150 to 250 words. Like any model it can lose a name or a thing, most often at
a high temperature; the shares are above.

## Samples

Unedited, from held-out openings (in bold), the first of the {r.told["greedy"].stories} in order.
{_samples(samples)}"""


def _loss_rows(losses: Mapping[str, Losses]) -> str:
    meanings = {
        "bf16": "bf16, before the quantisation-aware part",
        "q4_0_plain": "the same in Q4_0, max-abs rule",
        "q4_0_searched": "the same in Q4_0, scale search",
        "q4_0_trained": "Q4_0 after the quantisation-aware part (shipped)",
    }
    return "\n".join(
        f"| {meaning} | {' | '.join(f'{getattr(loss, name):.4f}' for loss in losses.values())} |"
        for name, meaning in meanings.items()
    )


def _figure_rows(told: Mapping[str, Figures]) -> str:
    return "\n".join(
        f"| {teller} | {f.stories} | {f.consistent:.1%} | {f.finished:.1%} | {f.words:.0f} "
        f"| {f.distinct_1:.3f} | {f.distinct_2:.3f} | {f.distinct_3:.3f} | {f.repeated_4:.1%} |"
        for teller, f in told.items()
    )


def _samples(samples: Mapping[str, Sequence[Told]]) -> str:
    lines: list[str] = []
    for how, told in samples.items():
        lines.append(f"\n### {how[0].upper()}{how[1:]}\n")
        for number, one in enumerate(told, 1):
            rest = one.text.removeprefix(one.opening).strip().replace("\n", "\n   ")
            opening = one.opening.replace("\n", "\n   ")
            lines.append(f"{number}. **{opening}** {rest}\n")
    return "\n".join(lines)
