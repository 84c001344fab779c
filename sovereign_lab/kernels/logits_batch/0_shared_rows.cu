// logits = W x in FP32 for several sequences: a warp takes four rows and eight sequences, so that what is read of W
// serves eight of them. With more, the next warp of the block takes the same rows for the next eight, and finds them
// in the L1 cache.
#include <cuda_fp16.h>
#include "warp.cuh"

#define ROWS 4       // of W, a warp
#define SEQUENCES 8  // a warp

extern "C" __global__ void logits_batch(const float* W,  // [vocab, dim]
                                        const half* x,   // [count, dim]
                                        float* y,        // [count, vocab]
                                        int vocab, int dim, int count) {  // dim: a multiple of 4
  int lane = threadIdx.x % 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  int groups = (count + SEQUENCES - 1) / SEQUENCES;
  int first_row = warp / groups * ROWS, first = warp % groups * SEQUENCES;
  if (first_row >= vocab) return;  // the whole warp leaves together

  float sums[ROWS][SEQUENCES] = {};
  for (int i = lane; i < dim / 4; i += 32) {
    float4 w[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) w[r] = ((const float4*)(W + (size_t)min(first_row + r, vocab - 1) * dim))[i];
#pragma unroll
    for (int s = 0; s < SEQUENCES; s++) {
      if (first + s >= count) break;
      const half2* pairs = (const half2*)(x + (size_t)(first + s) * dim) + 2 * i;
      float2 a = __half22float2(pairs[0]), b = __half22float2(pairs[1]);
#pragma unroll
      for (int r = 0; r < ROWS; r++) sums[r][s] += w[r].x * a.x + w[r].y * a.y + w[r].z * b.x + w[r].w * b.y;
    }
  }

#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int s = 0; s < SEQUENCES; s++) {
      float sum = warp_sum_to_lane_0(sums[r][s]);
      if (lane == 0 && first_row + r < vocab && first + s < count) y[(size_t)(first + s) * vocab + first_row + r] = sum;
    }
}
