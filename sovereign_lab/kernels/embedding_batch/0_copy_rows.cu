// The embedding of every sequence's token at its own position, one thread an element.
extern "C" __global__ void embedding_batch(const float* table,   // [vocab, dim]
                                           const int* tokens,    // [count, context + 1]
                                           const int* position,  // [count]
                                           float* x,             // [count, dim]
                                           int dim, int context, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count * dim) return;
  int sequence = i / dim;
  size_t token = tokens[(size_t)sequence * (context + 1) + position[sequence]];
  x[i] = table[token * dim + i % dim];
}
