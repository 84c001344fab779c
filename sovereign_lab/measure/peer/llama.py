"""llama.cpp through its C API, driven as llama-bench drives it: batches of one token, no sampling, no text.

`llama_cpp.Llama` would add the binding's own Python to each token; the functions under it add some microseconds.
"""

import logging
import os
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.errors import LabError

# llama-bench's own: tokens handed over at once, and tokens computed at once.
BATCH, MICRO_BATCH = 2048, 512
EVERY_LAYER = 999
WITH_CUDA = "CMAKE_ARGS=-DGGML_CUDA=on"


def llama_cpp() -> Any:
    """The module `llama_cpp`, silent but for errors; LabError where it is not installed or does not load."""
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    try:
        return import_module("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "llama_cpp":
            raise LabError(
                "llama.cpp is not installed here. `pip install 'sovereign-lab[peer]'` builds llama-cpp-python from "
                f"source, which needs a C++ compiler and some minutes; for an NVIDIA GPU put {WITH_CUDA} before "
                "it, which needs the CUDA toolkit."
            ) from None
        raise LabError(
            f"llama-cpp-python is installed but does not load: {error}. Where it is a library that is not found, add "
            "its folder to LD_LIBRARY_PATH; else install 'sovereign-lab[peer]' again."
        ) from error


class LlamaCpp:
    """A GGUF file in llama.cpp, with room for `context` positions; to be closed, as `with` does.

    As llama-bench has it: flash attention on, KV cache in fp16, each batch's last token with logits. `on_gpu`: every
    layer there, else none; `threads` work on the CPU. `vocab` bounds the random token ids. Raises LabError where
    llama.cpp cannot load the file, or has no memory for it.
    """

    def __init__(
        self, api: Any, path: Path, context: int, vocab: int, on_gpu: bool, threads: int
    ) -> None:
        self._api = api
        self._context_size = context
        # The tokens' speed does not depend on which they are.
        ids = np.random.default_rng(0).integers(0, vocab, context)
        self._ids: list[int] = ids.tolist()
        self._held = 0  # positions in the KV cache

        api.llama_backend_init()
        of_model = api.llama_model_default_params()
        of_model.n_gpu_layers = EVERY_LAYER if on_gpu else 0
        self._model = api.llama_model_load_from_file(os.fsencode(path), of_model)
        if not self._model:
            raise LabError(f"llama.cpp cannot load {path}; `sovereign-lab inspect` shows the file.")
        wanted = api.llama_context_default_params()
        wanted.n_ctx = context
        wanted.n_batch, wanted.n_ubatch = BATCH, MICRO_BATCH
        wanted.n_threads = wanted.n_threads_batch = threads
        wanted.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
        wanted.offload_kqv = wanted.op_offload = on_gpu
        self._context = api.llama_init_from_model(self._model, wanted)
        if not self._context:
            api.llama_model_free(self._model)
            raise LabError(
                f"llama.cpp has no memory for a context of {context} positions; ask for fewer."
            )
        self._memory = api.llama_get_memory(self._context)

    def __enter__(self) -> "LlamaCpp":
        return self

    def __exit__(self, *exception: object) -> None:
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def decode_ms(self, position: int, tokens: int) -> float:
        """Milliseconds a token, the mean of `tokens` tokens from `position` on, each waited for.

        Raises LabError for positions that the context does not have.
        """
        if position + tokens > self._context_size:
            raise LabError(
                f"{tokens} tokens from position {position} on do not fit a context of {self._context_size}."
            )
        self._go_to(position)
        token = (self._api.llama_token * 1)()
        batch = self._api.llama_batch_get_one(token, 1)
        decode, wait, context = (
            self._api.llama_decode,
            self._api.llama_synchronize,
            self._context,
        )
        start = time.perf_counter()
        for token[0] in self._ids[:tokens]:
            if status := decode(context, batch):
                raise _refused(status)
            wait(context)
        ms = 1e3 * (time.perf_counter() - start)
        self._held += tokens
        return ms / tokens

    def prefill_ms(self, tokens: int) -> float:
        """Milliseconds a token of a prompt of `tokens` tokens, to the logits of its last one; raises as decode_ms."""
        if tokens > self._context_size:
            raise LabError(
                f"A prompt of {tokens} tokens does not fit a context of {self._context_size}."
            )
        self._go_to(0)
        return self._feed(self._ids[:tokens]) / tokens

    def _go_to(self, position: int) -> None:
        """Hold `position` tokens: forget those behind it, or read more."""
        if position < self._held:
            if not self._api.llama_memory_seq_rm(self._memory, 0, position, -1):
                raise LabError("llama.cpp cannot forget a part of this model's context.")
            self._held = position
        self._feed(self._ids[self._held : position])

    def _feed(self, ids: Sequence[int]) -> float:
        """Read `ids` behind what is held, and wait; the milliseconds of that."""
        arrays = [
            (self._api.llama_token * len(part))(*part)
            for part in (ids[i : i + BATCH] for i in range(0, len(ids), BATCH))
        ]
        batches = [self._api.llama_batch_get_one(array, len(array)) for array in arrays]
        start = time.perf_counter()
        for batch in batches:
            if status := self._api.llama_decode(self._context, batch):
                raise _refused(status)
        self._api.llama_synchronize(self._context)
        self._held += len(ids)
        return 1e3 * (time.perf_counter() - start)


def _refused(status: int) -> LabError:
    return LabError(f"llama.cpp could not run a batch: llama_decode returned {status}.")
