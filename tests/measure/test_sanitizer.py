"""Small wrong kernels, each with the finding that it must give, and right ones that look alike and must give none.

A kernel is the body of `f(const float* x, float* y)`, on line 2 and below; x holds 64 numbers, y 64 zeros.
"""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sovereign_lab.devices.device import Source
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.measure.sanitizer import LANE_ORDERS, Report, sanitize

SIZE = 64


@dataclass(frozen=True)
class Small:
    """A kernel to sanitize; `before` goes in front of it on line 1, `keep` are further arguments of `sanitize`."""

    name: str
    body: str
    threads: int = 32
    grid: int = 1
    before: str = ""
    keep: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        text = f'{self.before}extern "C" __global__ void f(const float* x, float* y) {{\n{self.body}\n}}\n'
        return Source.of(text)

    def run(self, orders: tuple[str | int, ...] = LANE_ORDERS) -> Report:
        args = {"x": np.arange(SIZE, dtype=np.float32), "y": np.zeros(SIZE, np.float32)}
        return sanitize(self.source, self.grid, self.threads, args, lane_orders=orders, **self.keep)


@dataclass(frozen=True)
class Wrong(Small):
    """What must be found: kind, line, array, the first lane to do it, and the other line where there are two."""

    kind: str = ""
    line: int = 0
    array: str | None = None
    lane: int | None = None
    other: int | None = None
    says: str = ""


OUT, UNINITIALISED = "out of bounds", "uninitialised"
GROUPS = "#include <cooperative_groups.h>\n"
SWAP = "s[t] = x[t];\n{}\ny[t] = s[31 - t];"
T = "int t = threadIdx.x;\n"  # line 2
TREE = """__shared__ float s[64];
s[t] = x[t];
__syncthreads();
for (int half = 32; half > 0; half /= 2) {
  if (t < half)
    s[t] += s[t + half];
  REST
}
if (t == 0) y[0] = s[0];"""
LAST_BLOCK = """int t = threadIdx.x, last = 0;
y[blockIdx.x] = x[blockIdx.x];
FENCE
last = atomicAdd(y + 32, 1.0f) == gridDim.x - 1;
if (last) {
  float sum = 0;
  for (int b = 0; b < gridDim.x; b++)
    sum += y[b];
  y[40] = sum;
}"""

