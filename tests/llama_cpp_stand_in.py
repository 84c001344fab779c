"""Stands in for the module `llama_cpp`: no model, only what was called, and the positions that would be held."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

Batch = tuple[ctypes.Array[ctypes.c_int32], int]


class LlamaCppStandIn:
    """The functions that the peer uses. `calls` has a line for each that reads, waits, forgets or frees."""

    __version__ = "0.0-stand-in"
    LLAMA_FLASH_ATTN_TYPE_ENABLED = 1
    llama_token = ctypes.c_int32

    def __init__(self, gpu: bool = False, status: int = 0, loads: bool = True, room: bool = True):
        self.gpu, self.status, self.loads, self.room = gpu, status, loads, room
        self.calls: list[str] = []
        self.held = 0
        self.model_params = SimpleNamespace(n_gpu_layers=0)
        self.context_params = SimpleNamespace(offload_kqv=True, op_offload=True)

    def llama_backend_init(self) -> None:
        pass

    def llama_supports_gpu_offload(self) -> bool:
        return self.gpu

    def llama_print_system_info(self) -> bytes:
        return b"STAND-IN : YES = 1 | "

    def llama_model_default_params(self) -> SimpleNamespace:
        return self.model_params

    def llama_context_default_params(self) -> SimpleNamespace:
        return self.context_params

    def llama_model_load_from_file(self, path: bytes, params: Any) -> str | None:
        return "model" if self.loads else None

    def llama_init_from_model(self, model: str, params: Any) -> str | None:
        return "context" if self.room else None

    def llama_get_memory(self, context: str) -> str:
        return "memory"

    def llama_batch_get_one(self, tokens: ctypes.Array[ctypes.c_int32], n: int) -> Batch:
        return tokens, n

    def llama_decode(self, context: str, batch: Batch) -> int:
        tokens, n = batch
        assert len(tokens) == n and self.held + n <= self.context_params.n_ctx
        self.held += n
        self.calls.append(f"decode {n}")
        return self.status

    def llama_synchronize(self, context: str) -> None:
        self.calls.append("wait")

    def llama_memory_seq_rm(self, memory: str, sequence: int, first: int, end: int) -> bool:
        assert (sequence, end) == (0, -1)
        self.held = min(self.held, first)
        self.calls.append(f"forget from {first}")
        return True

    def llama_free(self, context: str) -> None:
        self.calls.append(f"free {context}")

    def llama_model_free(self, model: str) -> None:
        self.calls.append(f"free {model}")
