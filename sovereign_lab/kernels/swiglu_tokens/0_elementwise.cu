// hidden = silu(gate) * up for many tokens; gate and up of a token lie behind one another. One thread an element.
#include <cuda_fp16.h>

extern "C" __global__ void swiglu_tokens(const float* gate_up,  // [count, 2 * n]: gate, up
                                         half* hidden,          // [count, n]
                                         int n, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count * n) return;
  const float* gate = gate_up + (size_t)(i / n) * 2 * n + i % n;
  hidden[i] = __float2half(gate[0] / (1.0f + expf(-gate[0])) * gate[n]);
}
