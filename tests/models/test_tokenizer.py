"""The tokenizer gives llama.cpp's ids, and text that is whole at every step of a stream."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tokenizers
from tiny_model import write_tiny_model
from tokenizer_texts import TEXTS
from tokenizers import models, pre_tokenizers, trainers

from sovereign_lab.errors import LabError
from sovereign_lab.models.tokenizer import Tokenizer, tokenizer_from_metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

LLAMA_RECORD = Path(__file__).resolve().parent.parent / "data" / "llama_ids.json"

EVERYDAY = [
    "",
    "Hello",
    " Hello",
    "  Hello",
    "Hello, world! How are you?",
    "The quick  brown   fox    jumps",
    "Once upon a time, there was a little girl.",
    "I'm sure they'll say it's what we've DON'T'd; THEY'RE, he's",
    "In 2024, 12345 people paid $4.99 (50%) for 3.14159",
    "line one\nline two\n\n\nline five\r\nline six",
    "\tif x == 1:\n\t\treturn x**2  # ok\n",
    "def f(a, b):\n    return {a: b[0]}\n",
    "café déjà vu, Müller, piñata, ångström",
    "e\u0301 is not é; \ufb01 is a ligature; ½ and ² are numbers",
    "日本語のテキスト。中文字符,한국어 문장",
    "Привет, мир! مرحبا بالعالم ١٢٣ שלום",
    "party 🎉🎉 family 👩\u200d👩\u200d👧 flag 🇫🇷",
    "trailing spaces   ",
    "   ",
    "\n",
    "no\u00a0break, ideographic\u3000space, zero\u200bwidth",
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_end|><|im_end|> b <|im_end",
    "https://example.com/a_b?c=d&e=f#g-h user@example.com",
    "x<y && y>z || !w; a+=b; ~c ^ d",
]


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    import llama_cpp_oracle

    return llama_cpp_oracle


@pytest.fixture(scope="session")
def smollm2() -> tuple[Path, dict[str, Any]]:
    from sovereign_lab.models import catalog, gguf_file

    path = catalog.resolve("smollm2-135m")
    return path, gguf_file.open_gguf(path).metadata


def random_texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    alphabet = [
        *"abcdethe THE '’srtmvl.,!?$<>|01234\n\t\r éßñ日本語🎉👩\u200d\u0301\u00a0\u3000٣Ⅷ½▁"
    ]
    alphabet += ["<s>", "<tool>", "<|im_end|>", "the ", "ing", "  ", "     ", "<unk>", "<0x0A>"]
    return ["".join(rng.choices(alphabet, k=rng.randint(1, 40))) for _ in range(count)]


LEARNED_FROM = [text for text in EVERYDAY if "<|" not in text]


def learned_vocabulary(texts: list[str], words: Any, size: int) -> tuple[list[str], list[Any]]:
    """(tokens in the order of learning, merges) of a BPE trained on `texts`."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = words
    learner.train_from_iterator(
        texts * 3, trainers.BpeTrainer(vocab_size=size, min_frequency=1, show_progress=False)
    )
    state = json.loads(learner.to_str())["model"]
    return sorted(state["vocab"], key=state["vocab"].__getitem__), state["merges"]


