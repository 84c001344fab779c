"""llama.cpp on the CPU as an oracle for tests, through the `xllamacpp` wheel.

A test that imports this module is skipped when the wheel is missing. Each model file is loaded once
a process and kept; threads and context are fixed, and no prompt cache is used, so that the same
call gives the same figures each time.
"""

from __future__ import annotations

import functools
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp is the oracle: install '.[test]'")

CONTEXT = 512
THREADS = 1  # its threads spin while they wait: two on a busy machine took five times as long


def tokenize(path: str | Path, text: str, special: bool = True, bos: bool = True) -> list[int]:
    """llama.cpp's token ids of `text`.

    special: control tokens spelled in the text become their ids. bos: BOS and EOS are added where
    the file's metadata asks for them.
    """
    server = _server(Path(path).resolve())
    # The bindings have no call for the tokeniser; the server that they run has one over HTTP.
    request = urllib.request.Request(
        f"{server.listening_address}/tokenize",
        json.dumps({"content": text, "add_special": bos, "parse_special": special}).encode(),
        {"Content-Type": "application/json"},
    )
    local = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with local.open(request, timeout=60) as reply:
        return json.load(reply)["tokens"]


def greedy_with_logprobs(
    path: str | Path, prompt_ids: list[int], n: int
) -> list[tuple[int, float]]:
    """llama.cpp's greedy continuation: `n` times (token id, log-probability), fewer at an end.

    The log-probability is the natural logarithm under the softmax over the whole vocabulary, at
    temperature 1 and before any sampler.
    """
    return [(token["id"], token["logprob"]) for token in _complete(path, prompt_ids, n, n_probs=1)]


def next_token_logprobs(path: str | Path, prompt_ids: list[int], vocab: int) -> dict[int, float]:
    """The log-probability of every token of the vocabulary after `prompt_ids`."""
    (step,) = _complete(path, prompt_ids, 1, n_probs=vocab)
    return {token["id"]: token["logprob"] for token in step["top_logprobs"]}


def _complete(
    path: str | Path, prompt_ids: list[int], n: int, n_probs: int
) -> list[dict[str, Any]]:
    reply = _server(Path(path).resolve()).handle_completions(
        {
            "prompt": prompt_ids,
            "n_predict": n,
            "n_probs": n_probs,
            "temperature": 0.0,
            "cache_prompt": False,
        }
    )
    if "choices" not in reply:
        raise RuntimeError(f"llama.cpp refused the prompt: {reply}")
    return reply["choices"][0]["logprobs"]["content"]


@functools.cache
def _server(path: Path) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.warmup = False
    params.fit_params = False
    params.cache_ram_mib = 0
    params.verbosity = 1  # errors only
    params.cpuparams.n_threads = THREADS
    params.cpuparams_batch.n_threads = THREADS
    return xllamacpp.Server(params)