WRONG = [
    # ---- out of bounds ----
    Wrong(
        "one past the end", "int i = blockIdx.x * 32 + threadIdx.x;\ny[i] = x[i + 1];", grid=2,
        kind=OUT, line=3, array="x", lane=31,
        says="lane 31 of warp 0 in block 1 reads 4 bytes, just past the end of `x` (64 floats)",
    ),
    Wrong(
        "no guard for the last block", "int i = blockIdx.x * 48 + threadIdx.x;\ny[i] = 1;",
        threads=48, grid=2, kind=OUT, line=3, array="y", lane=16,
        says="lane 16 of warp 0 in block 1 writes 4 bytes, just past the end of `y`",
    ),
    Wrong(
        "before the start", T + "y[t] = x[t - 1];", kind=OUT, line=3, array="x", lane=0,
        says="4 bytes before the start of `x`",
    ),
    Wrong(
        "far away", T + "y[t + (1 << 28)] = x[t];", kind=OUT, line=3, array="y", lane=0,
        says="(as `y[268435456]`), at line 3; the launch ends there",
    ),
    Wrong(
        "a null pointer", "const float* p = threadIdx.x == 9 ? nullptr : x;\ny[threadIdx.x] = p[2];",
        kind=OUT, line=3, lane=9, says="through a null pointer",
    ),
    Wrong(
        "an address made up", "float* p = (float*)0x7123456789abcull;\nif (threadIdx.x == 3)\n*p = 1;",
        kind=OUT, line=4, lane=3, says="far from any array",
    ),
    Wrong(
        "a trap", T + "if (t == 5) __trap();\ny[t] = x[t];", kind="trap", line=3, lane=5,
        says="__trap at kernel.cu:3 ended the launch",
    ),
    Wrong(
        "shared, one past", T + "__shared__ float s[32];\ns[t + 1] = x[t];\n__syncthreads();\ny[t] = s[t > 0 ? t : 1];",
        kind=OUT, line=4, array="s", lane=31, says="uses index 32 of `s` (32 floats, shared)",
    ),
    Wrong(
        "shared, the neighbour's", T + "__shared__ float a[32], b[32];\na[t] = b[t] = 1;\n__syncthreads();\n"
        "y[t] = a[2 * t] + b[t];",
        kind=OUT, line=6, array="a", lane=31,
    ),
    Wrong(
        "shared, before the start", T + "__shared__ float s[32];\ns[t] = 1;\n__syncthreads();\ny[t] = s[t - 1];",
        kind=OUT, line=6, array="s", lane=0, says="uses index -1 of `s` (32 floats, shared)",
    ),
    Wrong(
        "shared, through a pointer",
        T + "__shared__ float s[32];\nfloat* p = s;\np[2 * t] = x[t];\n__syncthreads();\ny[t] = p[t / 2 * 2];",
        kind=OUT, line=5, array="s", lane=16, says="just past the end of `s` (32 floats, shared)",
    ),
    Wrong(
        "shared, a row too short",
        T + "__shared__ float tile[4][8];\ntile[t / 8][t % 8 + t / 31] = 1;\n__syncthreads();\n"
        "y[t] = tile[t / 8 % 3][t % 8];",
        kind=OUT, line=4, array="tile", lane=31, says="uses index 8 of `tile`",
    ),
    Wrong(
        "a thread's own array",
        T + "float mine[8];\nfor (int i = 0; i < 8; i++)\nmine[i + t / 20] = x[i];\ny[t] = mine[t % 8];",
        kind=OUT, line=5, array="mine", lane=20, says="uses index 8 of `mine`, the thread's own float[8]",
    ),
    Wrong(
        "dynamic shared, too few bytes", T + "extern __shared__ float tile[];\ntile[t] = x[t];",
        threads=64, keep={"shared_bytes": 128}, kind=OUT, line=4, array="tile", lane=0,
        says="lane 0 of warp 1 in block 0 writes 4 bytes, just past the end of `tile` (32 floats, shared)",
    ),
    Wrong(
        "half of a float4", T + "if (t < 17)\ny[t] = ((const float4*)(x - 2 + 2))[t].w;", kind=OUT,
        line=4, array="x", lane=16,
    ),
    Wrong(
        "a vector over the end", T + "const float4* v = (const float4*)(x + 4);\nfloat4 w = v[t / 2];\ny[t] = w.y;",
        kind=OUT, line=4, array="x", lane=30, says="reads 16 bytes, just past the end",
    ),
    Wrong(
        "an atomic past the end", T + "atomicAdd(y + t * 3, 1.0f);", kind=OUT, line=3, array="y",
        lane=22, says="updates 4 bytes, 8 bytes past the end",
    ),
    Wrong(
        "__ldg past the end", T + "y[t] = __ldg(x + 3 * t);", kind=OUT, line=3, array="x", lane=22,
    ),
    Wrong(
        "a helper past the end", "y[threadIdx.x] = get(x, threadIdx.x + 40);",
        before="__device__ float get(const float* p, int i) { return p[i]; } ", kind=OUT, line=1,
        array="x", lane=24,
    ),
    # ---- misaligned ----
    Wrong(
        "float4 at an odd float", "float4 v = *(const float4*)(x + 1);\ny[0] = v.x;", threads=1,
        kind="misaligned", line=2, array="x", lane=0, says="float4 at `x[1]`, byte 4 of `x`",
    ),
    Wrong(
        "float2 stored at an odd float", T + "((float2*)(y + 1))[t % 4] = make_float2(1, 1);",
        kind="misaligned", line=3, array="y", lane=0, says="not a multiple of 8 bytes",
    ),
    Wrong(
        "an int at an odd byte", T + "y[t] = *(const int*)((const char*)x + 4 * t + (t == 5));",
        kind="misaligned", line=3, array="x", lane=5,
    ),
    # ---- never written ----
    Wrong(
        "adds to what is not there", T + "y[t] += x[t];", keep={"uninitialised": ("y",)},
        kind=UNINITIALISED, line=3, array="y", lane=0,
    ),
    Wrong(
        "counts from what is not there", T + "if (t > 4)\natomicAdd(y, 1.0f);",
        keep={"uninitialised": ("y",)}, kind=UNINITIALISED, line=4, array="y", lane=5,
    ),
    Wrong(
        "reads behind the position", T + "y[t] = x[t];",
        keep={"uninitialised": {"x": np.arange(SIZE) >= 20}}, kind=UNINITIALISED, line=3, array="x",
        lane=20, says="`x[20]`",
    ),
    Wrong(
        "shared, a gap", T + "__shared__ float s[32];\nif (t != 7) s[t] = x[t];\n__syncthreads();\ny[t] = s[31 - t];",
        kind=UNINITIALISED, line=6, array="s", lane=24, says="Shared memory holds nothing",
    ),
    Wrong(
        "shared, left by the block before",
        T + "__shared__ float s[32];\nif (blockIdx.x == 0) s[t] = 1;\ny[32 * blockIdx.x + t] = s[t];",
        grid=2, kind=UNINITIALISED, line=5, array="s", lane=0, says="in block 1",
    ),
    Wrong(
        "dynamic shared, not cleared", T + "extern __shared__ float sums[];\nsums[t] += x[t];\ny[t] = sums[t];",
        keep={"shared_bytes": 128}, kind=UNINITIALISED, line=4, array="sums", lane=0,
    ),
    Wrong(
        "an output with a hole", T + "if (t < 30) y[t] = x[t];",
        keep={"uninitialised": ("y",), "outputs": ("y",)}, kind="unwritten", array="y",
        says="34 of the 64 elements of the output `y` are never written, the first of them `y[30]`",
    ),
    # ---- races ----
    Wrong(
        "no barrier at all", T + "__shared__ float s[32];\n" + SWAP.format(""), kind="race", line=4,
        other=6, array="s", lane=16, says="lane 15 of warp 0 in block 0 reads at line 6",
    ),
    Wrong(
        "a tile of rows",
        T + "__shared__ float tile[4][8];\ntile[t / 8][t % 8] = x[t];\ny[t] = tile[t % 4][t / 4];",
        kind="race", line=5, other=4, array="tile", lane=4, says="reads `tile[0][1]` at line 5",
    ),
    Wrong(
        "__syncwarp for two warps",
        T + "__shared__ float s[64];\ns[t] = x[t];\n__syncwarp();\ny[t] = s[63 - t];", threads=64,
        kind="race", line=4, other=6, array="s", lane=0, says="No __syncthreads lies between",
    ),
    Wrong(
        "a shuffle is no barrier",
        T + "__shared__ float s[32];\n" + SWAP.format("float all = __shfl_sync(~0u, x[t], 0); y[32 + t] = all;"),
        kind="race", line=4, other=6, array="s", lane=16, says="shuffles and votes order no memory",
    ),
    Wrong(
        "a vote is no barrier",
        T + "__shared__ float s[32];\n" + SWAP.format("if (__any_sync(~0u, t == 40)) return;"),
        kind="race", line=6, other=4, array="s",
    ),
    Wrong(
        "__syncwarp of one half",
        T + "__shared__ float s[32];\n" + SWAP.format("if (t < 16) __syncwarp(0xffffu); else __syncwarp(0xffff0000u);"),
        kind="race", line=4, other=6, array="s", lane=16,
    ),
    Wrong(
        "a tree without barriers", T + TREE.replace("REST", ""), threads=64, kind="race", line=8,
        array="s", lane=1,
    ),
    Wrong(
        "warps in step, as before Volta", T + TREE.replace("REST", "if (half > 16) __syncthreads();"),
        threads=64, kind="race", line=8, array="s", lane=1,
    ),
    Wrong(
        "a buffer used again",
        T + "__shared__ float s[64];\nfor (int k = 0; k < 2; k++) {\ns[t] = x[t] + k;\n__syncthreads();\n"
        "y[t] = s[63 - t];\n}",
        threads=64, kind="race", line=7, other=5, array="s", lane=0,
    ),
    Wrong(
        "global, within a block", T + "y[t] = x[t];\ny[32 + t % 32] = y[(t + 1) % 32];", kind="race",
        line=3, other=4, array="y", lane=1,
    ),
    Wrong(
        "all to one place", "y[5] = threadIdx.x;", kind="race", line=2, other=2, array="y", lane=1,
        says="They write different values",
    ),
    Wrong(
        "a sum without atomics", "y[0] += x[threadIdx.x];", kind="race", line=2, array="y", lane=1,
    ),
    Wrong(
        "two blocks write", T + "y[t] = blockIdx.x;", grid=3, kind="race", line=3, other=3, array="y",
        lane=0, says="Blocks run in any order",
    ),
    Wrong(
        "a block reads another's",
        "int b = blockIdx.x;\nif (threadIdx.x == 0) y[b] = b;\n__syncthreads();\n"
        "if (threadIdx.x == 1)\ny[32 + b] = y[(b + 1) % gridDim.x];",
        grid=4, kind="race", line=3, other=6, array="y", lane=0,
    ),
    Wrong(
        "an atomic and a plain read", T + "atomicAdd(y, 1.0f);\nif (y[0] > 99)\ny[1] = 1;", kind="race",
        line=3, other=4, array="y", lane=1, says="Only one of the two is atomic",
    ),
    Wrong(
        "the last block, without a fence", LAST_BLOCK.replace("FENCE", ""), threads=1, grid=4,
        kind="race", line=9, other=3, array="y", lane=0,
    ),
    Wrong(
        "a grid without its sync",
        "int b = blockIdx.x;\nif (threadIdx.x == 0)\ny[b] = b;\n__syncthreads();\n"
        "if (threadIdx.x == 1)\ny[32 + b] = y[(b + 1) % gridDim.x];",
        grid=4, keep={"cooperative": True}, kind="race", line=4, other=7, array="y",
    ),
    # ---- barriers and shuffles ----
    Wrong(
        "two barriers in two branches", "if (threadIdx.x < 16)\n__syncthreads();\nelse\n__syncthreads();",
        kind="barrier", line=5, other=3, lane=16, says="must be reached by all threads",
    ),
    Wrong(
        "a full mask in half a warp",
        T + "if (t < 16)\ny[t] = __shfl_down_sync(0xffffffffu, x[t], 8);", kind="deadlock", line=4, lane=8,
        says="lanes 16-31 never came",
    ),
    Wrong(
        "lanes that have left",
        T + "if (t >= 20) return;\n__syncwarp();\ny[t] = 1;", kind="deadlock", line=4, lane=0,
        says="lanes 20-31 have exited",
    ),
    Wrong(
        "a barrier against a warp's", "if (threadIdx.x % 2)\n__syncthreads();\nelse\n__syncwarp();",
        kind="deadlock", line=5, other=3, lane=0, says="wait in __syncthreads at kernel.cu:3",
    ),
    Wrong(
        "a mask without its caller", "__syncwarp(1u << (threadIdx.x + 1) % 32);", kind="shuffle", line=2,
        lane=0, says="does not include the lane that calls it",
    ),
    Wrong(
        "one shuffle in two branches",
        "if (threadIdx.x < 16)\ny[0] = __shfl_sync(~0u, 1, 0);\nelse\ny[0] = __shfl_sync(~0u, 1, 0);",
        kind="shuffle", line=5, other=3, lane=16,
    ),
    Wrong(
        "lanes that nobody waits for", "if (threadIdx.x < 8)\ny[0] = __shfl_sync(~0u, 1.0f, 0);",
        kind="shuffle", line=3, lane=8, says="never came to __shfl_sync",
    ),
    Wrong(
        "a grid sync of a plain launch", "cooperative_groups::this_grid().sync();", before=GROUPS,
        kind="barrier", line=3, lane=0, says="not cooperative",
    ),
    # ---- waiting for ever ----
    Wrong(
        "a raw spin", "if (threadIdx.x == 0) y[0] = 0;\nwhile (((volatile float*)y)[1] == 0) {}",
        keep={"timeout": 0.3}, kind="spin", line=3, array="y", lane=0, says="reads `y[1]` again and again",
    ),
    Wrong(
        "a spin that the compiler hollowed out", "if (y[1] == 0)\nfor (;;) asm volatile(\"\");\ny[0] = 1;",
        keep={"timeout": 0.3}, kind="spin", line=3, lane=0,
    ),
    Wrong(
        "barriers for ever", "for (;;)\n__syncthreads();", keep={"timeout": 0.3}, kind="timeout", line=3,
        says="did not end within 0.3 s",
    ),
    # ---- the order of lanes ----
    Wrong(
        "floats by atomicAdd", "atomicAdd(y, 1.0f / (1 + 7 * threadIdx.x));", kind="lane order", array="y",
        says="`y[0]` is",
    ),
    Wrong(
        "places by atomicAdd", "int i = (int)atomicAdd(y, 1.0f);\ny[1 + i] = threadIdx.x;",
        kind="lane order", array="y",
    ),
    Wrong(
        "volatile in step",
        T + "__shared__ float s[32];\nvolatile float* v = s;\nv[t] = x[t];\ny[t] = v[(t + 1) % 32];",
        keep={"uninitialised": ()}, kind="uninitialised", line=6, array="s", lane=0,
    ),
]  # fmt: skip

