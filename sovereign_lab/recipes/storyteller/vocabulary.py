"""A SentencePiece-style vocabulary, learned from the stories as BPE and written as scores.

A GGUF file of the tokenizer model `llama` has no merges, only a score for each piece: two
neighbours join when together they spell a piece, the best score first. A piece's score is therefore
minus the rank in which BPE learned it.
"""

import json
import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tokenizers
from gguf import TokenType
from tokenizers import Regex, models, pre_tokenizers, trainers

from sovereign_lab.errors import LabError
from sovereign_lab.models.tokenizer import Tokenizer, tokenizer_from_metadata

UNK, BOS, EOS = 0, 1, 2
_SPECIALS = (
    ("<unk>", TokenType.UNKNOWN),
    ("<s>", TokenType.CONTROL),
    ("</s>", TokenType.CONTROL),
)
_BYTES = tuple((f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256))

_SPACE = "▁"
# A piece is part of one word with its space, of an ending such as 's, or of a run of punctuation.
_WORDS = rf"{_SPACE}?\p{{L}}+|'\p{{L}}+|{_SPACE}?[^{_SPACE}\p{{L}}]+|{_SPACE}"
# Any English prompt is spelled without byte tokens, whether or not the stories use the character.
_CHARACTERS = (_SPACE, *(c for c in string.printable if not c.isspace()))


@dataclass(frozen=True)
class Vocabulary:
    """Pieces by token id, with what a GGUF file says of each: a score and a gguf.TokenType."""

    tokens: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    def metadata(self) -> dict[str, Any]:
        """The `tokenizer.*` values of a GGUF file."""
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": list(self.tokens),
            "tokenizer.ggml.scores": list(self.scores),
            "tokenizer.ggml.token_type": list(self.types),
            "tokenizer.ggml.bos_token_id": BOS,
            "tokenizer.ggml.eos_token_id": EOS,
            "tokenizer.ggml.unknown_token_id": UNK,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_eos_token": False,
            "tokenizer.ggml.add_space_prefix": True,
        }

    def tokenizer(self) -> Tokenizer:
        """The lab's own tokenizer of this vocabulary."""
        return tokenizer_from_metadata(self.metadata())


def train_vocabulary(texts: Iterable[str], size: int = 2048) -> Vocabulary:
    """Learn `size` tokens: three specials, 256 bytes, then pieces, in the order of their scores.

    Raises LabError where the texts have too few different words to fill the vocabulary, and where
    a piece could never be the result of encoding.
    """
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    pieces = size - len(_SPECIALS) - len(_BYTES)
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        initial_alphabet=list(_CHARACTERS),
        # Another character becomes bytes.
        limit_alphabet=len(_CHARACTERS),
        show_progress=False,
    )
    learner.train_from_iterator((_spelled(text) for text in texts), trainer)
    merges = json.loads(learner.to_str())["model"]["merges"]
    # Two merges may spell the same piece; it is the first that makes it.
    learned = list(dict.fromkeys(left + right for left, right in merges))
    if len(learned) + len(_CHARACTERS) != pieces:
        raise LabError(
            f"a vocabulary of {size} tokens was asked for, but the texts give only "
            f"{size - pieces + len(_CHARACTERS) + len(learned)}: take more texts or fewer tokens"
        )
    ranked = (*learned, *_CHARACTERS)
    specials = (*_SPECIALS, *_BYTES)
    vocabulary = Vocabulary(
        tokens=(*(text for text, _ in specials), *ranked),
        scores=(*(0.0 for _ in specials), *(-float(rank) for rank in range(len(ranked)))),
        types=(*(int(type) for _, type in specials), *(int(TokenType.NORMAL) for _ in ranked)),
    )
    _demand_reachable(vocabulary)
    return vocabulary


def _spelled(text: str) -> str:
    """As the tokenizer spells it: a space in front, `▁` for spaces; line ends, always bytes, go."""
    known = (c for c in f" {text}".replace(" ", _SPACE) if c in _KNOWN)
    return "".join(known)


_KNOWN = frozenset(_CHARACTERS)


def _demand_reachable(vocabulary: Vocabulary) -> None:
    tokenizer = vocabulary.tokenizer()
    for id in range(len(_SPECIALS) + len(_BYTES), len(vocabulary)):
        piece = vocabulary.tokens[id].replace(_SPACE, " ")
        # After a special token comes the space of the prefix; the piece itself stands behind "\n".
        if tokenizer.encode(f"\n{piece}", bos=False)[2:] != [id]:
            raise LabError(
                f"the piece {piece!r} (token {id}) is never the result of encoding: its parts "
                "join to others first; take other texts"
            )
