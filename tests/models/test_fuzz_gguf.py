"""Whatever is wrong with a small GGUF file, loading it ends in a model or in a LabError, at once.

Each case follows from (seed, index) alone. `make test` runs SOME of them from a fixed seed, `make
fuzz` 10,000 or as many as FUZZ_COUNT says from a new one; a failure names the seed and the index, and

    SOVEREIGN_FUZZ_SEED=<seed> SOVEREIGN_FUZZ_FIRST=<index> SOVEREIGN_FUZZ_COUNT=1 \
        pytest tests/models/test_fuzz_gguf.py

runs that case again.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import os
import resource
import time
import warnings
from pathlib import Path
from random import Random

import gguf_document
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_mutations import mutate

from sovereign_lab.errors import LabError
from sovereign_lab.models import reference
from sovereign_lab.models.gguf_file import open_gguf
from sovereign_lab.models.model import build_model

SOME = 1500
TEXT = "Once upon the   time, é 日本<|im_end|></s>\n\x00"


def documents() -> list[gguf_document.Document]:
    """Both tokenizer families; every kind of tensor type: as it is, requantised, K-quants."""
    mixed = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q8_0, Type.F16, Type.BF16, Type.F32)
    sentencepiece = gguf_document.sentencepiece_vocabulary()
    byte_level = gguf_document.byte_level_vocabulary()
    with_factors = gguf_document.llama(byte_level, 264, mixed, Type.F16, tied=True)
    with_factors.tensors.append(gguf_document.matrix("rope_freqs.weight", Type.F32, 1, 8))
    with_factors.tensors[-1].data = np.ones(8, np.float32).tobytes()
    return [
        gguf_document.llama(sentencepiece, 283),
        with_factors,
        gguf_document.llama(byte_level, 264, (Type.Q4_K, Type.Q4_0), Type.Q6_K, dim=256),
    ]


def load_and_run(path: Path) -> str:
    """What became of the file: "ran" or "refused". Any other exception than LabError is a fault."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is computed from what is damaged
            model = build_model(open_gguf(path))
    except LabError as error:
        sentence = str(error)
        assert str(path) in sentence and "\n" not in sentence and len(sentence) < 2000, sentence
        return "refused"
    try:
        ids = model.tokenizer.encode(TEXT)
        model.tokenizer.decode(ids)
    except LabError:
        return "ran"
    with np.errstate(all="ignore"):  # weights may be as large as they like
        logits = reference.forward(model, ids[: min(3, model.config.context)] or [0])
    assert logits.shape[1] == model.tokenizer.vocab_size
    with contextlib.suppress(LabError):  # of a template that fails, or of none
        model.tokenizer.chat_prompt([{"role": "user", "content": TEXT}])
    return "ran"


def test_the_files_that_are_mutated_are_whole(tmp_path: Path) -> None:
    for document in documents():
        path = tmp_path / "whole.gguf"
        path.write_bytes(gguf_document.write(document)[0])
        model = build_model(open_gguf(path))
        ids = model.tokenizer.encode(TEXT)
        assert np.isfinite(reference.forward(model, ids)).all()


def test_damaged_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    seed = os.environ.get("SOVEREIGN_FUZZ_SEED", "0")
    first = int(os.environ.get("SOVEREIGN_FUZZ_FIRST", "0"))
    count = int(os.environ.get("SOVEREIGN_FUZZ_COUNT", str(SOME)))
    bases = documents()
    path = tmp_path / "damaged.gguf"
    ended: collections.Counter[str] = collections.Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for index in range(first, first + count):
        if index % 1000 == 0:  # shown by `make fuzz`: where to look if the process itself dies
            print(f"fuzzing with seed {seed}, from case {index} on", flush=True)
        dice = Random(f"{seed}:{index}")
        path.write_bytes(mutate(copy.deepcopy(dice.choice(bases)), dice))
        start = time.process_time()
        try:
            ended[load_and_run(path)] += 1
        except BaseException as error:  # a panic in Rust is no Exception
            pytest.fail(f"SOVEREIGN_FUZZ_SEED={seed}, case {index}: {type(error)} {error}")
        took = time.process_time() - start
        assert took < 1, f"SOVEREIGN_FUZZ_SEED={seed}, case {index} took {took:.1f} s"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{count} cases: {dict(ended)}; peak memory grew by {grown / 1024:.0f} MB")
    # ru_maxrss counts KiB on Linux, bytes on macOS.
    assert grown < (256 << 10 if os.uname().sysname == "Linux" else 256 << 20)
    if count >= SOME:
        assert ended["refused"] > count / 2 and ended["ran"] > count / 100