RIGHT = [
    Small("copy", "y[threadIdx.x] = x[threadIdx.x];"),
    Small("the last element", "y[threadIdx.x + 32] = x[63 - threadIdx.x];"),
    Small("barrier", T + "__shared__ float s[32];\n" + SWAP.format("__syncthreads();")),
    Small("__syncwarp", T + "__shared__ float s[32];\n" + SWAP.format("__syncwarp();")),
    Small(
        "__syncwarp of quarters",
        T + "__shared__ float s[32];\ns[t] = x[t];\n__syncwarp(0xffu << t / 8 * 8);\ny[t] = s[t ^ 7];",
    ),
    Small(
        "__syncwarp handed on",  # 0-15 among themselves, then 8-23: what lane 0 wrote has reached lane 20
        T + "__shared__ float s[32];\ns[t] = x[t];\nif (t < 16) __syncwarp(0xffffu);\n"
        "if (t >= 8 && t < 24) __syncwarp(0xffff00u);\nif (t >= 16 && t < 24) y[t] = s[t - 16];",
    ),
    Small("tree", T + TREE.replace("REST", "__syncthreads();"), threads=64),
    Small("tree in a warp", T + TREE.replace("s[t] = x[t];", "s[t] = s[t + 32] = 1;").replace("REST", "__syncwarp();")),
    Small(
        "a buffer used again",
        T + "__shared__ float s[64];\nfor (int k = 0; k < 3; k++) {\ns[t] = x[t] + k;\n__syncthreads();\n"
        "y[t] = s[63 - t];\n__syncthreads();\n}",
        threads=64,
    ),
    Small("dynamic shared", T + "extern __shared__ float s[];\ns[t] = x[t];\n__syncthreads();\ny[t] = s[63 - t];",
          threads=64, grid=3, keep={"shared_bytes": 256}),
    Small("equal values", "y[0] = 3;", grid=4),
    Small("the last block", LAST_BLOCK.replace("FENCE", "__threadfence();"), threads=1, grid=4),
    Small(
        "a fence for the whole block",
        "__shared__ int last;\ny[blockIdx.x * 8 + threadIdx.x] = x[threadIdx.x];\n__threadfence();\n__syncthreads();\n"
        "if (threadIdx.x == 0) last = atomicAdd(y + 60, 1.0f) == gridDim.x - 1;\n__syncthreads();\n"
        "if (last && threadIdx.x < 8) y[32 + threadIdx.x] = y[threadIdx.x] + y[threadIdx.x + 8];",
        threads=8, grid=2,
    ),
    Small("integers by atomicAdd", "atomicAdd((int*)y, (int)threadIdx.x);", grid=3),
    Small(
        "a histogram in shared memory",
        T + "__shared__ int bins[4];\nif (t < 4) bins[t] = 0;\n__syncthreads();\natomicAdd(bins + t % 4, 1);\n"
        "__syncthreads();\nif (t < 4) y[t] = bins[t];",
        threads=64,
    ),
    Small(
        "halves side by side",
        T + "__shared__ half s[64];\ns[t] = __float2half(x[t]);\n((half*)y)[t] = s[t];\n"
        "y[48 + t % 2] = __half2float(s[t]) * 0;",
        threads=64, before="#include <cuda_fp16.h>\n",
    ),
    Small("bytes side by side", T + "((unsigned char*)y)[t] = (unsigned char)t;", threads=64),
    Small(
        "grid sync",
        "int b = blockIdx.x;\nif (threadIdx.x == 0) y[b] = b;\ncooperative_groups::this_grid().sync();\n"
        "if (threadIdx.x == 1) y[32 + b] = y[(b + 1) % gridDim.x];",
        grid=4, before=GROUPS, keep={"cooperative": True},
    ),
    Small(
        "shared memory of blocks that take turns",
        "__shared__ float s[32];\ns[threadIdx.x] = blockIdx.x;\ncooperative_groups::this_grid().sync();\n"
        "y[16 * blockIdx.x + threadIdx.x % 16] = s[threadIdx.x % 16 + 16];",
        grid=4, before=GROUPS, keep={"cooperative": True},
    ),
    Small(
        "local arrays", T + "float a[8];\nfor (int i = 0; i < 8; i++) a[(i + t) % 8] = x[i];\n"
        "float s, c;\nsincosf(a[t % 8], &s, &c);\ny[t] = s + c;",
    ),
    Small(
        "votes and shuffles",
        T + "float v = x[t];\nfor (int m = 16; m > 0; m /= 2) v += __shfl_xor_sync(~0u, v, m);\n"
        "y[t] = v + __popc(__ballot_sync(~0u, t % 3 == 0)) + __syncthreads_count(t > 5);",
    ),
    Small("all is written", T + "y[2 * t] = y[2 * t + 1] = x[t];", keep={"uninitialised": ("y",), "outputs": ("y",)}),
    Small("early leave", T + "if (t >= 40) return;\n__syncthreads();\ny[t] = x[t];", threads=64),
    Small(
        "device variables start anew in each lane order",
        "if (threadIdx.x == 0) y[0] = atomicAdd(&count, 1);", before="__device__ int count; ",
    ),
    Small(
        "constants and device variables", T + "if (t == 0) count = 1;\n__syncthreads();\ny[t] = table[t % 4] + count;",
        before="__device__ int count; __constant__ float table[4] = {1, 2, 3, 4}; ",
    ),
]  # fmt: skip


