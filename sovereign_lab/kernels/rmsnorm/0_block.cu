// y = x / rms(x) * weight, with one block for the whole vector.
//
// Root mean square norm (Zhang and Sennrich, 2019): rms(x) = sqrt(mean(x^2) + eps). Each thread sums the squares
// of every blockDim-th element; the block adds the sums up.
#include "block.cuh"

extern "C" __global__ void rmsnorm(const float* x,       // [dim]
                                   const float* weight,  // [dim]
                                   float* y,             // [dim]
                                   int dim, float eps) {
  __shared__ float partial[32];
  float squares = 0;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) squares += x[i] * x[i];

  float scale = rsqrtf(block_sum(squares, partial) / dim + eps);
  for (int i = threadIdx.x; i < dim; i += blockDim.x) y[i] = x[i] * scale * weight[i];
}
