"""Where Tensor Cores pay: the recorded run of many tokens at once, against what bytes and operations allow.

Floors are counted from shapes and data sheets, times come from the recorded run (measure/tensor_cores.py).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sovereign_lab.devices import Properties
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.nsight import TENSOR_CORES
from sovereign_lab.measure.peer.run import PeerRun
from sovereign_lab.measure.roofline import token_bytes
from sovereign_lab.measure.tensor_cores import Product, TensorRun, matrices
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.notebook.places import in_checkout
from sovereign_lab.notebook.runs import NO_FIGURE, here
from sovereign_lab.notebook.scoreboard import roof
from sovereign_lab.notebook.seed import GPU_NAME, TINYLLAMA
from sovereign_lab.notebook.table import Table

RECORDED = "2026-12-01-sm_90-tensor-cores"
PEER_RECORDED = "2026-12-01-sm_90-synthetic-tinyllama-1.1b-peer"
ONE_TOKEN = "gemv_q4_0:float4"
CUDA_CORES, WMMA, MMA = "gemm_q4_0:cuda_cores", "gemm_q4_0:wmma", "gemm_q4_0:mma"
KERNELS = (ONE_TOKEN, CUDA_CORES, WMMA, MMA)
STEP_WEIGHTS, TILE_ROWS, TILE_TOKENS = 64, 128, 64  # of gemm_q4_0:mma

# Halves in, sums in FP32, no sparsity, TFLOP/s. H200: its data sheet. RTX 5060 Ti: its data sheet has 759 "AI TOPS",
# FP4 with sparsity; a sixteenth of that, as NVIDIA's Blackwell white paper has it for the RTX 5090 (3,352 to 209.5).
TENSOR_TFLOPS = {"H200": 989.0, "RTX 5060 Ti": 759 / 16}


def recorded_tensor_run() -> TensorRun:
    """The recorded run. Raises LabError where it is not there."""
    return TensorRun.read(in_checkout(f"data/runs/{RECORDED}.json"))


def recorded_peer_run() -> PeerRun:
    """Ours and llama.cpp in turn. Raises LabError where it is not there."""
    return PeerRun.read(in_checkout(f"data/runs/{PEER_RECORDED}.json"))


def origin(run: TensorRun | PeerRun) -> str:
    """ "NVIDIA H200, recorded 2026-12-01"."""
    return f"{run.environment['device']}, recorded {run.environment['date']}"


# ---- floors ----


@dataclass(frozen=True)
class Roofs:
    """What a GPU cannot exceed: GB/s, and TFLOP/s of its CUDA cores in FP32 and of its Tensor Cores on halves."""

    gpu: str
    bandwidth: float
    bandwidth_origin: str
    cuda: float
    tensor: float

    @property
    def ridges(self) -> tuple[float, float]:
        """Operations a byte from which on arithmetic sets the limit: on CUDA cores, on Tensor Cores."""
        return 1e3 * self.cuda / self.bandwidth, 1e3 * self.tensor / self.bandwidth

    @property
    def ridge_tokens(self) -> tuple[float, float]:
        """The same in tokens, where each weight is read once for all of them."""
        on_cuda, on_tensor = (ridge / operations_a_byte(1) for ridge in self.ridges)
        return on_cuda, on_tensor


def roofs(gpu: str) -> Roofs:
    """The roofs of one of the two GPUs. Raises LabError for another one."""
    known = roof(gpu)
    return Roofs(
        known.gpu.name, known.gpu.bandwidth, known.gpu.origin, known.tflops,
        TENSOR_TFLOPS[known.gpu.name],
    )  # fmt: skip


def operations_a_byte(tokens: int) -> float:
    """Of a product with Q4_0: each weight is multiplied and added once a token, and read once for all of them."""
    return 2 * tokens * BLOCK_WEIGHTS / BLOCK_BYTES


@dataclass(frozen=True)
class Floors:
    """The least microseconds: for the bytes, for the operations on CUDA cores, and on Tensor Cores."""

    bytes: float
    cuda: float
    tensor: float


def layer_floors(on: Roofs, tokens: int) -> Floors:
    """Of all products of TinyLlama's layers for `tokens` tokens at once, each weight read once for all."""
    nbytes = token_bytes(TINYLLAMA).layers
    done = nbytes * operations_a_byte(tokens)
    return Floors(nbytes / on.bandwidth / 1e3, done / on.cuda / 1e6, done / on.tensor / 1e6)