@cache
def compile_all() -> None:
    """Every kernel of this file, in one go on all cores, into the cache."""
    device = SimtDevice(build="sanitized")
    device.compile_all([k.source for k in (*WRONG, *RIGHT)])
    device.close()


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compile_all()


def name_of(kernel: Small) -> str:
    return kernel.name


@pytest.mark.parametrize("kernel", WRONG, ids=name_of)
def test_wrong_kernel_is_found(kernel: Wrong) -> None:
    report = kernel.run()
    assert len(report.findings) == 1, report
    found = report.findings[0]
    assert (found.kind, found.line, found.array) == (kernel.kind, kernel.line, kernel.array), report
    if kernel.lane is not None:
        assert found.lane == kernel.lane, report
    if kernel.other is not None:
        assert found.other_line == kernel.other, report
    assert kernel.says in found.explanation
    if found.line:
        assert found.text == kernel.source.text.splitlines()[found.line - 1].strip()


@pytest.mark.parametrize("kernel", [k for k in WRONG if k.kind != "lane order"], ids=name_of)
def test_wrong_kernel_is_found_in_reverse(kernel: Wrong) -> None:
    (found,) = kernel.run(("reverse",)).findings
    assert (found.kind, found.array) == (kernel.kind, kernel.array)
    lines = {found.line, found.other_line or found.line}
    assert kernel.line in lines or not kernel.line
    assert kernel.other is None or lines == {kernel.line, kernel.other}


