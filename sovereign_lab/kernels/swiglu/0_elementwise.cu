// hidden = silu(gate) * up, with silu(g) = g / (1 + exp(-g)).
extern "C" __global__ void swiglu(const float* gate,  // [n]
                                  const float* up,    // [n]
                                  float* hidden,      // [n]
                                  int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) hidden[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}
