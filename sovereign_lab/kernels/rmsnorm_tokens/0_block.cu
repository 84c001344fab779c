// y = x / rms(x) * weight for many tokens, a block a token; y in half, as the Tensor Cores take it.
#include <cuda_fp16.h>
#include "block.cuh"

extern "C" __global__ void rmsnorm_tokens(const float* x,       // [count, dim]
                                          const float* weight,  // [dim]
                                          half* y,              // [count, dim]
                                          int dim, float eps, int count) {
  __shared__ float partial[32];
  x += (size_t)blockIdx.x * dim;
  y += (size_t)blockIdx.x * dim;
  float squares = 0;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) squares += x[i] * x[i];

  float scale = rsqrtf(block_sum(squares, partial) / dim + eps);
  for (int i = threadIdx.x; i < dim; i += blockDim.x) y[i] = __float2half(x[i] * scale * weight[i]);
}
