"""The traced build's traps (design page SIMT): what a host compiler does that would corrupt counts without a word.

Each is a kernel of one warp whose counts are known by hand, with every compiler that is installed.
"""

import shutil

import numpy as np
import pytest

from sovereign_lab.devices.simt import builder
from sovereign_lab.measure.memory_trace import LineFlow, LineTraffic, Trace, trace

pytestmark = pytest.mark.usefixtures("compiler")


FRAGMENTS = (
    "wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> g;"
    "wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> h;"
    "wmma::fragment<wmma::accumulator, 16, 16, 16, float> f;"
    "for (half& e : g.x) e = __float2half(0); for (half& e : h.x) e = __float2half(0); wmma::fill_fragment(f, 0.0f);"
)


def run(body: str, before: str = "", threads: int = 32, shared_bytes: int = 0) -> Trace:
    """The body starts in line 1, and what comes before the kernel lies in line 0."""
    source = (
        f'{before} extern "C" __global__ void f(const float* x, float* y, int* n) {{ int t = threadIdx.x;\n'
        f"{body.strip()}\n}}"
    )
    args = {
        "x": np.ones(8192, np.float32),
        "y": np.zeros(8192, np.float32),
        "n": np.zeros(64, np.int32),
    }
    return trace(source, 1, threads, args, shared_bytes=shared_bytes)


def counts(t: Trace) -> dict[tuple[int, str, str], tuple[int, int, int]]:
    """(line, kind, space) -> requests, sectors (wavefronts in shared memory), bytes wanted."""
    return {
        (r.line - 1, r.kind, r.space): (
            r.requests,
            r.sectors if r.space == "global" else r.wavefronts,
            r.bytes_wanted,
        )
        for r in t.lines
    }


def traffic(t: Trace, line: int, kind: str) -> LineTraffic:
    (row,) = [r for r in t.lines if (r.line - 1, r.kind) == (line, kind)]
    return row


def flow(t: Trace, line: int) -> LineFlow:
    (row,) = [r for r in t.flow if r.line - 1 == line]
    return row


# ---- loads and stores ----


def test_a_loop_is_neither_vectorised_nor_unrolled() -> None:
    t = run("for (int i = 0; i < 8; i++)\ny[8 * t + i] = x[8 * t + i];")
    # A lane's stride is a sector: 8 iterations of 32 sectors each, where one vector of 32 bytes would be one request.
    assert counts(t) == {
        (2, "load", "global"): (8, 256, 1024),
        (2, "store", "global"): (8, 256, 1024),
    }


def test_a_loop_without_a_lane_s_stride_is_left_alone() -> None:
    t = run("float sum = 0;\nfor (int i = 0; i < 64; i++)\nsum += x[64 * t + i];\ny[t] = sum;")
    assert counts(t)[3, "load", "global"] == (64, 64 * 32, 8192)


def test_vectors_are_as_wide_as_a_gpu_s() -> None:
    # (requests, sectors, bytes). A double4 is two accesses of 16 bytes a lane, 32 bytes apart: 32 sectors each.
    vectors = {
        "float2": (1, 8, 256),
        "float4": (1, 16, 512),
        "int2": (1, 8, 256),
        "int4": (1, 16, 512),
        "double2": (1, 16, 512),
        "double4": (2, 64, 1024),
    }
    body = "".join(f"{{ {v} v = (({v}*)x)[t]; (({v}*)y)[t] = v; }}\n" for v in vectors)
    found = counts(run(body))
    for line, expected in enumerate(vectors.values(), 1):
        for kind in ("load", "store"):
            assert found[line, kind, "global"] == expected


def test_a_repeated_read_is_merged_as_nvcc_does() -> None:
    assert counts(run("y[t] = x[t] + 2 * x[t];"))[1, "load", "global"] == (1, 4, 128)


def test_a_read_just_before_a_write_to_the_same_address_counts() -> None:
    t = run("y[t] += 1;\nn[t] = n[t] * 3 + 1;")
    assert counts(t) == {
        (line, kind, "global"): (1, 4, 128) for line in (1, 2) for kind in ("load", "store")
    }


def test_small_types() -> None:
    t = run("((char*)y)[t] = ((const char*)x)[t];\n((short*)y)[t + 64] = ((const short*)x)[t];")
    assert counts(t) == {
        (1, "load", "global"): (1, 1, 32),
        (1, "store", "global"): (1, 1, 32),
        (2, "load", "global"): (1, 2, 64),
        (2, "store", "global"): (1, 2, 64),
    }


def test_a_copy_of_odd_size_is_counted() -> None:
    t = run("((Odd*)y)[t] = ((const Odd*)x)[t];", before="struct Odd { unsigned char bytes[18]; };")
    # However it is cut, 32 x 18 bytes are read and written, and lie in 18 sectors.
    assert traffic(t, 1, "load").bytes_wanted == traffic(t, 1, "store").bytes_wanted == 576


def test_a_large_copy_is_counted() -> None:
    t = run("((Big*)y)[t] = ((const Big*)x)[t];", before="struct Big { float values[64]; };")
    assert traffic(t, 1, "load").bytes_wanted == traffic(t, 1, "store").bytes_wanted == 8192


