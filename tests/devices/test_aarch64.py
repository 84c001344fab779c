"""The fiber switch for aarch64, cross-compiled and run in an emulator: shuffles, barriers, floats kept alive."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sovereign_lab.devices.simt.builder import FLAGS, SHIM, entry_source
from sovereign_lab.kernels import INCLUDE
from sovereign_lab.kernels.registry import OPS

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

pytestmark = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason=f"{COMPILER} and {EMULATOR} are not both installed (Debian: g++-aarch64-linux-gnu, qemu-user)",
)

# What the pool does, for one launch, in one thread.
MAIN = """
#include <stdio.h>
extern "C" int simt_run(simt::Launch*, uint64_t, uint64_t, int);
static void run(void** args, uint32_t grid, uint32_t threads, uint32_t lane_order) {
  static char error[8192];
  static char* stacks = (char*)malloc((size_t)1025 * 32960);
  simt::Launch l = {{grid, 1, 1}, {threads, 1, 1}, args, 0, lane_order, stacks, 32960, error, sizeof(error)};
  if (simt_run(&l, 0, grid, 0)) { printf("%s\\n", error); exit(1); }
}
"""

REDUCTION = """
#include "block.cuh"
extern "C" __global__ void f(float* out) {
  __shared__ float partial[32];
  float keep = threadIdx.x * 0.5f;            // lives in a callee-saved register over every switch
  for (int i = 0; i < 3; i++) {
    float sum = block_sum(1.0f + threadIdx.x, partial);
    __syncthreads();
    keep += sum;
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = keep;
}
"""


def run(tmp_path: Path, program: str) -> str:
    source, binary = tmp_path / "p.cpp", tmp_path / "p"
    source.write_text(program)
    subprocess.run(
        [COMPILER, *FLAGS, "-static", f"-I{SHIM}", f"-I{INCLUDE}", str(source), "-o", str(binary)],
        check=True,
    )
    done = subprocess.run([EMULATOR, str(binary)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("lane_order", [0, 1, 99])
def test_reductions_over_warp_and_block(tmp_path: Path, lane_order: int) -> None:
    main = f"""int main() {{
      static float out[512]; float* p = out; void* args[] = {{&p}};
      run(args, 2, 256, {lane_order});
      for (int i = 0; i < 512; i++) printf("%g\\n", out[i]);
    }}"""
    out = run(tmp_path, entry_source(REDUCTION, "f.cu") + MAIN + main)
    total = 256 + 255 * 128
    assert [float(v) for v in out.split()] == [(i % 256) * 0.5 + 3 * total for i in range(512)]


@pytest.mark.parametrize("name", OPS["gemv_q4_0"].variants)
def test_gemv_is_right(tmp_path: Path, name: str) -> None:
    # Weight i of a row is (i % 16 - 8) * 0.5, x is 1: every row sums to 2 * -4 blocks.
    variant = OPS["gemv_q4_0"].variant(name)
    grid = OPS["gemv_q4_0"].grid(variant, {"rows": 6})
    main = """int main() {
      const int rows = 6, n = 3;
      static block_q4_0 W[rows * n]; static float x[n * 32], y[rows];
      for (auto& b : W) { b.scale = half(0.5f); for (int i = 0; i < 16; i++) b.nibbles[i] = i | i << 4; }
      for (auto& v : x) v = 1;
      const block_q4_0* w = W; const float* px = x; float* py = y; int r = rows, k = n;
      void* args[] = {&w, &px, &py, &r, &k};
      run(args, GRID, THREADS, 0);
      for (float v : y) printf("%g\\n", v);
    }""".replace("GRID", str(grid)).replace("THREADS", str(variant.threads))
    out = run(tmp_path, entry_source(variant.source, "g.cu") + MAIN + main)
    assert [float(v) for v in out.split()] == [2 * -8 * 0.5 * 3] * 6


def test_deadlock_is_told(tmp_path: Path) -> None:
    source = 'extern "C" __global__ void f(float* out) { if (threadIdx.x < 5) __syncwarp(); }'
    with pytest.raises(AssertionError, match="lanes 5-31 have exited"):
        run(
            tmp_path,
            entry_source(source, "f.cu")
            + MAIN
            + "int main() { float* p = 0; void* a[] = {&p}; run(a, 1, 32, 0); }",
        )
