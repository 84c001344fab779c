// x = the embedding of the token at this position. The token and the position are read on the device, so that
// one recorded launch serves every token.
extern "C" __global__ void embedding(const float* table,   // [vocab, dim]
                                     const int* tokens,    // [context]
                                     const int* position,  // [1]
                                     float* x,             // [dim]
                                     int dim) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < dim) x[i] = table[(size_t)tokens[*position] * dim + i];
}
