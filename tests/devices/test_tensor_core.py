"""Tensor Core helpers: what each lane brings and gets, against NumPy and the PTX ISA's layouts; on the GPU too."""

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError

MMA = """
#include "mma.cuh"
extern "C" __global__ void kernel(const half* a, const half* b, float* d) {  // [16, 16], [8, 16], [16, 8]
  int lane = threadIdx.x, group = lane / 4, t = lane % 4;
  unsigned left[4], right[2];
  for (int i = 0; i < 4; i++) left[i] = *(const unsigned*)(a + (group + i % 2 * 8) * 16 + 2 * t + i / 2 * 8);
  for (int i = 0; i < 2; i++) right[i] = *(const unsigned*)(b + group * 16 + 2 * t + i * 8);
  float sums[4];
  for (int i = 0; i < 4; i++) sums[i] = d[(group + i / 2 * 8) * 8 + 2 * t + i % 2];
  mma_16x8x16(sums, left, right);
  mma_16x8x16(sums, left, right);
  for (int i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}
"""


def halves(*shape: int) -> np.ndarray:
    return np.random.default_rng().standard_normal(shape).astype(np.float16)


def test_mma_multiplies_as_the_ptx_isa_lays_fragments_out(any_device: Device) -> None:
    a, b = halves(16, 16), halves(8, 16)
    d = np.random.default_rng().standard_normal((16, 8)).astype(np.float32)
    out = any_device.array(d)
    any_device.launch(
        any_device.compile(MMA), 1, 32, [any_device.array(a), any_device.array(b), out]
    )
    expected = d + 2 * (a.astype(np.float32) @ b.astype(np.float32).T)
    np.testing.assert_allclose(any_device.to_host(out), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_load_matrices_deals_rows_out(any_device: Device, transposed: bool) -> None:
    source = """
#include "mma.cuh"
extern "C" __global__ void kernel(const half* matrices, unsigned* out) {  // [4, 8, 8] -> [32, 4]
  __shared__ __align__(16) half shared[256];
  for (int i = threadIdx.x; i < 256; i += 32) shared[i] = matrices[i];
  __syncthreads();
  unsigned r[4];
  LOAD(r, shared + threadIdx.x * 8);
  for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = r[i];
}
"""
    name = "load_matrices_transposed" if transposed else "load_matrices"
    given = halves(4, 8, 8)
    out = any_device.array(np.zeros((32, 4), np.uint32))
    kernel = any_device.compile(source.replace("LOAD", name))
    any_device.launch(kernel, 1, 32, [any_device.array(given), out])
    got = np.ascontiguousarray(any_device.to_host(out)).view(np.float16).reshape(32, 4, 2)
    rows = given.transpose(0, 2, 1) if transposed else given
    for lane in range(32):
        pair = slice(lane % 4 * 2, lane % 4 * 2 + 2)
        assert np.array_equal(got[lane], rows[:, lane // 4, pair])


@pytest.mark.parametrize("order", ["reverse", 7])
def test_order_of_lanes_and_blocks_in_turn_change_nothing(order: str | int) -> None:
    """Two operations follow one another at once; in a cooperative launch, blocks take turns in between."""
    device = SimtDevice(lane_order=order)
    a, b = halves(16, 16), halves(8, 16)
    out = device.array(np.zeros((16, 8), np.float32))
    device.launch(device.compile(MMA), 1, 32, [device.array(a), device.array(b), out], 0, True)
    expected = 2 * (a.astype(np.float32) @ b.astype(np.float32).T)
    np.testing.assert_allclose(device.to_host(out), expected, rtol=1e-5, atol=1e-4)
    device.close()


@pytest.mark.parametrize("threads", [16, 48])
def test_part_of_a_warp_cannot_multiply(simt: SimtDevice, threads: int) -> None:
    out = simt.array(np.zeros((16, 8), np.float32))
    factors = simt.array(halves(16, 16)), simt.array(halves(8, 16))
    with pytest.raises(LabError, match="takes all 32 lanes of a warp, and this warp has 16"):
        simt.launch(simt.compile(MMA), 1, threads, [*factors, out])


@pytest.mark.parametrize(
    ("start", "step", "told"),
    [(8, 16, "starts at a multiple of 32 bytes"), (0, 20, "40 bytes from row to row")],
)
def test_warp_matrix_must_be_aligned(simt: SimtDevice, start: int, step: int, told: str) -> None:
    source = f"""
#include "wmma.cuh"
extern "C" __global__ void kernel(float* out) {{
  __shared__ __align__(32) half tile[16 * 20 + 16];
  for (int i = threadIdx.x; i < 336; i += 32) tile[i] = __float2half(1);
  __syncwarp();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
  wmma::load_matrix_sync(a, tile + {start}, {step});
  out[threadIdx.x] = 1;
}}
"""
    out = simt.array(np.zeros(32, np.float32))
    with pytest.raises(LabError, match=told) as error:
        simt.launch(simt.compile(source), 1, 32, [out])
    assert "load_matrix_sync at kernel.cu:8" in str(error.value)


@pytest.mark.parametrize("layout", ["row", "col"])
def test_warp_matrices_multiply(any_device: Device, layout: str) -> None:
    source = f"""
#include "wmma.cuh"
extern "C" __global__ void kernel(const half* a, const half* b, float* d) {{
  __shared__ __align__(32) half left[256], right[256];
  __shared__ __align__(32) float sums[256];
  for (int i = threadIdx.x; i < 256; i += 32) left[i] = a[i], right[i] = b[i];
  __syncwarp();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
  wmma::fill_fragment(z, 1.0f);
  wmma::load_matrix_sync(x, left, 16);
  wmma::load_matrix_sync(y, right, 16);
  wmma::mma_sync(z, x, y, z);
  wmma::store_matrix_sync(sums, z, 16, wmma::mem_{layout}_major);
  __syncwarp();
  for (int i = threadIdx.x; i < 256; i += 32) d[i] = sums[i];
}}
"""
    a, b = halves(16, 16), halves(16, 16)
    out = any_device.array(np.full((16, 16), np.nan, np.float32))
    any_device.launch(
        any_device.compile(source), 1, 32, [any_device.array(a), any_device.array(b), out]
    )
    got = any_device.to_host(out)
    expected = 1 + a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_allclose(got if layout == "row" else got.T, expected, rtol=1e-5, atol=1e-4)


def test_cudas_own_header_serves_on_the_simt_device(simt: SimtDevice) -> None:
    """What a learner copies from elsewhere includes <mma.h> and says nvcuda."""
    source = """
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void kernel(float* out) {
  __shared__ __align__(32) float sums[256];
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
  wmma::fill_fragment(z, 3.0f);
  wmma::store_matrix_sync(sums, z, 16, wmma::mem_row_major);
  __syncwarp();
  out[threadIdx.x] = sums[threadIdx.x];
}
"""
    out = simt.array(np.zeros(32, np.float32))
    simt.launch(simt.compile(source), 1, 32, [out])
    assert np.all(simt.to_host(out) == 3)
