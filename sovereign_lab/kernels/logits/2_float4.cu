// logits = W x in FP32, one warp a row, four neighbouring weights a lane and load. A row must begin on 16 bytes, so
// this needs dim to be a multiple of 4; other sizes take the loop of single floats.
#include "warp.cuh"

extern "C" __global__ void logits(const float* W,  // [vocab, dim]
                                  const float* x,  // [dim]
                                  float* y,        // [vocab]
                                  int vocab, int dim) {
  int lane = threadIdx.x % 32;
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= vocab) return;  // the whole warp leaves together
  const float* weights = W + (size_t)row * dim;
  float sum = 0;
  if (dim % 4 == 0) {
    const float4 *w4 = (const float4*)weights, *x4 = (const float4*)x;
    for (int i = lane; i < dim / 4; i += 32) {
      float4 w = w4[i], v = x4[i];
      sum += w.x * v.x + w.y * v.y + w.z * v.z + w.w * v.w;
    }
  } else {
    for (int i = lane; i < dim; i += 32) sum += weights[i] * x[i];
  }
  sum = warp_sum_to_lane_0(sum);
  if (lane == 0) y[row] = sum;
}
