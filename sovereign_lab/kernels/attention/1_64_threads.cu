// The attempt that did not help: 64 threads a head, a thread a dimension, and the whole block on one position at a
// time.
//
// Every score is a sum over the block: two barriers a position, and the positions follow one another. More lanes are
// busy than in three passes, and still each added position adds two barriers to the one chain that all wait for.
#include "block.cuh"
#include "kv.cuh"

extern "C" __global__ void attention(const float* q,        // [heads, head_dim]
                                     const KV* keys,        // [context, kv_heads, head_dim]
                                     const KV* values,      // [context, kv_heads, head_dim]
                                     float* scores,         // [heads, context], scratch
                                     float* out,            // [heads, head_dim]
                                     const int* position,   // [1]
                                     int heads, int kv_heads, int head_dim, int context) {
  __shared__ float partial[32];
  int head = blockIdx.x, kv_head = head / (heads / kv_heads), length = *position + 1;
  size_t stride = (size_t)kv_heads * head_dim;
  float* score = scores + (size_t)head * context;
  const float* query = q + head * head_dim;

  // scores: all threads on one position, one position after the other
  float scale = rsqrtf((float)head_dim), largest = -INFINITY;
  for (int t = 0; t < length; t++) {
    const KV* key = keys + t * stride + kv_head * head_dim;
    float product = 0;
    for (int i = threadIdx.x; i < head_dim; i += blockDim.x) product += query[i] * to_float(key[i]);
    float dot = block_sum(product, partial) * scale;
    if (threadIdx.x == 0) score[t] = dot;
    largest = fmaxf(largest, dot);
    __syncthreads();  // `partial` is used again
  }

  // softmax, not yet divided by its sum
  float sum = 0;
  for (int t = threadIdx.x; t < length; t += blockDim.x) {
    float weight = expf(score[t] - largest);
    score[t] = weight;
    sum += weight;
  }
  sum = block_sum(sum, partial);
  __syncthreads();  // every weight is written before any thread reads those of others

  // weighted sum of the values: a thread a dimension
  for (int i = threadIdx.x; i < head_dim; i += blockDim.x) {
    const KV* value = values + kv_head * head_dim + i;
    float total = 0;
    for (int t = 0; t < length; t++) total += score[t] * to_float(value[t * stride]);
    out[head * head_dim + i] = total / sum;
  }
}