@pytest.mark.parametrize("kernel", RIGHT, ids=name_of)
def test_right_kernel_has_no_findings(kernel: Small) -> None:
    report = kernel.run()
    assert not report.findings, report


# ---- what is around the findings ----


def small(body: str, **more: Any) -> Report:
    return Small("", body, **more).run()


def test_counts_and_repeats_are_merged() -> None:
    (found,) = small("for (int i = 0; i < 3; i++)\ny[threadIdx.x + 60] = i;").findings
    assert (found.count, found.warp, found.block) == (3 * 28, 0, 0)


def test_report_reads_well_as_text_and_html() -> None:
    report = small("y[threadIdx.x + 62] = 1;")
    text = str(report)
    assert text.splitlines()[0] == (
        "kernel.cu <<<1, 32>>>, lane orders forward, reverse, seed 2: 1 finding"
    )
    assert "2 | y[threadIdx.x + 62] = 1;" in text and "see 03_the_double_offset.ipynb" in text
    html = report._repr_html_()
    assert "<table>" in html and "href='03_the_double_offset.ipynb'" in html
    clean = small("y[threadIdx.x] = 1;")
    assert str(clean).endswith("no findings") and "<table>" not in clean._repr_html_()


def test_every_kind_has_a_chapter_that_exists(repository: Path) -> None:
    from sovereign_lab.measure.sanitizer.words import CHAPTERS

    assert {k.kind for k in WRONG} == set(CHAPTERS)
    for chapter in CHAPTERS.values():
        assert (repository / "notebooks" / chapter).exists()