def byte_level_metadata(pre: str = "gpt-2") -> dict[str, Any]:
    """A vocabulary whose merges cross word boundaries: only the pre-tokeniser stops them."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens, merges = learned_vocabulary(LEARNED_FROM, words, 1500)
    tokens += sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(tokens))
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + specials,
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + [CONTROL] * 3 + [USER_DEFINED],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 2,
    }


def sentencepiece_metadata() -> dict[str, Any]:
    """A vocabulary like Llama's: bytes, learned tokens with falling scores, tied runs of spaces.

    Some characters are in tokens without being tokens themselves.
    """
    words = pre_tokenizers.Split("▁", "merged_with_next")
    learned, _ = learned_vocabulary([t.replace(" ", "▁") for t in LEARNED_FROM], words, 900)
    tokens = [t for t in learned if t not in {"q", "é", "日"} and set(t) != {"▁"}]
    # Longer tokens were learned later and rank lower; single characters come last, as in Llama.
    tokens = [t for t in tokens if len(t) > 1] + [t for t in tokens if len(t) == 1]
    runs = ["▁" * n for n in (1, 2, 4, 8, 16, 3, 5, 6, 7)]
    first = ["<unk>", "<s>", "</s>", *map("<0x{:02X}>".format, range(256))]
    last = ["<|im_end|>", "<tool>"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": first + tokens + runs + last,
        "tokenizer.ggml.scores": [0.0] * len(first)
        + [-float(n) for n in range(len(tokens))]
        + [-1e9] * len(runs)
        + [0.0] * len(last),
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * (len(tokens) + len(runs))
        + [CONTROL, USER_DEFINED],
    }


def llama_like_metadata() -> dict[str, Any]:
    """The few tokens of the real Llama vocabulary that its known ids need, at their real places."""
    tokens = ["<unk>", "<s>", "</s>", *map("<0x{:02X}>".format, range(256))]
    tokens += [f"filler{n}▁▁▁" for n in range(len(tokens), 32000)]
    for token, token_id in {
        "▁▁": 259, "er": 261, "▁▁▁▁": 268, "el": 295, "▁H": 379, "ll": 645, "lo": 417, "ello": 3156,
        "▁▁▁": 1678, "▁Hello": 15043, "Hello": 10994, "llo": 4539,
        "▁": 29871, "e": 29872, "l": 29880, "o": 29877, "H": 29950, "r": 29878,
    }.items():  # fmt: skip
        tokens[token_id] = token
    scores = [0.0] * 259 + [-float(n) for n in range(32000 - 259)]
    for spaces in ("▁▁", "▁▁▁", "▁▁▁▁"):
        scores[tokens.index(spaces)] = -1e9
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * 31741,
    }


def assert_same_ids(oracle: ModuleType, path: Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        for special in (True, False):
            expected = oracle.tokenize(path, text, special=special, bos=False)
            assert tokenizer.encode(text, bos=False, special=special) == expected, (text, special)


def assert_same_text(tokenizer: Tokenizer) -> None:
    """Text comes back whole; in a stream too, after the space that this vocabulary may put first."""
    for text in TEXTS:
        ids = tokenizer.encode(text, special=False)
        decoded = tokenizer.decode(ids)
        assert decoded in (text, text.replace("▁", " "))  # which are one to SentencePiece
        stream = tokenizer.stream()
        streamed = "".join(map(stream.push, ids)) + stream.finish()
        assert streamed in (decoded, " " + decoded)


def llama_record() -> tuple[dict[str, Any], list[tuple[str, list[int], list[int]]]]:
    """The Llama vocabulary's metadata, and (text, its ids as plain text, and with special tokens).

    Tokens that no recorded text needs are stood in for by characters that no text has.
    """
    record = json.loads(LLAMA_RECORD.read_text())
    metadata = dict(record["metadata"])
    tokens = [chr(0xF0000 + n) for n in range(record["vocab_size"])]
    scores, types = [0.0] * len(tokens), [NORMAL] * len(tokens)
    for token_id, text, score, kind in record["tokens"]:
        tokens[token_id], scores[token_id], types[token_id] = text, score, kind
    metadata |= {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
    }
    return metadata, [(case["text"], case["plain"], case["special"]) for case in record["cases"]]


# -- against llama.cpp --


def test_everyday_ids_equal_llama_cpp_on_smollm2(
    oracle: ModuleType, smollm2: tuple[Path, dict[str, Any]]
) -> None:
    path, metadata = smollm2
    tokenizer = tokenizer_from_metadata(metadata)
    assert_same_ids(oracle, path, tokenizer, [*TEXTS, *EVERYDAY, *random_texts(150, seed=1)])
    assert_same_text(tokenizer)


def test_ids_equal_llama_cpp_on_the_storyteller(oracle: ModuleType) -> None:
    """Whatever vocabulary the file in the box has."""
    from sovereign_lab.models import catalog, gguf_file

    path = catalog.resolve("storyteller")
    tokenizer = tokenizer_from_metadata(gguf_file.open_gguf(path).metadata)
    assert_same_ids(oracle, path, tokenizer, [*TEXTS, *EVERYDAY, *random_texts(150, seed=4)])
    for text in TEXTS:
        if not text.startswith("<s>"):  # where llama.cpp adds another BOS, and warns of it
            assert tokenizer.encode(text) == oracle.tokenize(path, text)
    assert_same_text(tokenizer)


def test_ids_equal_llama_cpp_on_the_llama_vocabulary() -> None:
    """Recorded once by record_llama_ids.py, with the tokens of the vocabulary that these texts need."""
    metadata, cases = llama_record()
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer.vocab_size == 32000 and len(cases) >= 60
    for text, plain, special in cases:
        assert tokenizer.encode(text, bos=False, special=False) == plain, text
        assert tokenizer.encode(text, bos=False, special=True) == special, text
        # Where the text spells BOS itself, llama.cpp adds another and warns of it; one is enough.
        assert tokenizer.encode(text) == (special if special[:1] == [1] else [1, *special])
    assert_same_text(tokenizer)


@pytest.mark.parametrize("pre", ["default", "gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_each_pre_tokeniser_equals_llama_cpp(oracle: ModuleType, tmp_path: Path, pre: str) -> None:
    metadata = byte_level_metadata(pre)
    path = write_tiny_model(tmp_path / "model.gguf", metadata)
    texts = EVERYDAY + random_texts(150, seed=2)
    assert_same_ids(oracle, path, tokenizer_from_metadata(metadata), texts)


@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_equals_llama_cpp(
    oracle: ModuleType, tmp_path: Path, space_prefix: bool
) -> None:
    metadata = sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": space_prefix}
    path = write_tiny_model(tmp_path / "model.gguf", metadata)
    tokenizer = tokenizer_from_metadata(metadata)
    runs = ["a" + " " * n + "b" for n in range(40)]
    assert_same_ids(oracle, path, tokenizer, EVERYDAY + runs + random_texts(300, seed=3))
    for text in EVERYDAY:
        assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


def test_bos_and_eos_equal_llama_cpp(oracle: ModuleType, tmp_path: Path) -> None:
    ends = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    for n, metadata in enumerate(
        (byte_level_metadata() | ends, sentencepiece_metadata() | ends, sentencepiece_metadata())
    ):
        path = write_tiny_model(tmp_path / f"{n}.gguf", metadata)
        tokenizer = tokenizer_from_metadata(metadata)
        for text in ("", "Hello"):
            assert tokenizer.encode(text) == oracle.tokenize(path, text)
            assert tokenizer.encode(text, bos=False) == oracle.tokenize(path, text, bos=False)


# -- known facts --


def test_llama_vocabulary_known_ids() -> None:
    tokenizer = tokenizer_from_metadata(llama_like_metadata())
    known = {
        "Hello": [15043],
        " Hello": [29871, 15043],
        "  Hello": [259, 15043],
        "   Hello": [1678, 15043],
        "    Hello": [268, 15043],
        "Hello\n    Hello": [15043, 13, 1678, 15043],
        "</s>Hello": [2, 15043],
    }
    for text, ids in known.items():
        assert tokenizer.encode(text) == [1, *ids]
        assert tokenizer.encode(text, bos=False) == ids
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("김", bos=False) == [29871, 0xEA + 3, 0xB9 + 3, 0x80 + 3]


def test_exactly_one_bos() -> None:
    metadata = byte_level_metadata() | {"tokenizer.ggml.add_bos_token": True}
    tokenizer = tokenizer_from_metadata(metadata)
    bos = tokenizer.bos_id
    assert bos is not None
    assert tokenizer.encode("<|endoftext|>Hello").count(bos) == 1
    assert tokenizer.encode("Hello")[0] == bos
    assert bos not in tokenizer.encode("Hello", bos=False)
    assert tokenizer_from_metadata(byte_level_metadata()).encode("Hello", bos=True)[0] == bos
    assert bos not in tokenizer_from_metadata(byte_level_metadata()).encode("Hello")
    assert tokenizer_from_metadata(byte_level_metadata("llama-bpe")).encode("Hello")[0] == bos


def test_end_of_generation_ids(smollm2: tuple[Path, dict[str, Any]]) -> None:
    tokenizer = tokenizer_from_metadata(smollm2[1])
    # llama.cpp's list for this file: <|endoftext|>, <|im_end|> and, as in code models, <reponame>.
    assert tokenizer.eog_ids == {0, 2, 4}
    metadata = sentencepiece_metadata() | {"tokenizer.ggml.eot_token_id": 260}
    im_end = metadata["tokenizer.ggml.tokens"].index("<|im_end|>")
    assert tokenizer_from_metadata(metadata).eog_ids == {2, 260, im_end}


def test_text_never_becomes_a_control_token_unless_asked() -> None:
    for metadata in (byte_level_metadata("llama-bpe"), sentencepiece_metadata()):
        tokenizer = tokenizer_from_metadata(metadata)
        control = {
            i for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind == CONTROL
        }
        for text in ("<|im_end|>", "<s>", "</s>", "<|endoftext|>"):
            assert not control & set(tokenizer.encode(text, bos=False, special=False))


# -- decoding --


def test_a_stream_never_shows_half_a_character(smollm2: tuple[Path, dict[str, Any]]) -> None:
    text = "naïve 김 👩‍👧 日本語 𝔘 end"
    for metadata in (byte_level_metadata(), sentencepiece_metadata(), smollm2[1]):
        tokenizer = tokenizer_from_metadata(metadata)
        ids = tokenizer.encode(text, bos=False)
        stream = tokenizer.stream()
        pieces = [stream.push(i) for i in ids]
        assert "" in pieces
        assert "�" not in "".join(pieces)
        assert "".join(pieces).removeprefix(" ") == text
        assert stream.finish() == ""


def test_a_character_that_never_ends_shows_at_the_end_only() -> None:
    tokenizer = tokenizer_from_metadata(sentencepiece_metadata())
    stream = tokenizer.stream()
    assert [stream.push(byte + 3) for byte in "김".encode()[:2]] == ["", ""]
    assert stream.finish() == "�"


def test_control_tokens_have_no_text_and_user_defined_ones_do() -> None:
    tokenizer = tokenizer_from_metadata(byte_level_metadata())
    ids = tokenizer.encode("<|im_start|>Hello<tool><|im_end|>")
    assert len(ids) > 3
    assert tokenizer.decode(ids) == "Hello<tool>"
    with pytest.raises(LabError, match="expected a token id from 0 to"):
        tokenizer.decode([tokenizer.vocab_size])


# -- chat template --


def test_chat_prompt_of_smollm2(smollm2: tuple[Path, dict[str, Any]]) -> None:
    prompt = tokenizer_from_metadata(smollm2[1]).chat_prompt([{"role": "user", "content": "Hi"}])
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% set _ = messages.append(1) %}", "not safely callable|unsafe"),
        ("{% for %}", "does not accept"),
    ],
)
def test_a_template_that_fails_or_misbehaves_is_one_sentence(
    template: str | None, message: str
) -> None:
    metadata = byte_level_metadata()
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    with pytest.raises(LabError, match=message):
        tokenizer_from_metadata(metadata).chat_prompt([{"role": "user", "content": "Hi"}])


# -- damaged or foreign files --


def remove(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda metadata: metadata.pop(f"tokenizer.ggml.{key}")


def put(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda metadata: metadata.update({f"tokenizer.ggml.{key}": value})


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (remove("model"), "tokenizer.ggml.model is missing"),
        (put("model", "bert"), "family 'bert'"),
        (put("pre", "tekken"), "pre-tokeniser 'tekken'"),
        (remove("tokens"), "tokenizer.ggml.tokens is missing"),
        (remove("merges"), "tokenizer.ggml.merges is missing"),
        (
            lambda metadata: metadata["tokenizer.ggml.token_type"].pop(),
            "holds 819 values, where 820",
        ),
        (put("tokens", ["a", "b"]), "820 values, where 2 were expected"),
    ],
)
def test_damaged_metadata_is_named(
    break_it: Callable[[dict[str, Any]], object], message: str
) -> None:
    metadata = byte_level_metadata()
    break_it(metadata)
    with pytest.raises(LabError, match=message):
        tokenizer_from_metadata(metadata)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", 7, "model is of the type int, where str was expected"),
        ("tokens", [1, 2], "tokens holds int, where values of the type str"),
        ("tokens", [], "tokens holds nothing"),
        ("bos_token_id", "1", "bos_token_id is of the type str, where int was expected"),
        ("bos_token_id", 5000, r"add_bos_token is true, but tokenizer.ggml.bos_token_id names no"),
        ("add_bos_token", 1, "add_bos_token is of the type int, where bool was expected"),
        ("scores", [float("nan")] * 2, "scores is not a number for token 0"),
        ("tokens", ["a", "a"], "tokens holds 'a' twice"),
        ("tokens", ["a", "b" * 2000], r"holds a token \(1\) of 2000 characters"),
        ("token_type", [1, 6], "holds the byte token 'xb', where one such as <0x0A>"),
    ],
)
def test_values_of_the_wrong_kind_are_named(key: str, value: Any, message: str) -> None:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a", "xb"],
        "tokenizer.ggml.scores": [0.0, -1.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
    }
    tokenizer_from_metadata(metadata)
    with pytest.raises(LabError, match=message):
        tokenizer_from_metadata(metadata | {f"tokenizer.ggml.{key}": value})


def test_scores_are_needed_and_text_must_be_unicode() -> None:
    metadata = sentencepiece_metadata()
    with pytest.raises(LabError, match="broken character at position 1"):
        tokenizer_from_metadata(metadata).encode("a\udce9")
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(LabError, match=r"tokenizer\.ggml\.scores"):
        tokenizer_from_metadata(metadata)


def test_building_is_fast(smollm2: tuple[Path, dict[str, Any]]) -> None:
    start = time.process_time()
    tokenizer_from_metadata(smollm2[1])
    assert time.process_time() - start < 1.5
