// logits = W x in FP32, one warp a row: 32 lanes read 32 neighbouring weights, and add up through shuffles.
#include "warp.cuh"

extern "C" __global__ void logits(const float* W,  // [vocab, dim]
                                  const float* x,  // [dim]
                                  float* y,        // [vocab]
                                  int vocab, int dim) {
  int lane = threadIdx.x % 32;
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= vocab) return;  // the whole warp leaves together
  float sum = 0;
  for (int i = lane; i < dim; i += 32) sum += W[(size_t)row * dim + i] * x[i];
  sum = warp_sum_to_lane_0(sum);
  if (lane == 0) y[row] = sum;
}