def test_arguments_stay_as_they_are() -> None:
    y = np.zeros(SIZE, np.float32)
    sanitize(Small("", "y[threadIdx.x] = 1;").source, 1, 32, {"x": y, "y": y})
    assert not y.any()


def test_an_array_passed_twice_is_one_array() -> None:
    body = "y[threadIdx.x] = x[(threadIdx.x + 1) % 32];"
    y = np.zeros(SIZE, np.float32)
    report = sanitize(Small("", body).source, 1, 32, {"x": y, "y": y})
    assert [f.kind for f in report.findings] == ["race"]


def test_half_of_an_argument_may_be_uninitialised() -> None:
    nothing = np.arange(SIZE) >= 32
    assert not small(
        "y[threadIdx.x + 32] = y[threadIdx.x];", keep={"uninitialised": {"y": nothing}}
    ).findings


def test_what_it_refuses() -> None:
    kernel = Small("", "y[0] = 1;")
    args = {"x": np.zeros(4, np.float32), "y": np.zeros(4, np.float32)}
    for more, message in (
        ({"uninitialised": "y"}, "collection of names"),
        ({"uninitialised": ("z",)}, "names z"),
        ({"uninitialised": {"y": np.zeros(4)}}, "boolean array of shape"),
        ({"outputs": ("z",)}, "names z"),
    ):
        with pytest.raises(LabError, match=message):
            sanitize(kernel.source, 1, 32, args, **more)
    with pytest.raises(LabError, match="takes 2 arguments"):
        sanitize(kernel.source, 1, 32, {"x": args["x"]})
    with pytest.raises(LabError, match="expected an array of float32"):
        sanitize(kernel.source, 1, 32, {"x": args["x"], "y": np.zeros(4)})


