"""Record llama.cpp's ids for the Llama vocabulary: the recipe of tests/data/llama_ids.json.

    python tests/record_llama_ids.py <a GGUF file with the Llama vocabulary of 32,000 tokens>

The file used was `vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf` of the source archive of the
PyPI package llama-cpp-python 0.3.36; its llama.cpp is not what gives the ids, the one in the wheel
`xllamacpp` is. Only those tokens are kept that occur in a text: a merge can make no others.
"""

import json
import sys
import tempfile
from pathlib import Path

import llama_cpp_oracle
from tiny_model import write_tiny_model
from tokenizer_texts import TEXTS

from sovereign_lab.models.gguf_file import open_gguf

TARGET = Path(__file__).resolve().parent / "data" / "llama_ids.json"
LISTS = ("tokens", "scores", "token_type")
FIXED = 259  # <unk>, <s>, </s> and the bytes
MAY_BE_LEFT_OUT = ("tokenizer.ggml.merges", "tokenizer.chat_template")


def main() -> None:
    """Write the record for the vocabulary in the file that the command line names."""
    metadata = {
        key: value
        for key, value in open_gguf(sys.argv[1]).metadata.items()
        if key.startswith("tokenizer.") and key not in MAY_BE_LEFT_OUT
    }
    with tempfile.TemporaryDirectory() as directory:
        model = write_tiny_model(Path(directory) / "model.gguf", metadata)
        cases = [
            {
                "text": text,
                "plain": llama_cpp_oracle.tokenize(model, text, special=False, bos=False),
                "special": llama_cpp_oracle.tokenize(model, text, special=True, bos=False),
            }
            for text in TEXTS
        ]
    tokens, scores, types = (metadata.pop(f"tokenizer.ggml.{name}") for name in LISTS)
    spelled = "\n".join(TEXTS).replace(" ", "▁")
    runs = spelled + "\n▁" + "\n▁".join(TEXTS).replace(" ", "▁")  # with the space put in front
    kept = [
        [token_id, text, scores[token_id], types[token_id]]
        for token_id, text in enumerate(tokens)
        if token_id < FIXED or text in runs
    ]
    lines = [
        f'"recipe": {json.dumps("python tests/record_llama_ids.py; see there")}',
        f'"metadata": {json.dumps(metadata)}',
        f'"vocab_size": {len(tokens)}',
        '"tokens": [\n' + ",\n".join(json.dumps(token) for token in kept) + "\n]",
        '"cases": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]",
    ]
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(cases)} texts, {len(kept)} tokens in {TARGET}")


if __name__ == "__main__":
    main()