def test_memcpy_is_counted() -> None:
    t = run("memcpy(y + 16 * t, x + 16 * t, 16);\nmemcpy(y + 16 * t, x + 16 * t, 4 * (t + 9));")
    assert counts(t)[1, "load", "global"][2] == counts(t)[1, "store", "global"][2] == 512
    wanted = sum(4 * (t + 9) for t in range(32))
    assert counts(t)[2, "load", "global"][2] == counts(t)[2, "store", "global"][2] == wanted


# ---- atomics ----


def test_atomics_are_a_kind_of_their_own_and_are_performed() -> None:
    t = run("atomicAdd(n + t % 2, 1);\ny[t] = n[t % 2];\natomicMax(n + 8, t);")
    assert counts(t) == {
        (1, "atomic", "global"): (1, 1, 128),
        (2, "load", "global"): (1, 1, 128),
        (2, "store", "global"): (1, 4, 128),
        (3, "atomic", "global"): (1, 1, 128),
    }
    assert (t.requests("atomic"), t.sectors("atomic"), t.bytes_wanted("atomic")) == (2, 2, 256)
    assert t.requests("store") == 1


def test_the_compiler_s_own_atomics_are_performed() -> None:
    t = run(
        "int k = __atomic_fetch_add(n, 1, __ATOMIC_SEQ_CST);\n"
        "for (int i = 0; i < k; i++)\ny[i] = x[t];\n"
        "int seen = 0; __atomic_compare_exchange_n(n + 9, &seen, 5, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);"
    )
    found = counts(t)
    assert found[1, "atomic", "global"] == (1, 1, 128)
    assert found[4, "atomic", "global"] == (1, 1, 128)
    # Lane t drew t, so iteration i has the lanes behind i.
    assert found[3, "store", "global"][0] == 31
    assert found[3, "store", "global"][2] == 4 * sum(range(32))


# ---- shared memory ----


def test_wavefronts() -> None:
    indices = {
        "t": 1,
        "31 - t": 1,
        "0": 1,  # all lanes read one word
        "t / 2": 1,  # two lanes a word
        "2 * t": 2,
        "3 * t": 1,
        "4 * t": 4,
        "32 * t": 32,
        "33 * t": 1,
        "(t % 2) * 32 + t / 2 * 33": 2,
    }
    reads = "".join(f"y[t + 32 * {i}] = s[{index}];\n" for i, index in enumerate(indices))
    t = run(f"__shared__ float s[1056]; s[t] = x[t];\n__syncthreads();\n{reads}")
    rows = [r for r in t.lines if r.space == "shared" and r.kind == "load"]
    assert [(r.requests, r.wavefronts, r.ideal_wavefronts) for r in rows] == [
        (1, wavefronts, 1) for wavefronts in indices.values()
    ]
    assert [r.bank_conflicts for r in rows] == [w - 1 for w in indices.values()]
    assert {(r.sectors, r.bytes_moved) for r in rows} == {(0, 0)}


def test_wide_accesses_go_by_halves_and_quarters_of_a_warp() -> None:
    # (wavefronts, ideal)
    reads = {
        ("float2", "t"): (2, 2),
        ("float2", "2 * t"): (4, 2),
        ("float2", "0"): (2, 2),
        ("float4", "t"): (4, 4),
        ("float4", "2 * t"): (8, 4),
        ("float4", "t / 8"): (4, 4),
    }
    body = "".join(
        f"(({v}*)y)[t + {64 * i}] = (({v}*)s)[{index}];\n" for i, (v, index) in enumerate(reads)
    )
    t = run(f"__shared__ float4 s[64]; s[t] = ((float4*)x)[t];\n__syncthreads();\n{body}")
    rows = [r for r in t.lines if r.space == "shared" and r.kind == "load"]
    assert [(r.wavefronts, r.ideal_wavefronts) for r in rows] == list(reads.values())


def test_an_idle_half_takes_no_wavefront() -> None:
    t = run(
        "__shared__ float2 s[32]; s[t] = ((float2*)x)[t];\n__syncthreads();\nif (t < 16)\n((float2*)y)[t] = s[t];"
    )
    row = next(r for r in t.lines if (r.line - 1, r.space) == (4, "shared"))
    assert (row.wavefronts, row.ideal_wavefronts, row.lanes) == (1, 1, 16)


def test_dynamic_shared_memory() -> None:
    t = run(
        "extern __shared__ float s[]; s[2 * t] = x[t];\n__syncthreads();\ny[t] = s[t];",
        shared_bytes=1024,
    )
    assert counts(t)[1, "store", "shared"] == (1, 2, 128)
    assert counts(t)[3, "load", "shared"] == (1, 1, 128)


# ---- barriers, shuffles, divergence ----


