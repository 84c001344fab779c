// logits = W x in FP32, one thread a row: neighbouring threads read a whole row apart, so each of a warp's 32
// reads touches a sector of its own.
extern "C" __global__ void logits(const float* W,  // [vocab, dim]
                                  const float* x,  // [dim]
                                  float* y,        // [vocab]
                                  int vocab, int dim) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= vocab) return;
  float sum = 0;
  for (int i = 0; i < dim; i++) sum += W[(size_t)row * dim + i] * x[i];
  y[row] = sum;
}
