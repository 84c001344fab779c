"""A GGUF vocabulary becomes a tokenizer: text to token ids and back, with llama.cpp's results.

Both vocabulary families of GGUF run on the BPE of the `tokenizers` library:

- `gpt2`: byte-level BPE. Text is cut into words by the pre-tokeniser that the file names, bytes
  become printable characters, and the file's own merges join them.
- `llama`: SentencePiece. A space becomes `▁`; the file has no merges but a score for each token,
  and two neighbours join when their concatenation is a token, the best score first. A character
  outside the vocabulary falls back to byte tokens.

What surrounds the BPE (special tokens in text, BOS and EOS, bytes, the chat template) is here.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import jinja2.sandbox
import tokenizers
from gguf import TokenType
from tokenizers import Regex, models, pre_tokenizers

from sovereign_lab.errors import LabError

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_TIKTOKEN_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# tokenizer.ggml.pre -> the patterns that cut text into words, applied one after the other; what a
# pattern leaves between two matches is a word too.
_WORD_PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2_WORDS,),
    "smollm": (r"\p{N}", _GPT2_WORDS),
    "llama-bpe": (_TIKTOKEN_WORDS % r"\p{N}{1,3}",),
    "qwen2": (_TIKTOKEN_WORDS % r"\p{N}",),
}
_PRE_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}

# A model ends its turn with one of these, whatever type its file gives them. The last lines are
# padding and repository marks of code models, at which llama.cpp also stops.
# fmt: off
_END_TEXTS = frozenset((
    "</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>",
    "<end_of_turn>", "<end_of_utterance>", "<|return|>", "<|call|>", "<eos>", "<EOT>", "_<EOT>",
    "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
))
# fmt: on
_END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

_SPACE = "▁"

# Far past any vocabulary's, and short enough that trying every cut of every token takes no time.
_MOST_CHARACTERS = 1024  # of one token
_MOST_CHARACTERS_IN_ALL = 1 << 23


class VocabularyError(LabError):
    """Metadata that describes no usable tokenizer: the key of the field, and what is wrong."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key} {problem}")
        self.key, self.problem = key, problem


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back; build it with `tokenizer_from_metadata`.

    Fields: `vocab_size` tokens; `bos_id`, `eos_id` (None where the vocabulary has none); `eog_ids`,
    every id at which generation ends; `add_bos`, `add_eos`: what `encode` adds when not told
    otherwise; `chat_template`: Jinja2 source or None.
    """

    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    eog_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    chat_template: str | None
    _bpe: tokenizers.Tokenizer = field(repr=False)
    _texts: Sequence[str] = field(repr=False)  # as the file spells them
    _bytes: Sequence[bytes] = field(repr=False)  # what each token stands for
    _control_ids: frozenset[int] = field(repr=False)
    _always_parsed: Sequence[int] = field(repr=False)  # user-defined tokens, longest first
    _parsed: Sequence[int] = field(repr=False)  # these and the control tokens, longest first
    _sentencepiece: bool = field(repr=False)
    _space_prefix: bool = field(repr=False)
    # ids that only the BPE knows, each a character that no token spells -> its byte tokens
    _fallback: Mapping[int, Sequence[int]] = field(repr=False)

    def encode(self, text: str, bos: bool | None = None, special: bool = True) -> list[int]:
        """Token ids of `text`.

        bos: True puts BOS in front, False adds neither BOS nor EOS, None does what the file says.
        A text that already starts with the BOS token gets no second one. special: control tokens
        spelled in the text become their ids; with False they are plain text, as text from a
        stranger should be. Raises LabError for text that is not Unicode, or when BOS is wanted
        and the vocabulary has none.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise LabError(
                f"expected text in UTF-8, found a broken character at position {error.start}: "
                "check the encoding of the prompt"
            ) from None
        ids: list[int] = []
        after_special = True
        for piece in self._split_at_special(text, special):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._encode_plain(piece, after_special)
            after_special = isinstance(piece, int)
        if self.add_bos if bos is None else bos:
            if self.bos_id is None:
                raise LabError(
                    "a BOS token was asked for, but this vocabulary has none: encode with bos=False"
                )
            if ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
        if self.add_eos and self.eos_id is not None and bos is not False:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, so that decode(encode(text)) is `text`.

        SentencePiece takes a `▁` in the text for a space, and gives a space back.

        Control tokens have no text. Bytes that are not UTF-8 become U+FFFD. Where `encode` puts a
        space in front, one leading space is dropped: for text that continues a prompt, use
        `stream`, which keeps it. Raises LabError for an id outside the vocabulary.
        """
        text = b"".join(self._bytes_of(i) for i in ids).decode("utf-8", "replace")
        return text[1:] if self._space_prefix and text.startswith(" ") else text

    def stream(self) -> Stream:
        """A decoder for ids that arrive one at a time."""
        return Stream(self)

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt for `messages` ({"role": ..., "content": ...} each), ready for the answer.

        Renders the file's own template in a sandbox: it comes with the model, from a stranger.
        Raises LabError when there is no template or it refuses these messages.
        """
        if self.chat_template is None:
            raise LabError(
                "this model's file holds no chat template (tokenizer.chat_template): "
                "give it a plain prompt"
            )
        sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        sandbox.globals["raise_exception"] = _refuse_messages
        try:
            return sandbox.from_string(self.chat_template).render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                bos_token="" if self.bos_id is None else self._texts[self.bos_id],
                eos_token="" if self.eos_id is None else self._texts[self.eos_id],
            )
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise LabError(
                f"the model's chat template does not accept these messages: {error}"
            ) from error

    def _split_at_special(self, text: str, special: bool) -> list[str | int]:
        """`text` with each spelled-out special token replaced by its id, longer tokens first."""
        pieces: list[str | int] = [text]
        for token_id in self._parsed if special else self._always_parsed:
            spelling = self._texts[token_id]
            if spelling not in text:
                continue
            cut: list[str | int] = []
            for piece in pieces:
                if isinstance(piece, int):
                    cut.append(piece)
                    continue
                first, *rest = piece.split(spelling)
                cut.append(first)
                for part in rest:
                    cut += [token_id, part]
            pieces = cut
        return [piece for piece in pieces if piece != ""]

    def _encode_plain(self, text: str, after_special: bool) -> list[int]:
        if self._sentencepiece:
            if self._space_prefix and after_special:
                text = " " + text
            text = text.replace(" ", _SPACE)
        ids = self._bpe.encode(text, add_special_tokens=False).ids
        if not self._fallback:
            return ids
        return [real for i in ids for real in self._fallback.get(i, (i,))]

    def _bytes_of(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            raise LabError(
                f"expected a token id from 0 to {self.vocab_size - 1}, got {token_id}: "
                "these ids come from another vocabulary"
            )
        return b"" if token_id in self._control_ids else self._bytes[token_id]


class Stream:
    """Text from token ids one at a time, whole characters only."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes: empty while a character is only partly here."""
        return self._decoder.decode(self._tokenizer._bytes_of(token_id))

    def finish(self) -> str:
        """What is left at the end: empty, or one U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that a GGUF file's metadata (plain Python values) describes.

    Raises VocabularyError, which names the field, for a missing or contradictory one, for another
    tokenizer family and for a pre-tokeniser that is not supported.
    """
    family = _required(metadata, "tokenizer.ggml.model", str)
    if family not in ("llama", "gpt2"):
        raise VocabularyError(
            "tokenizer.ggml.model",
            f"names the family {family[:80]!r}, but only 'llama' and 'gpt2' are read here: "
            "use a model with one of these tokenizers",
        )
    texts = _token_texts(metadata)
    types = _token_types(metadata, texts)
    vocab = {text: i for i, text in enumerate(texts)}
    if len(vocab) != len(texts):
        twice = next(text for i, text in enumerate(texts) if vocab[text] != i)
        raise VocabularyError(
            "tokenizer.ggml.tokens",
            f"holds {twice!r} twice, where each token was expected once: "
            "the file is damaged, fetch it again",
        )
    # Plain text never becomes a control token: these are found by their spelling, or not at all.
    hidden = {TokenType.CONTROL, TokenType.UNKNOWN}
    plain = {text: i for text, i in vocab.items() if types[i] not in hidden}

    fallback: dict[int, list[int]] = {}
    if family == "llama":
        bpe, fallback = _sentencepiece_bpe(metadata, texts, types, plain, vocab)
        token_bytes = [_sentencepiece_bytes(*token) for token in zip(texts, types, strict=True)]
        default_bos, default_eos, default_add_bos = 1, 2, True
    else:
        pre = _optional(metadata, "tokenizer.ggml.pre", str, "default")
        pre = _PRE_ALIASES.get(pre, pre)
        bpe = _byte_level_bpe(metadata, pre, plain)
        byte_of = {char: byte for byte, char in _printable_bytes().items()}
        token_bytes = [
            _byte_level_bytes(*token, byte_of) for token in zip(texts, types, strict=True)
        ]
        default_bos, default_eos, default_add_bos = 11, 11, pre == "llama-bpe"

    def token_id(name: str, default: int | None = None) -> int | None:
        value = _optional(metadata, f"tokenizer.ggml.{name}_token_id", int, default)
        return value if value is not None and 0 <= value < len(texts) else None

    bos_id, eos_id = token_id("bos", default_bos), token_id("eos", default_eos)
    add_bos = _optional(metadata, "tokenizer.ggml.add_bos_token", bool, default_add_bos)
    add_eos = _optional(metadata, "tokenizer.ggml.add_eos_token", bool, False)
    for wanted, found, name in ((add_bos, bos_id, "bos"), (add_eos, eos_id, "eos")):
        if wanted and found is None:
            raise VocabularyError(
                f"tokenizer.ggml.add_{name}_token",
                f"is true, but tokenizer.ggml.{name}_token_id names no token of the {len(texts)} "
                "in the vocabulary: the file contradicts itself",
            )
    ends = {eos_id, *(token_id(name) for name in _END_KEYS)}
    ends.update(vocab[text] for text in _END_TEXTS if text in vocab)

    always_parsed = [i for i, kind in enumerate(types) if kind == TokenType.USER_DEFINED]
    parsed = [i for i, kind in enumerate(types) if kind in hidden or kind == TokenType.USER_DEFINED]
    return Tokenizer(
        vocab_size=len(texts),
        bos_id=bos_id,
        eos_id=eos_id,
        eog_ids=frozenset(i for i in ends if i is not None),
        add_bos=add_bos,
        add_eos=add_eos,
        chat_template=_optional(metadata, "tokenizer.chat_template", str, None),
        _bpe=bpe,
        _texts=texts,
        _bytes=token_bytes,
        _control_ids=frozenset(i for i, kind in enumerate(types) if kind in hidden),
        _always_parsed=_longest_first(always_parsed, texts),
        _parsed=_longest_first(parsed, texts),
        _sentencepiece=family == "llama",
        _space_prefix=family == "llama"
        and _optional(metadata, "tokenizer.ggml.add_space_prefix", bool, True),
        _fallback=fallback,
    )


def _token_texts(metadata: Mapping[str, Any]) -> list[str]:
    key = "tokenizer.ggml.tokens"
    texts = _list(metadata, key, str)
    longest = max(range(len(texts)), key=lambda i: len(texts[i]))
    if len(texts[longest]) > _MOST_CHARACTERS:
        raise VocabularyError(
            key,
            f"holds a token ({longest}) of {len(texts[longest])} characters; "
            f"at most {_MOST_CHARACTERS} are read",
        )
    in_all = sum(map(len, texts))
    if in_all > _MOST_CHARACTERS_IN_ALL:
        raise VocabularyError(
            key, f"holds {in_all} characters; at most {_MOST_CHARACTERS_IN_ALL} are read"
        )
    # llama.cpp's stand-in: an empty token would match everywhere.
    return [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]


def _token_types(metadata: Mapping[str, Any], texts: Sequence[str]) -> list[int]:
    """A gguf.TokenType for each token; well-known end tokens are control tokens in any case."""
    types: list[int] = [TokenType.NORMAL] * len(texts)
    if "tokenizer.ggml.token_type" in metadata:
        types = _list(metadata, "tokenizer.ggml.token_type", int, len(texts))
    return [
        TokenType.CONTROL if text in _END_TEXTS else kind
        for text, kind in zip(texts, types, strict=True)
    ]


def _byte_level_bpe(
    metadata: Mapping[str, Any], pre: str, plain: Mapping[str, int]
) -> tokenizers.Tokenizer:
    if pre not in _WORD_PATTERNS:
        raise VocabularyError(
            "tokenizer.ggml.pre",
            f"names the pre-tokeniser {pre[:80]!r}, but only "
            f"{', '.join(sorted(_WORD_PATTERNS))} are known: the ids would be wrong",
        )
    merges = []
    for merge in _list(metadata, "tokenizer.ggml.merges", str):
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if left in plain and right in plain and left + right in plain:
            merges.append((left, right))
    bpe = tokenizers.Tokenizer(
        models.BPE(vocab=dict(plain), merges=merges, ignore_merges=pre == "llama-bpe")
    )
    words = [
        pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
        for pattern in _WORD_PATTERNS[pre]
    ]
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [*words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return bpe


def _sentencepiece_bpe(
    metadata: Mapping[str, Any],
    texts: Sequence[str],
    types: Sequence[int],
    plain: Mapping[str, int],
    vocab: Mapping[str, int],
) -> tuple[tokenizers.Tokenizer, dict[int, list[int]]]:
    """BPE whose merges follow from the scores, and the ids that stand for unspelled characters.

    Any two neighbours that together spell a token may merge, so every cut of every token is a
    merge, ranked by the token's score. Scores may tie (the runs of spaces of Llama's vocabulary
    do), where llama.cpp takes the leftmost pair, BPE the first in rank: ranking the longest token
    first grows a run from its left end, which is the same.

    A neighbour may be a character that is no token itself; the BPE gets an id for it past the
    vocabulary, and the returned dict the byte tokens that it becomes if it stays alone.
    """
    scores = _list(metadata, "tokenizer.ggml.scores", float, len(texts))
    if any(map(math.isnan, scores)):
        raise VocabularyError(
            "tokenizer.ggml.scores",
            f"is not a number for token {list(map(math.isnan, scores)).index(True)}: "
            "the file is damaged, fetch it again",
        )
    symbols = {text: i for text, i in plain.items() if types[i] != TokenType.BYTE}
    characters = {char for text in symbols for char in text}
    unspelled = sorted(characters - symbols.keys())
    known = symbols | {char: len(texts) + n for n, char in enumerate(unspelled)}
    cuts = [
        (scores[i], len(text), cut, text)
        for text, i in symbols.items()
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]
    merges = [(text[:cut], text[cut:]) for _, _, cut, text in sorted(cuts, reverse=True)]

    unknown = _optional(metadata, "tokenizer.ggml.unknown_token_id", int, 0)
    unknown_text = texts[unknown] if 0 <= unknown < len(texts) else None
    byte_tokens = {
        text: vocab[text] for text in map("<0x{:02X}>".format, range(256)) if text in vocab
    }
    extra = {} if unknown_text is None else {unknown_text: unknown}
    bpe = tokenizers.Tokenizer(
        models.BPE(
            vocab={**known, **byte_tokens, **extra},
            merges=merges,
            unk_token=unknown_text,
            byte_fallback=True,
        )
    )
    fallback = {}
    for char in unspelled:
        ids = [byte_tokens.get(f"<0x{byte:02X}>", unknown) for byte in char.encode()]
        fallback[known[char]] = ids
    return bpe, fallback


def _sentencepiece_bytes(text: str, kind: int) -> bytes:
    if kind == TokenType.BYTE:
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            raise VocabularyError(
                "tokenizer.ggml.tokens",
                f"holds the byte token {text!r}, where one such as <0x0A> was expected: "
                "the file is damaged, fetch it again",
            ) from None
    if kind == TokenType.USER_DEFINED:
        return text.encode()
    return text.replace(_SPACE, " ").encode()


def _byte_level_bytes(text: str, kind: int, byte_of: Mapping[str, int]) -> bytes:
    if kind == TokenType.NORMAL:
        try:
            return bytes([byte_of[char] for char in text])
        except KeyError:
            pass  # an added token: spelled in plain text, not in printable bytes
    return text.encode()


def _printable_bytes() -> dict[int, str]:
    """GPT-2's byte alphabet: byte -> character; unprintable bytes move up to U+0100 and on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(0x100 + n) for n, byte in enumerate(moved)
    }


def _longest_first(ids: Sequence[int], texts: Sequence[str]) -> list[int]:
    return sorted(ids, key=lambda i: -len(texts[i].encode()))


def _required(metadata: Mapping[str, Any], key: str, type: type) -> Any:
    if key not in metadata:
        raise VocabularyError(
            key, "is missing from the file's metadata, which therefore holds no usable vocabulary"
        )
    return _optional(metadata, key, type, None)


def _optional(metadata: Mapping[str, Any], key: str, type: type, default: Any) -> Any:
    """The value of exactly this type (True is no 1), or the default where there is none."""
    if key not in metadata:
        return default
    value = metadata[key]
    if value.__class__ is not type:
        raise VocabularyError(
            key,
            f"is of the type {value.__class__.__name__}, where {type.__name__} was expected: "
            "the file is damaged, fetch it again",
        )
    return value


def _list(metadata: Mapping[str, Any], key: str, type: type, length: int | None = None) -> Any:
    """The values of an array, all of this type, and as many as there are tokens if that is known."""
    values = _required(metadata, key, list)
    if not values or values[0].__class__ is not type:  # an array in GGUF has one type
        found = values[0].__class__.__name__ if values else "nothing"
        raise VocabularyError(
            key,
            f"holds {found}, where values of the type {type.__name__} were expected: "
            "the file is damaged, fetch it again",
        )
    if length not in (None, len(values)):
        raise VocabularyError(
            key,
            f"holds {len(values)} values, where {length} were expected, one for each token: "
            "the file is damaged, fetch it again",
        )
    return values


def _refuse_messages(reason: str) -> None:
    raise jinja2.TemplateError(reason)