def test_header_is_named() -> None:
    source = """#include "block.cuh"
extern "C" __global__ void f(const float* x, float* y) {
  __shared__ float partial[32];
  float a = block_sum(x[threadIdx.x], partial);
  float b = block_sum(a, partial);
  y[threadIdx.x] = b;
}"""
    args = {"x": np.ones(SIZE, np.float32), "y": np.zeros(SIZE, np.float32)}
    report = sanitize(source, 1, 64, args)
    assert {f.kind for f in report.findings} == {"race"} and {f.array for f in report.findings} == {
        "partial"
    }
    assert {f.line for f in report.findings} <= {4, 5}


def test_a_far_write_leaves_the_process_alive_and_the_next_run_clean() -> None:
    for _ in range(3):
        (found,) = small("y[(1ll << 40) + threadIdx.x] = 1;").findings
        assert found.kind == OUT
    assert not small("y[threadIdx.x] = 1;").findings


def test_sanitized_device_by_itself_runs_kernels() -> None:
    device = SimtDevice(workers=2, build="sanitized")
    y = device.array(np.zeros(SIZE, np.float32))
    device.launch(
        device.compile(Small("", "y[threadIdx.x] = x[threadIdx.x] + 2;").source), 1, 32, [y, y]
    )
    assert y[:32].tolist() == [2] * 32
    device.close()