def test_meetings_are_counted_by_warp() -> None:
    t = run(
        "__syncthreads();\n"
        "float v = __shfl_xor_sync(0xffffffff, x[t], 1);\n"
        "for (int i = 0; i < 3; i++)\n"
        "__syncwarp();\n"
        "v += __ballot_sync(0xffffffff, t % 2) + __any_sync(0xffffffff, t);\n"
        "if (__syncthreads_or(t == 70)) y[t] = v;",
        threads=96,
    )
    assert (flow(t, 1).barriers, flow(t, 6).barriers) == (3, 3)
    assert flow(t, 2).shuffles == 3
    assert flow(t, 4).warp_barriers == 9
    assert flow(t, 5).votes == 6


def test_products_of_tensor_cores_are_counted_by_warp() -> None:
    t = run(
        "float d[4] = {}; unsigned a[4] = {}, b[2] = {};" + FRAGMENTS + "\n"
        "for (int i = 0; i < 3; i++)\n"
        "mma_16x8x16(d, a, b), d[0] += x[t];\n"
        "wmma::mma_sync(f, g, h, f);\n"
        "__shared__ __align__(32) float s[256]; wmma::store_matrix_sync(s, f, 16, wmma::mem_row_major);\n"
        "y[t] = d[0];",
        before='\n#include "mma.cuh"\n#include "wmma.cuh"\n#line 0\n',
        threads=64,
    )
    assert {(r.line, r.products) for r in t.flow if r.products} == {(3, 6), (4, 4)}
    assert not any(r.votes or r.shuffles for r in t.flow)
    # The last lane to come computes for all, in loops that are not the kernel's: it stays with the others.
    assert sum(r.requests for r in t.lines if r.kind == "load") == 6


def test_divergence() -> None:
    t = run(
        "float v = x[t]; int m = t % 2 + n[t % 32];\n"
        "if (t % 64 < 16)\n"  # parts the first warp and the third; the second and fourth go one way
        "v += x[t + 128];\n"
        "if (t < 64)\n"  # parts none
        "v += x[t + 256];\n"
        "for (int i = 0; i <= t / 32; i++)\n"  # the same number of iterations for a warp's lanes
        "v += x[t + 32 * i];\n"
        "for (int i = 0; i <= m; i++)\n"  # half of the lanes leave after the first
        "v += x[t + 512 * i];\n"
        "y[t] = v;",
        threads=128,
    )
    assert (flow(t, 2).branches, flow(t, 2).divergent_branches) == (4, 2)
    assert (flow(t, 4).branches, flow(t, 4).divergent_branches) == (4, 0)
    # The test behind every iteration: 1, 2, 3 and 4 of them.
    assert (flow(t, 6).branches, flow(t, 6).divergent_branches) == (10, 0)
    assert (flow(t, 8).branches, flow(t, 8).divergent_branches) == (8, 4)


def test_a_helper_that_is_not_inlined_is_told_apart_by_its_caller() -> None:
    t = run(
        "float v = 0;\nif (t < 8)\nv = sum(x + t, 2);\ny[t] = v + sum(x + t, 3);",
        before="__device__ __noinline__ float sum(const float* p, int n) "
        "{ float s = 0; for (int i = 0; i < n; i++) s += p[64 * i]; return s; }",
    )
    # Two iterations of 8 lanes, and three of all 32.
    row = traffic(t, 0, "load")
    assert (row.requests, row.bytes_wanted) == (5, 4 * (2 * 8 + 3 * 32))


def test_a_device_variable_starts_afresh() -> None:
    # The kernel is run twice, to learn its loops and to count: the second run must not see what the first one left.
    t = run("int k = atomicAdd(&drawn, 1);\ny[k] = x[t];", before="__device__ int drawn;")
    assert counts(t)[2, "store", "global"] == (1, 4, 128)
    assert [a.offset for a in t.accesses(3, array="y")] == [4 * i for i in range(32)]


def test_a_cooperative_launch_counts_every_block() -> None:
    source = """#include <cooperative_groups.h>
extern "C" __global__ void f(const float* x, float* y) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  y[t] = x[t];
  cooperative_groups::this_grid().sync();
  y[t] += y[t ^ 32];
}"""
    args = {"x": np.ones(256, np.float32), "y": np.zeros(256, np.float32)}
    t = trace(source, 4, 64, args, cooperative=True)
    assert (t.requests("load"), t.requests("store")) == (8 + 16, 16)
    assert [r.barriers for r in t.flow if r.barriers] == [8]
    half = trace(source, 4, 64, args, cooperative=True, blocks=2)
    assert (half.blocks, half.blocks_launched, half.sampled) == (2, 4, True)
    assert half.requests("load") == 12


def test_a_gcc_that_tells_no_basic_blocks_counts_as_far_as_it_can(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler != "g++" or not shutil.which("g++-11"):
        pytest.skip("g++-11 is not installed, or has had its turn")
    monkeypatch.setenv("CXX", "g++-11")
    builder.find_compiler.cache_clear()
    t = run(
        "float v = 0;\nfor (int i = 0; i < 4; i++)\nv += __shfl_xor_sync(0xffffffff, x[32 * i + t], 1);\ny[t] = v;"
    )
    assert (t.by_blocks, sum(r.branches for r in t.flow)) == (False, 0)
    assert counts(t) == {(3, "load", "global"): (4, 16, 512), (4, "store", "global"): (1, 4, 128)}
    assert flow(t, 3).shuffles == 4
