"""Rows hold whole stories, the same ones for the same seed."""

import random

import numpy as np

from sovereign_lab.recipes.storyteller import corpus
from sovereign_lab.recipes.storyteller.vocabulary import BOS, EOS, Vocabulary, train_vocabulary


def vocabulary() -> Vocabulary:
    return train_vocabulary([story.text for story in corpus.stories(1, "train", 200)], 700)


def test_a_story_depends_on_its_number_alone() -> None:
    together = [story.text for story in corpus.stories(4, "train", 6)]
    assert [story.text for story in corpus.stories(4, "train", 2, first=4)] == together[4:]
    assert [story.text for story in corpus.stories(4, "validation", 6)] != together
    assert [story.text for story in corpus.stories(5, "train", 6)] != together


def test_texts_come_in_order() -> None:
    assert corpus.texts(4, "train", 5) == [s.text for s in corpus.stories(4, "train", 5)]


def test_rows_are_the_stories() -> None:
    words = vocabulary()
    rows = corpus.rows(words, 1, "train", 40, 1024)
    assert rows.dtype == np.uint16 and rows.shape[1] == 1024
    tokenizer = words.tokenizer()
    told = []
    for row in rows:
        used = row[row != corpus.PADDING]
        assert (row[len(used) :] == corpus.PADDING).all(), "padding stands in front of a story"
        assert used[0] == BOS and used[-1] == EOS
        for story in np.split(used, np.flatnonzero(used == EOS)[:-1] + 1):
            assert story[0] == BOS
            told.append(tokenizer.decode(story[1:-1].tolist()))
    assert sorted(told) == sorted(story.text for story in corpus.stories(1, "train", 40))
    assert (rows == corpus.rows(words, 1, "train", 40, 1024)).all()


def test_packing_leaves_out_what_does_not_fit() -> None:
    stories = [[1] * 6, [2] * 5, [3] * 4, [4] * 3, [5] * 11]
    rows = corpus.pack(stories, 10, random.Random(0))
    assert rows.shape == (2, 10)
    assert sorted(sorted(set(row.tolist()) - {corpus.PADDING}) for row in rows) == [[1, 3], [2, 4]]