# One of each kind, for the compilers instrument in ways of their own.
EITHER = (
    "one past the end", "far away", "shared, one past", "dynamic shared, too few bytes", "an atomic past the end",
    "float4 at an odd float", "adds to what is not there", "shared, a gap", "no barrier at all", "a raw spin",
    "a tree without barriers", "all to one place", "an atomic and a plain read", "two barriers in two branches",
    "floats by atomicAdd", "a thread's own array", "a null pointer",
)  # fmt: skip


def test_compilers_agree(compiler: str) -> None:
    chosen = [k for k in WRONG if k.name in EITHER]
    right = [
        k for k in RIGHT if k.name in ("tree", "the last block", "halves side by side", "grid sync")
    ]
    assert len(chosen) == len(EITHER)
    device = SimtDevice(build="sanitized")
    device.compile_all([k.source for k in (*chosen, *right)])
    device.close()
    for kernel in chosen:
        (found,) = kernel.run().findings
        assert (found.kind, found.line, found.array) == (kernel.kind, kernel.line, kernel.array), (
            kernel.name
        )
        assert found.lane == kernel.lane or kernel.lane is None
    for small in right:
        assert not small.run().findings, small.name


def test_odd_arguments() -> None:
    source = 'extern "C" __global__ void f(const float* x, int* y, unsigned char* z, int n) { if (n) y[0] = z[0] = n; }'
    args = {
        "x": np.zeros(0, np.float32),
        "y": np.array(0, np.int32),
        "z": np.zeros(1, np.uint8),
        "n": 3,
    }
    assert not sanitize(source, 1, 1, args).findings
    with pytest.raises(LabError, match="numbers up to 4,294,967,296 threads"):
        sanitize(source, 1 << 23, 1024, args)


def test_the_gravest_come_first() -> None:
    report = small("y[threadIdx.x + 40] = 1;\ny[0] = threadIdx.x;")
    assert [f.kind for f in report.findings] == ["out of bounds", "race"]