def product_floors(rows: int, cols: int, tokens: int, on: Roofs) -> Floors:
    """Of one product: W in Q4_0, x in halves and y in FP32, each moved once."""
    nbytes = rows * cols * BLOCK_BYTES // BLOCK_WEIGHTS + tokens * (2 * cols + 4 * rows)
    done = 2 * rows * cols * tokens
    return Floors(nbytes / on.bandwidth / 1e3, done / on.cuda / 1e6, done / on.tensor / 1e6)


def floors_table(on: Sequence[Roofs], counts: Sequence[int] = (1, 4, 16, 64, 512)) -> Table:
    """Floors of a pass through the layers, by GPU and tokens, and which of the three is the highest."""
    rows = []
    for gpu in on:
        for n in counts:
            f = layer_floors(gpu, n)
            limits = ["bytes" if f.bytes >= ops else "operations" for ops in (f.cuda, f.tensor)]
            rows.append(
                [
                    gpu.gpu,
                    str(n),
                    f"{operations_a_byte(n):,.1f}",
                    *(f"{us:,.1f} us" for us in (f.bytes, f.cuda, f.tensor)),
                    *limits,
                ]
            )
    head = [
        "", "tokens", "operations a byte", "bytes", "CUDA cores", "Tensor Cores",
        "limit on CUDA cores", "limit on Tensor Cores",
    ]  # fmt: skip
    return Table(head, rows)


def ridges_table(on: Sequence[Roofs]) -> Table:
    """Each GPU's roofs, where they meet, in operations a byte and in tokens."""
    rows = []
    for gpu in on:
        (cuda, tensor), (cuda_tokens, tensor_tokens) = gpu.ridges, gpu.ridge_tokens
        rows.append(
            [
                gpu.gpu,
                f"{gpu.bandwidth:,.0f} GB/s ({gpu.bandwidth_origin})",
                f"{gpu.cuda:.1f} TFLOP/s",
                f"{cuda:.1f}",
                f"{cuda_tokens:.1f}",
                f"{gpu.tensor:.1f} TFLOP/s",
                f"{tensor:.1f}",
                f"{tensor_tokens:.1f}",
            ]
        )
    head = [
        "", "bandwidth", "CUDA cores, FP32", "ridge, ops a byte", "in tokens",
        "Tensor Cores, halves", "ridge, ops a byte", "in tokens",
    ]  # fmt: skip
    return Table(head, rows)


# ---- the recorded products ----


def products_of(run: TensorRun, matrix: str, kernel: str) -> dict[int, Product]:
    """Count -> the product measured."""
    return {p.count: p for p in run.products if (p.matrix, p.kernel) == (matrix, kernel)}


def crossings_table(run: TensorRun) -> Table:
    """By matrix: from how many tokens on a kernel of many beats float4 a token, and mma's lead at 1, 8, 64, 512."""

    def least(matrix: str, slower: str, faster: str) -> str:
        count = run.crossing(matrix, slower, faster)
        return "never" if count is None else f"from {count} on"

    rows = []
    for matrix, (n_rows, cols) in matrices(TINYLLAMA).items():
        slow, fast = run.us(matrix, CUDA_CORES), run.us(matrix, MMA)
        rows.append(
            [
                f"{matrix}, {n_rows:,} x {cols:,}",
                least(matrix, ONE_TOKEN, CUDA_CORES),
                least(matrix, ONE_TOKEN, WMMA),
                least(matrix, ONE_TOKEN, MMA),
                *(f"{slow[n] / fast[n]:.1f}" for n in (1, 8, 64, 512)),
            ]
        )
    head = [
        "", "cuda_cores beats float4", "wmma beats float4", "mma beats float4",
        *(f"cuda_cores / mma, tokens: {n}" for n in (1, 8, 64, 512)),
    ]  # fmt: skip
    return Table(head, rows)


