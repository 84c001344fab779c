// y = x W^T (+ y) for many tokens without Tensor Cores: a warp takes four rows and eight tokens at a time, and reads its
// rows again for the next eight.
//
// Eight lanes share a block of 32 weights, four neighbours a lane, as in gemv_q4_0:float4. What a lane has read of x
// serves four rows, and what it has unpacked of W serves eight tokens.
#include <cuda_fp16.h>
#include "warp.cuh"

#define ROWS 4    // of W, a warp
#define TOKENS 8  // at a time

extern "C" __global__ void gemm_q4_0(const uint4* nibbles,  // [rows, blocks_per_row], 16 bytes a block of 32 weights
                                     const half2* scales,   // [rows, (blocks_per_row + 1) / 2]
                                     const half* x,         // [count, blocks_per_row * 32]
                                     float* y,              // [count, rows]
                                     int rows, int blocks_per_row, int count, int accumulate) {
  int lane = threadIdx.x % 32;
  int first_row = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * ROWS;
  if (first_row >= rows) return;  // the whole warp leaves together
  const unsigned* words = (const unsigned*)nibbles;
  int shift = lane % 8 < 4 ? 0 : 4;  // low nibbles hold weights 0..15, high ones 16..31

  for (int first_token = 0; first_token < count; first_token += TOKENS) {
    float sums[ROWS][TOKENS] = {};
    for (int b = lane / 8; b < blocks_per_row; b += 4) {
      float2 v[TOKENS][2];
#pragma unroll
      for (int t = 0; t < TOKENS; t++) {
        bool there = first_token + t < count;
        const half2* pairs = (const half2*)(x + ((size_t)(first_token + t) * blocks_per_row + b) * 32) + lane % 8 * 2;
        v[t][0] = there ? __half22float2(pairs[0]) : make_float2(0, 0);
        v[t][1] = there ? __half22float2(pairs[1]) : make_float2(0, 0);
      }
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        size_t row = min(first_row + r, rows - 1);
        unsigned four = words[(row * blocks_per_row + b) * 4 + lane % 4] >> shift;
        half2 pair = scales[row * ((blocks_per_row + 1) / 2) + b / 2];
        float scale = __half2float(b % 2 ? pair.y : pair.x);
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)  // rounded to half, as the Tensor Cores get it
          w[i] = __half2float(__float2half((float)((int)(four >> 8 * i & 15) - 8) * scale));
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
          sums[r][t] += w[0] * v[t][0].x + w[1] * v[t][0].y + w[2] * v[t][1].x + w[3] * v[t][1].y;
      }
    }

#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int t = 0; t < TOKENS; t++) {
        float sum = warp_sum_to_lane_0(sums[r][t]);
        if (lane != 0 || first_row + r >= rows || first_token + t >= count) continue;
        float* out = y + (size_t)(first_token + t) * rows + first_row + r;
        *out = accumulate ? *out + sum : sum;
      }
  }
}
