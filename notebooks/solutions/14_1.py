from sovereign_lab.notebook.exercises import check

# Each of 256 threads keeps what it read, up to four float4, so that x is read once; longer vectors are read twice
# behind that. A quarter of the requests by float4. Lengths that are no multiple of 4 take single floats.
mine = """\
#include "block.cuh"

#define KEPT 4  // float4 a thread

__device__ __forceinline__ float square(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

__device__ __forceinline__ float4 scaled(float4 v, float s, float4 w) {
  return make_float4(v.x * s * w.x, v.y * s * w.y, v.z * s * w.z, v.w * s * w.w);
}

extern "C" __global__ void rmsnorm(const float* x,       // [dim]
                                   const float* weight,  // [dim]
                                   float* y,             // [dim]
                                   int dim, float eps) {
  __shared__ float partial[32];
  const float4 *x4 = (const float4*)x, *weight4 = (const float4*)weight;
  float4* y4 = (float4*)y;
  int fours = dim % 4 == 0 ? dim / 4 : 0, behind = threadIdx.x + KEPT * blockDim.x;

  float4 kept[KEPT];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < KEPT; k++) {
    int i = threadIdx.x + k * blockDim.x;
    if (i < fours) squares += square(kept[k] = x4[i]);
  }
  for (int i = behind; i < fours; i += blockDim.x) squares += square(x4[i]);
  for (int i = 4 * fours + threadIdx.x; i < dim; i += blockDim.x) squares += x[i] * x[i];

  float scale = rsqrtf(block_sum(squares, partial) / dim + eps);
#pragma unroll
  for (int k = 0; k < KEPT; k++) {
    int i = threadIdx.x + k * blockDim.x;
    if (i < fours) y4[i] = scaled(kept[k], scale, weight4[i]);
  }
  for (int i = behind; i < fours; i += blockDim.x) y4[i] = scaled(x4[i], scale, weight4[i]);
  for (int i = 4 * fours + threadIdx.x; i < dim; i += blockDim.x) y[i] = x[i] * scale * weight[i];
}
"""

check("14.1", mine)
