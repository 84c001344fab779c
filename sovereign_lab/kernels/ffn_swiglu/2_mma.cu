// hidden = silu(W_gate x) * (W_up x) on Tensor Cores, both matrices unpacked in registers: gemv_q4_0's mma step, fused.
#include "mma.cuh"
#include "q4_0_halves.cuh"

#define WARPS 8

extern "C" __global__ void ffn_swiglu(const block_q4_0* W_gate,  // [rows, blocks_per_row]
                                      const block_q4_0* W_up,    // [rows, blocks_per_row]
                                      const float* x,            // [blocks_per_row * 32]
                                      float* hidden,             // [rows]
                                      int rows, int blocks_per_row) {
  __shared__ float partial[2][WARPS][16];  // gate, up
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, t = lane % 4, first_row = blockIdx.x * 16;
  size_t upper = (size_t)min(first_row + group, rows - 1) * blocks_per_row;
  size_t lower = (size_t)min(first_row + group + 8, rows - 1) * blocks_per_row;

  float sums[2][4] = {};
#pragma unroll 2
  for (int k = warp; k < blocks_per_row; k += WARPS) {
    unsigned b[2][2] = {};
    if (group == 0) {
      const float2* pairs = (const float2*)(x + k * 32);
      for (int i = 0; i < 4; i++) b[i / 2][i % 2] = pack_halves(pairs[t + 4 * i].x, pairs[t + 4 * i].y);
    }
#pragma unroll
    for (int which = 0; which < 2; which++) {
      const block_q4_0* W = (which ? W_up : W_gate) + k;
      unsigned a[2][4];
      unpack_for_lane(W + upper, t, a[0][0], a[0][2], a[1][0], a[1][2]);
      unpack_for_lane(W + lower, t, a[0][1], a[0][3], a[1][1], a[1][3]);
      mma_16x8x16(sums[which], a[0], b[0]);
      mma_16x8x16(sums[which], a[1], b[1]);
    }
  }

  // column 0 of the results lies with the lanes whose t is 0
  if (t == 0)
    for (int which = 0; which < 2; which++) {
      partial[which][warp][group] = sums[which][0];
      partial[which][warp][group + 8] = sums[which][2];
    }
  __syncthreads();
  int row = threadIdx.x;
  if (row >= 16 || first_row + row >= rows) return;
  float gate = 0, up = 0;
  for (int w = 0; w < WARPS; w++) {
    gate += partial[0][w][row];
    up += partial[1][w][row];
  }
  hidden[first_row + row] = gate / (1.0f + expf(-gate)) * up;
}
