"""Stories become rows of token ids: written, encoded and packed on every core, from a seed."""

import functools
import multiprocessing
import os
import random
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sovereign_lab.models.tokenizer import Tokenizer
from sovereign_lab.recipes.storyteller.grammar import Story, write_story
from sovereign_lab.recipes.storyteller.vocabulary import BOS, EOS, UNK, Vocabulary

Rows = npt.NDArray[np.uint16]

PADDING = UNK  # fills a row behind its last story; no story contains it
_STORIES_AT_ONCE = 1000  # of one task: enough to pack rows well


def stories(seed: int, split: str, count: int, first: int = 0) -> Iterator[Story]:
    """Stories `first` to `first + count` of a split: "train", "validation" or "held-out".

    Every story has a seed of its own, so that any part can be written alone. The stories of
    "held-out" pair heroes with objects that the other splits never pair.
    """
    for index in range(first, first + count):
        rng = random.Random(f"{seed}/{split}/{index}")
        yield write_story(rng, held_out=split == "held-out")


def texts(seed: int, split: str, count: int) -> list[str]:
    """The texts of the first `count` stories of a split."""
    parts = [(seed, split, size, first) for first, size in _parts(count)]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        return [text for part in pool.imap(_write, parts) for text in part]


def rows(
    vocabulary: Vocabulary, seed: int, split: str, count: int, length: int, progress: bool = False
) -> Rows:
    """The first `count` stories of a split in rows of `length` tokens, uint16 [rows, length].

    A row holds whole stories, each from BOS to EOS, then PADDING. Stories longer than a row are
    left out.
    """
    pack_part = functools.partial(_packed_part, vocabulary, seed, split, length)
    with multiprocessing.Pool(os.cpu_count()) as pool:
        parts = pool.imap(pack_part, list(_parts(count)))
        bar = tqdm(parts, f"{split} stories", -(-count // _STORIES_AT_ONCE), disable=not progress)
        return np.concatenate(list(bar))


def pack(stories: Iterable[Sequence[int]], length: int, rng: random.Random) -> Rows:
    """Whole stories side by side, first fit, longest first; shuffled within a row."""
    packed: list[list[Sequence[int]]] = []
    room: list[int] = []
    for story in sorted(stories, key=len, reverse=True):
        if len(story) > length:
            continue
        at = next((i for i, free in enumerate(room) if free >= len(story)), len(room))
        if at == len(room):
            packed.append([])
            room.append(length)
        packed[at].append(story)
        room[at] -= len(story)
    rows = np.full((len(packed), length), PADDING, np.uint16)
    for row, members in zip(rows, packed, strict=True):
        # Else the start of a row, which is what generation meets, would always be a long story.
        rng.shuffle(members)
        tokens = [token for story in members for token in story]
        row[: len(tokens)] = tokens
    return rows


def encode_story(tokenizer: Tokenizer, text: str) -> list[int]:
    """A whole story as the model sees it: BOS, the text, EOS."""
    return [BOS, *tokenizer.encode(text, bos=False, special=False), EOS]


def _packed_part(
    vocabulary: Vocabulary, seed: int, split: str, length: int, part: tuple[int, int]
) -> Rows:
    first, count = part
    tokenizer = _tokenizer(vocabulary)
    encoded = [encode_story(tokenizer, s.text) for s in stories(seed, split, count, first)]
    return pack(encoded, length, random.Random(f"{seed}/{split}/pack/{first}"))


@functools.cache
def _tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """One a process: building it takes longer than encoding a story."""
    return vocabulary.tokenizer()


def _write(part: tuple[int, str, int, int]) -> list[str]:
    return [story.text for story in stories(*part)]


def _parts(count: int) -> Iterator[tuple[int, int]]:
    """(first, size) of the tasks that `count` stories are shared out in."""
    for first in range(0, count, _STORIES_AT_ONCE):
        yield first, min(_STORIES_AT_ONCE, count - first)
