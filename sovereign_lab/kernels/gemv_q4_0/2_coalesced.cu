// y = W x, one warp a row, the whole warp on one block of 32 weights: a lane takes one weight of each block.
//
// Lane i reads x[32 b + i]: 32 neighbours, 128 bytes, four sectors, one request. The 16 nibble bytes are read
// by two lanes each. Lane 0 alone reads the scale and hands it round with a shuffle.
#include "q4_0.cuh"
#include "warp.cuh"

extern "C" __global__ void gemv_q4_0(const block_q4_0* W,  // [rows, blocks_per_row]
                                     const float* x,       // [blocks_per_row * 32]
                                     float* y,             // [rows]
                                     int rows, int blocks_per_row) {
  int lane = threadIdx.x % 32;
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;  // the whole warp leaves together

  const block_q4_0* block = W + (size_t)row * blocks_per_row;
  int byte_index = lane % 16;           // lanes 0..15: low nibbles; lanes 16..31: high nibbles
  int shift = lane < 16 ? 0 : 4;
  float sum = 0;
  for (int b = 0; b < blocks_per_row; b++, block++) {
    float scale = lane == 0 ? __half2float(block->scale) : 0;
    scale = __shfl_sync(FULL_WARP, scale, 0);
    int nibble = block->nibbles[byte_index] >> shift & 15;
    sum += scale * (float)(nibble - 8) * x[b * 32 + lane];
  }

  sum = warp_sum_to_lane_0(sum);
  if (lane == 0) y[row] = sum;
}
