"""The vocabulary reaches every piece, spells everything, and means the same to llama.cpp."""

import random
from pathlib import Path
from types import ModuleType

import pytest
from gguf import TokenType

from sovereign_lab.errors import LabError
from sovereign_lab.recipes.storyteller import corpus
from sovereign_lab.recipes.storyteller.vocabulary import BOS, EOS, Vocabulary, train_vocabulary

SIZE = 800
BYTES = 256


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [story.text for story in corpus.stories(7, "train", 300)]


@pytest.fixture(scope="module")
def vocabulary(texts: list[str]) -> Vocabulary:
    return train_vocabulary(texts, SIZE)


def test_the_order_is_llamas(vocabulary: Vocabulary) -> None:
    assert len(vocabulary) == SIZE
    assert vocabulary.tokens[:4] == ("<unk>", "<s>", "</s>", "<0x00>")
    assert vocabulary.tokens[3 + BYTES - 1] == "<0xFF>"
    assert vocabulary.types[BOS] == vocabulary.types[EOS] == TokenType.CONTROL
    assert set(vocabulary.types[3 : 3 + BYTES]) == {TokenType.BYTE}
    scores = vocabulary.scores[3 + BYTES :]
    assert list(scores) == sorted(scores, reverse=True) and len(set(scores)) == len(scores)


def test_every_piece_is_the_join_of_two(vocabulary: Vocabulary) -> None:
    pieces = set(vocabulary.tokens[3 + BYTES :])
    for piece in pieces:
        cuts = range(1, len(piece))
        assert len(piece) == 1 or any(
            piece[:cut] in pieces and piece[cut:] in pieces for cut in cuts
        ), piece


def test_a_space_only_starts_a_piece(vocabulary: Vocabulary) -> None:
    assert not any("▁" in piece[1:] for piece in vocabulary.tokens)


def test_text_survives(vocabulary: Vocabulary, texts: list[str]) -> None:
    tokenizer = vocabulary.tokenizer()
    for text in (*texts[:50], "A zebra, 100 % quick; naïve 🎉\nnext\tline"):
        ids = tokenizer.encode(text)
        assert ids[0] == BOS and EOS not in ids
        assert tokenizer.decode(ids) == text


def test_stories_need_no_byte_tokens_but_for_line_ends(
    vocabulary: Vocabulary, texts: list[str]
) -> None:
    tokenizer = vocabulary.tokenizer()
    used = {id for text in texts for id in tokenizer.encode(text)}
    byte_tokens = {vocabulary.tokens[id] for id in used if vocabulary.types[id] == TokenType.BYTE}
    assert byte_tokens <= {"<0x0A>"}


def test_the_same_texts_give_the_same_vocabulary(vocabulary: Vocabulary, texts: list[str]) -> None:
    assert train_vocabulary(texts, SIZE) == vocabulary


def test_too_few_words_for_the_size() -> None:
    with pytest.raises(LabError, match="take more texts or fewer tokens"):
        train_vocabulary(["one two three"], SIZE)


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    import llama_cpp_oracle

    return llama_cpp_oracle


def test_llama_cpp_encodes_the_same(
    vocabulary: Vocabulary, texts: list[str], oracle: ModuleType, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="the recipe's network needs PyTorch")
    from sovereign_lab.recipes.storyteller.export import write_gguf
    from sovereign_lab.recipes.storyteller.network import Shape, new_storyteller

    shape = Shape(layers=1, dim=32, ffn_dim=32, heads=1, kv_heads=1, head_dim=32, vocab=SIZE)
    network = new_storyteller(shape, 0)
    path = tmp_path / "vocabulary.gguf"
    with torch.no_grad():
        write_gguf(path, shape, vocabulary, dict(network.named_parameters()))
    tokenizer = vocabulary.tokenizer()
    rng = random.Random(3)
    words = [word for text in texts for word in text.split()]
    for text in (*texts[:30], *(" ".join(rng.choices(words, k=9)) for _ in range(30))):
        assert oracle.tokenize(path, text) == tokenizer.encode(text)
