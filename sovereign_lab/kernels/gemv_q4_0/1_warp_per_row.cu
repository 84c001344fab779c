// y = W x, one warp a row: a lane takes whole blocks of 32 weights, every 32nd block of the row.
//
// No shared memory and no __syncthreads: the 32 partial sums meet through shuffles, in registers.
// Neighbouring lanes read x 128 bytes apart and W 18 bytes apart, so each load touches many sectors.
#include "q4_0.cuh"
#include "warp.cuh"

extern "C" __global__ void gemv_q4_0(const block_q4_0* W,  // [rows, blocks_per_row]
                                     const float* x,       // [blocks_per_row * 32]
                                     float* y,             // [rows]
                                     int rows, int blocks_per_row) {
  int lane = threadIdx.x % 32;
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;  // the whole warp leaves together

  const block_q4_0* blocks = W + (size_t)row * blocks_per_row;
  float sum = 0;
  for (int b = lane; b < blocks_per_row; b += 32) {
    const float* xb = x + b * 32;
    float dot = 0;
    for (int i = 0; i < 16; i++) {
      int byte = blocks[b].nibbles[i];
      dot += (float)((byte & 15) - 8) * xb[i] + (float)((byte >> 4) - 8) * xb[i + 16];
    }
    sum += __half2float(blocks[b].scale) * dot;
  }

  sum = warp_sum_to_lane_0(sum);
  if (lane == 0) y[row] = sum;
}
