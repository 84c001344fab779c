// y = W x on Tensor Cores, with W unpacked where it is needed: each lane turns the nibbles that it has loaded into its own
// part of a fragment, and nothing of W goes through shared memory. A block takes 16 rows, and its eight warps every eighth
// block of 32 weights of each.
//
// mma multiplies 16 x 16 by 16 x 8. Lane l holds of two rows the weights 2t, 2t + 1, 2t + 8 and 2t + 9 (t = l % 4), and
// in a block of Q4_0 these are the low nibbles of four bytes; the same bytes' high nibbles are its part of the next 16.
// x is one column of 8, which lanes 0 to 3 hold.
#include "mma.cuh"
#include "q4_0_halves.cuh"

#define WARPS 8

extern "C" __global__ void gemv_q4_0(const block_q4_0* W,  // [rows, blocks_per_row]
                                     const float* x,       // [blocks_per_row * 32]
                                     float* y,             // [rows]
                                     int rows, int blocks_per_row) {
  __shared__ float partial[WARPS][16];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, t = lane % 4, first_row = blockIdx.x * 16;
  const block_q4_0* upper = W + (size_t)min(first_row + group, rows - 1) * blocks_per_row;
  const block_q4_0* lower = W + (size_t)min(first_row + group + 8, rows - 1) * blocks_per_row;

  float sums[4] = {};
#pragma unroll 4
  for (int k = warp; k < blocks_per_row; k += WARPS) {
    unsigned a[2][4], b[2][2] = {};
    unpack_for_lane(upper + k, t, a[0][0], a[0][2], a[1][0], a[1][2]);
    unpack_for_lane(lower + k, t, a[0][1], a[0][3], a[1][1], a[1][3]);
    if (group == 0) {
      const float2* pairs = (const float2*)(x + k * 32);
      for (int i = 0; i < 4; i++) b[i / 2][i % 2] = pack_halves(pairs[t + 4 * i].x, pairs[t + 4 * i].y);
    }
    mma_16x8x16(sums, a[0], b[0]);
    mma_16x8x16(sums, a[1], b[1]);
  }

  // column 0 of the result lies with the lanes whose t is 0
  if (t == 0) {
    partial[warp][group] = sums[0];
    partial[warp][group + 8] = sums[2];
  }
  __syncthreads();
  int row = threadIdx.x;
  if (row >= 16 || first_row + row >= rows) return;
  float sum = 0;
  for (int w = 0; w < WARPS; w++) sum += partial[w][row];
  y[first_row + row] = sum;
}
