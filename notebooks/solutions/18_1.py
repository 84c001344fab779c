from sovereign_lab.notebook.exercises import check

# The two rows, the bytes and the blocks of a lane are those that it has in the mma kernel. What the Tensor Cores did is
# left to it: eight products a row and block, and the sum over the four lanes that share a row.
mine = """\
#include "q4_0.cuh"
#include "warp.cuh"

#define WARPS 8

extern "C" __global__ void gemv_q4_0(const block_q4_0* W,  // [rows, blocks_per_row]
                                     const float* x,       // [blocks_per_row * 32]
                                     float* y,             // [rows]
                                     int rows, int blocks_per_row) {
  __shared__ float partial[WARPS][16];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, t = lane % 4, first_row = blockIdx.x * 16;
  const block_q4_0* two[2] = {W + (size_t)min(first_row + group, rows - 1) * blocks_per_row,
                              W + (size_t)min(first_row + group + 8, rows - 1) * blocks_per_row};

  float sums[2] = {};
#pragma unroll 4
  for (int k = warp; k < blocks_per_row; k += WARPS) {
    const float2* pairs = (const float2*)(x + k * 32);
    float2 v[4] = {pairs[t], pairs[t + 4], pairs[t + 8], pairs[t + 12]};  // weights 2t.., 8 on, 16 on, 24 on
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const unsigned short* nibbles = (const unsigned short*)two[r][k].nibbles;
      unsigned near = nibbles[t], far = nibbles[t + 4];
      float dot = (float)((int)(near & 15) - 8) * v[0].x + (float)((int)(near >> 8 & 15) - 8) * v[0].y +
                  (float)((int)(far & 15) - 8) * v[1].x + (float)((int)(far >> 8 & 15) - 8) * v[1].y +
                  (float)((int)(near >> 4 & 15) - 8) * v[2].x + (float)((int)(near >> 12) - 8) * v[2].y +
                  (float)((int)(far >> 4 & 15) - 8) * v[3].x + (float)((int)(far >> 12) - 8) * v[3].y;
      sums[r] += __half2float(two[r][k].scale) * dot;
    }
  }

#pragma unroll
  for (int r = 0; r < 2; r++) {  // four lanes share a row
    sums[r] += __shfl_xor_sync(FULL_WARP, sums[r], 1);
    sums[r] += __shfl_xor_sync(FULL_WARP, sums[r], 2);
    if (t == 0) partial[warp][group + 8 * r] = sums[r];
  }
  __syncthreads();
  int row = threadIdx.x;
  if (row >= 16 || first_row + row >= rows) return;
  float sum = 0;
  for (int w = 0; w < WARPS; w++) sum += partial[w][row];
  y[first_row + row] = sum;
}
"""

check("18.1", mine)
