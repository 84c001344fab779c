// The embeddings of `count` tokens from this position on, one thread an element.
extern "C" __global__ void embedding_tokens(const float* table,   // [vocab, dim]
                                            const int* tokens,    // [context + 1]
                                            const int* position,  // [1]
                                            float* x,             // [count, dim]
                                            int dim, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count * dim) x[i] = table[(size_t)tokens[*position + i / dim] * dim + i % dim];
}
