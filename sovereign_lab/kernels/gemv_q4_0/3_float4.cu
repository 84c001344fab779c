// y = W x, one warp a row, four blocks of 32 weights at a time: a lane takes four neighbouring weights, and loads the
// four values of x that go with them as one float4.
//
// Eight lanes share a block. Weights 4j..4j+3 of a block are the low nibbles of bytes 4j..4j+3 for j < 4, else the
// high nibbles of bytes 4j-16..4j-13. A quarter of the load instructions for x; the same bytes.
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
  const float4* x4 = (const float4*)x;
  int first_byte = lane % 4 * 4;
  int shift = lane % 8 < 4 ? 0 : 4;
  float sum = 0;
  for (int b = lane / 8; b < blocks_per_row; b += 4) {
    const unsigned char* bytes = blocks[b].nibbles + first_byte;
    float4 v = x4[b * 8 + lane % 8];
    float dot = (float)((bytes[0] >> shift & 15) - 8) * v.x + (float)((bytes[1] >> shift & 15) - 8) * v.y +
                (float)((bytes[2] >> shift & 15) - 8) * v.z + (float)((bytes[3] >> shift & 15) - 8) * v.w;
    sum += __half2float(blocks[b].scale) * dot;
  }

  sum = warp_sum_to_lane_0(sum);
  if (lane == 0) y[row] = sum;
}
