"""Exact counts of the traced build: against Nsight Compute's on an H200, and against small sums done by hand."""

import numpy as np
import pytest

from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import OPS
from sovereign_lab.measure.memory_trace import Trace, trace

# l1tex__t_requests and l1tex__t_sectors_pipe_lsu_mem_global_op_ld of a block-per-lane and an element-per-lane Q4_0
# GEMV, 512 x 2,048, 128 threads, measured with Nsight Compute on an H200 (design page SIMT).
NSIGHT = {"warp_per_row": (50_176, 1_361_920), "coalesced": (98_304, 210_944)}


@pytest.mark.parametrize("name", NSIGHT)
def test_gemv_counts_equal_nsight_s(name: str) -> None:
    op = OPS["gemv_q4_0"]
    variant = op.variant(name)
    rows, n = 512, 64
    args = {
        "W": np.zeros(rows * n * 18, np.uint8),
        "x": np.zeros(n * 32, np.float32),
        "y": np.zeros(rows, np.float32),
        "rows": rows,
        "blocks_per_row": n,
    }
    t = trace(variant.path, op.grid(variant, args), variant.threads, args)
    assert (t.requests("load"), t.sectors("load")) == NSIGHT[name]
    assert (t.requests("store"), t.sectors("store")) == (512, 512)


def trace_of(
    body: str, threads: int = 32, grid: int = 1, blocks: int | None = None, **defines: str
) -> Trace:
    source = f'extern "C" __global__ void f(const float* x, float* y) {{\n{body}\n}}\n'
    args = {"x": np.zeros(4096, np.float32), "y": np.zeros(4096, np.float32)}
    return trace(source, grid, threads, args, blocks=blocks)


def only(t: Trace, kind: str, line: int = 2) -> tuple[int, int, int]:
    (row,) = [r for r in t.lines if r.kind == kind and r.line == line]
    return row.requests, row.sectors, row.bytes_wanted


def test_sectors_of_one_request() -> None:
    sectors = {
        "t": 4,
        "t + 1": 5,
        "2 * t": 8,
        "8 * t": 32,
        "31 - t": 4,
        "0": 1,
        "t / 2": 2,
        "(t & 1) * 64": 2,
    }
    lines = "".join(f"\ny[t + {32 * i}] = x[{index}];" for i, index in enumerate(sectors))
    t = trace_of(f"int t = threadIdx.x;{lines}")
    for line, (index, expected) in enumerate(sectors.items(), 3):
        assert only(t, "load", line) == (1, expected, 128), index
        assert only(t, "store", line) == (1, 4, 128), index


def test_idle_lanes() -> None:
    t = trace_of("int t = threadIdx.x;\nif (t < 9) y[t] = x[t];")
    assert only(t, "load", 3) == (1, 2, 36)
    assert [r.lanes for r in t.lines if r.line == 3] == [9, 9]


def test_loop_iterations_are_requests_of_their_own() -> None:
    t = trace_of("for (int i = threadIdx.x; i < 100; i += 32)\ny[i] = x[i];")
    # 100 elements: three full requests and one of four lanes, which touches one sector
    assert only(t, "load", 3) == (4, 13, 400)


def test_warps_and_blocks_are_told_apart() -> None:
    t = trace_of("int t = blockIdx.x * blockDim.x + threadIdx.x; y[t] = x[t];", threads=96, grid=5)
    assert only(t, "load") == (15, 60, 5 * 96 * 4)


def test_shared_memory_is_counted_apart() -> None:
    t = trace_of(
        "__shared__ float s[32]; int t = threadIdx.x;\ns[t] = x[t];\n__syncthreads();\ny[t] = s[31 - t];"
    )
    rows = {(r.line, r.kind, r.space): r.requests for r in t.lines}
    assert rows == {
        (3, "load", "global"): 1,
        (3, "store", "shared"): 1,
        (5, "load", "shared"): 1,
        (5, "store", "global"): 1,
    }


def test_sampled_blocks_are_said_so() -> None:
    t = trace_of("int t = blockIdx.x * blockDim.x + threadIdx.x; y[t] = x[t];", grid=100, blocks=10)
    assert (t.blocks, t.blocks_launched) == (10, 100)
    assert only(t, "load")[0] == 10


def test_accesses_of_one_request() -> None:
    t = trace_of("y[threadIdx.x] = x[threadIdx.x * 3 + 5];")
    lanes = t.accesses(2, array="x")
    assert [(a.lane, a.array, a.offset, a.size) for a in lanes] == [
        (i, "x", 4 * (3 * i + 5), 4) for i in range(32)
    ]
    with pytest.raises(LabError, match="Line 2 makes 1 global requests of `x`; number 1"):
        t.accesses(2, which=1, array="x")


def test_counts_are_the_same_every_time() -> None:
    first, second = (
        trace_of("y[threadIdx.x * 5] = x[threadIdx.x];", threads=256, grid=3) for _ in range(2)
    )
    assert first.lines == second.lines


def test_inlined_helper_is_counted_at_the_kernel_s_own_line() -> None:
    source = """
__device__ __forceinline__ float twice(const float* p) { return 2 * *p; }
extern "C" __global__ void f(const float* x, float* y) {
  float v = __ldg(x + threadIdx.x);
  y[threadIdx.x] = v;
}"""
    t = trace(source, 1, 32, {"x": np.zeros(32, np.float32), "y": np.zeros(32, np.float32)})
    assert {(r.line, r.kind) for r in t.lines} == {(4, "load"), (5, "store")}


def test_half2_loads_are_one_request() -> None:
    source = """#include <cuda_fp16.h>
extern "C" __global__ void f(const half2* x, float* y) {
  half2 v = x[threadIdx.x];
  y[threadIdx.x] = __low2float(v) + __high2float(v);
}"""
    t = trace(source, 1, 32, {"x": np.zeros(64, np.float16), "y": np.zeros(32, np.float32)})
    assert only(t, "load", 3) == (1, 4, 128)
