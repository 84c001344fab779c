"""What the shipped file tells: openings of held-out stories, continued and measured.

The network computes with the weights as decoded from the GGUF file, in float32.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sovereign_lab.models.tokenizer import Tokenizer
from sovereign_lab.recipes.storyteller.corpus import Rows
from sovereign_lab.recipes.storyteller.grammar import Story, consistency
from sovereign_lab.recipes.storyteller.network import Storyteller
from sovereign_lab.recipes.storyteller.train import mean_loss
from sovereign_lab.recipes.storyteller.vocabulary import BOS, EOS


@dataclass(frozen=True)
class Told:
    """One continuation of a held-out story's opening; text has both."""

    opening: str
    text: str
    finished: bool
    consistent: bool


@dataclass(frozen=True)
class Figures:
    """Figures over a set of stories.

    consistent, finished: shares of the stories. distinct_n: different runs of n words over all such
    runs, in all stories together. repeated_4: the share of runs of four words that stood in the
    same story before. words: of a story, on average.
    """

    stories: int
    consistent: float
    finished: float
    distinct_1: float
    distinct_2: float
    distinct_3: float
    repeated_4: float
    words: float


def tell_all(
    network: Storyteller,
    tokenizer: Tokenizer,
    stories: Sequence[Story],
    temperature: float,
    seed: int,
    max_tokens: int = 512,
) -> list[Told]:
    """Continue the opening of every story, each judged against the story it is from."""
    prompts = [[BOS, *tokenizer.encode(story.opening, bos=False)] for story in stories]
    told = []
    for story, ids in zip(
        stories, generate(network, prompts, temperature, seed, max_tokens), strict=True
    ):
        text, finished = tokenizer.decode(ids), ids[-1] == EOS
        told.append(Told(story.opening, text, finished, finished and stays_with(story, text)))
    return told


def stays_with(story: Story, text: str) -> bool:
    """Whether a text keeps to the hero, the hero's pronoun and the thing of a story's opening."""
    return consistency(text, story.hero, story.object, story.pronoun).holds


@torch.no_grad()
def generate(
    network: Storyteller,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    seed: int,
    max_tokens: int,
) -> list[list[int]]:
    """Continue every prompt until EOS or for max_tokens; prompts and results start with BOS.

    All prompts go at once, each step through the whole sequence: for a network of this size that
    is quicker than a cache. Temperature 0 takes the most likely token.
    """
    device = network.token_embd.weight.device
    random = torch.Generator(device).manual_seed(seed)
    context = network.shape.context
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    ids = torch.zeros(len(prompts), min(context, int(lengths.max()) + max_tokens), dtype=torch.long)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    ids = ids.to(device)
    ends = torch.minimum(lengths + max_tokens, torch.tensor(ids.shape[1], device=device))
    everyone = torch.arange(len(prompts), device=device)
    while True:
        running = (lengths < ends) & (ids[everyone, lengths - 1] != EOS)
        if not running.any():
            break
        # Attention is causal, so what stands behind a shorter row does not reach its last token.
        logits = network(ids[:, : int(lengths.max())])[everyone, lengths - 1]
        chosen = _pick(logits, temperature, random)
        ids[everyone[running], lengths[running]] = chosen[running]
        lengths += running
    return [row[:length].tolist() for row, length in zip(ids, lengths.tolist(), strict=True)]


def measure(told: Iterable[Told]) -> Figures:
    """The figures of a set of stories."""
    told = list(told)
    words = [one.text.split() for one in told]
    return Figures(
        stories=len(told),
        consistent=sum(one.consistent for one in told) / len(told),
        finished=sum(one.finished for one in told) / len(told),
        distinct_1=_distinct(words, 1),
        distinct_2=_distinct(words, 2),
        distinct_3=_distinct(words, 3),
        repeated_4=_repeated(words, 4),
        words=sum(map(len, words)) / len(words),
    )


def as_told(stories: Iterable[Story]) -> list[Told]:
    """The grammar's own stories in the place of the network's: what the figures compare with."""
    return [Told(s.opening, s.text, True, stays_with(s, s.text)) for s in stories]


def perplexity(network: Storyteller, rows: Rows) -> float:
    """exp of the mean cross-entropy of a token, in float32 arithmetic."""
    return math.exp(mean_loss(network, rows, autocast=False))


def _pick(logits: Tensor, temperature: float, random: torch.Generator) -> Tensor:
    """A token for each row of logits [n, vocab], by the Gumbel trick: int64 [n]."""
    if temperature == 0:
        return logits.argmax(-1)
    uniform = torch.rand(logits.shape, generator=random, device=logits.device)
    return (logits / temperature - (-uniform.log()).log()).argmax(-1)


def _runs(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n)), strict=False))


def _distinct(stories: Sequence[Sequence[str]], n: int) -> float:
    runs = [run for words in stories for run in _runs(words, n)]
    return len(set(runs)) / max(1, len(runs))


def _repeated(stories: Sequence[Sequence[str]], n: int) -> float:
    counts = [Counter(_runs(words, n)) for words in stories]
    runs = sum(count.total() for count in counts)
    return (runs - sum(map(len, counts))) / max(1, runs)