def steps(cols: int) -> int:
    """How often a block of gemm_q4_0:mma goes round its loop."""
    return math.ceil(cols / STEP_WEIGHTS)


def blocks(rows: int, tokens: int) -> int:
    """Blocks of a launch of gemm_q4_0:mma."""
    return math.ceil(rows / TILE_ROWS) * math.ceil(tokens / TILE_TOKENS)


def steps_table(run: TensorRun, counts: Sequence[int] = (1, 64, 128, 512)) -> Table:
    """gemm_q4_0:mma: its loop, and microseconds a step beside the blocks that there are for the SMs."""
    rows = []
    for matrix, (n_rows, cols) in matrices(TINYLLAMA).items():
        us = run.us(matrix, MMA)
        cells = [f"{us[n] / steps(cols):.2f} us, {blocks(n_rows, n)} blocks" for n in counts]
        rows.append([f"{matrix}, {n_rows:,} x {cols:,}", str(steps(cols)), *cells])
    return Table(["", "steps", *(f"a step, tokens: {n}" for n in counts)], rows)


def tflops_table(run: TensorRun, on: Roofs) -> Table:
    """gemm_q4_0:mma at 512 tokens against both roofs, and the count from which it is above the CUDA cores' roof."""
    rows = []
    for matrix, (n_rows, cols) in matrices(TINYLLAMA).items():
        of = products_of(run, matrix, MMA)
        at = of[512]
        past = min((n for n, p in of.items() if p.tflops > on.cuda), default=None)
        floor = product_floors(n_rows, cols, 512, on)
        rows.append(
            [
                f"{matrix}, {n_rows:,} x {cols:,}",
                f"{at.us:.1f} us",
                f"{at.tflops:.0f} TFLOP/s",
                f"{at.tflops / on.tensor:.0%}",
                f"{max(floor.bytes, floor.tensor):.1f} us",
                f"from {past} on" if past else "never",
            ]
        )
    head = [
        "", "512 tokens", "", f"of {on.tensor:,.0f}", "the higher floor",
        f"past {on.cuda:.1f} TFLOP/s",
    ]  # fmt: skip
    return Table(head, rows)


# ---- decode, prefill and the counters ----


def one_token_table(run: TensorRun) -> Table:
    """The products alone at one token: microseconds of the three kernels for one, the last two against float4."""
    kernels = ("gemv_q4_0:wmma", "gemv_q4_0:mma")
    rows = []
    for matrix, (n_rows, cols) in matrices(TINYLLAMA).items():
        base = run.us(matrix, ONE_TOKEN)[1]
        cells = [
            f"{us:.1f} us, {base / us:.2f} times as fast"
            for us in (run.us(matrix, kernel)[1] for kernel in kernels)
        ]
        rows.append([f"{matrix}, {n_rows:,} x {cols:,}", f"{base:.1f} us", *cells])
    return Table(["one token", "float4", "wmma", "mma"], rows)


def decode_table(run: TensorRun) -> Table:
    """Phases 9a and 9b against 8c."""
    rows = [
        [
            c.change,
            f"{statistics.median(c.base_ms):.3f} ms",
            f"{statistics.median(c.change_ms):.3f} ms",
            f"{c.speedup:.3f}",
            f"{c.low:.3f} to {c.high:.3f}",
            c.verdict,
        ]
        for c in run.decode
    ]
    return Table(["", "phase 8c", "changed", "times as fast", "95 %", "verdict"], rows)


def decode_of(run: TensorRun, phase: str) -> Comparison:
    """The comparison of a phase with 8c; StopIteration where the run has none."""
    return next(c for c in run.decode if c.change == f"phase {phase}")


def prefill_table(run: TensorRun) -> Table:
    """Tokens a second by the length of the prompt."""
    rows = []
    for p in run.prefill:
        before, after = p.tokens_per_second
        ratio = after / before
        rows.append(
            [f"{p.tokens:,}", f"{before:,.0f} tok/s", f"{after:,.0f} tok/s", f"{ratio:.1f} times"]
        )
    return Table(["prompt, tokens", "one by one", "in blocks of 512", ""], rows)


def prefill_rate(run: TensorRun, tokens: int) -> float:
    """Tokens a second in blocks; StopIteration for a length that the run has not."""
    return next(p.tokens_per_second[1] for p in run.prefill if p.tokens == tokens)


def block_parts(run: TensorRun) -> dict[str, float]:
    """Microseconds of a block of 512 tokens: what the products alone take, and the rest of the pass."""
    total = 512 / prefill_rate(run, 513) * 1e6
    layers = TINYLLAMA.layers
    parts = {matrix: layers * run.us(matrix, MMA)[512] for matrix in matrices(TINYLLAMA)}
    return {**parts, "everything else": total - sum(parts.values())}


def busy(run: TensorRun) -> dict[str, float]:
    """Kernel -> per cent of the time that Tensor Cores worked, as Nsight Compute counted."""
    return {
        kernel: values[TENSOR_CORES]
        for kernel, values in run.counters.items()
        if TENSOR_CORES in values
    }


def peer_table(run: PeerRun, what: Literal["decode", "prefill"]) -> Table:
    """Ours against llama.cpp in the same run, by context or by the prompt's length."""
    rows = []
    for point in run.points:
        if point.what != what:
            continue
        theirs, ours = point.tokens_per_second
        c = point.comparison
        rows.append(
            [
                f"{point.tokens:,}",
                f"{theirs:,.0f} tok/s",
                f"{ours:,.0f} tok/s",
                f"{c.speedup:.3f}",
                f"{c.low:.3f} to {c.high:.3f}",
            ]
        )
    of = "context" if what == "decode" else "prompt, tokens"
    return Table([of, "llama.cpp", "ours, phase 9c", "times as fast", "95 %"], rows)


# ---- three columns ----


def prefill_columns(
    run: TensorRun, here_rates: tuple[float, float], model: str, device: Properties
) -> Table:
    """Reading a prompt on the seed's GPU, in the recorded run and here: tokens a second one by one, and in blocks."""
    recorded = next(p.tokens_per_second for p in run.prefill if p.tokens == 513)
    rows = [["model", TINYLLAMA.name, run.model, model]]
    for i, name in enumerate(("one by one", "in blocks")):
        rates = (recorded[i], here_rates[i])
        rows.append([f"prefill {name}", NO_FIGURE, *(f"{rate:,.1f} tok/s" for rate in rates)])
    ratios = [both[1] / both[0] for both in (recorded, here_rates)]
    rows.append(["", NO_FIGURE, *(f"{ratio:.1f} times as fast" for ratio in ratios)])
    return Table(["", f"{GPU_NAME}, the seed's log", origin(run), here(device)], rows)


def decode_columns(
    run: TensorRun, here_rates: tuple[float, float], model: str, device: Properties
) -> Table:
    """Decoding at phases 8c and 9b on the seed's GPU, in the recorded run and here."""
    found = decode_of(run, "9b")
    recorded = [1e3 / statistics.median(ms) for ms in (found.base_ms, found.change_ms)]
    rows = [["model", TINYLLAMA.name, run.model, model]]
    for i, (phase, seed) in enumerate((("8c", NO_FIGURE), ("9b", "planned; not tried"))):
        rates = (recorded[i], here_rates[i])
        rows.append([f"phase {phase}", seed, *(f"{rate:,.2f} tok/s" for rate in rates)])
    ratio = here_rates[1] / here_rates[0]
    rows.append(
        [
            "9b over 8c",
            NO_FIGURE,
            f"{found.speedup:.3f} times as fast",
            f"{ratio:.3f} times as fast",
        ]
    )
    return Table(["", f"{GPU_NAME}, the seed's log", origin(run), here(device)], rows)
