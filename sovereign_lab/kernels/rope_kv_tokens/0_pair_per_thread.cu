// rope_kv for many tokens: rotate queries and keys by their positions, and write keys and values into the cache.
//
// Queries, keys and values of a token lie behind one another, as one product with [WQ; WK; WV] leaves them. One thread
// a pair of a token, over the query heads first, then the KV heads.
#include "kv.cuh"

extern "C" __global__ void rope_kv_tokens(const float* qkv,       // [count, (heads + 2 * kv_heads) * head_dim]
                                          half* q,                // [count, heads, head_dim]
                                          KV* keys,               // [context, kv_heads, head_dim]
                                          KV* values,             // [context, kv_heads, head_dim]
                                          const float* inv_freq,  // [rope_dim / 2]
                                          const int* position,    // [1], of the first token
                                          int heads, int kv_heads, int head_dim, int rope_dim, int count) {
  int pairs_per_head = head_dim / 2, pairs = (heads + kv_heads) * pairs_per_head;
  int work = blockIdx.x * blockDim.x + threadIdx.x;
  if (work >= count * pairs) return;
  int token = work / pairs, head = work % pairs / pairs_per_head, i = work % pairs_per_head;
  int pos = *position + token;
  const float* from = qkv + (size_t)token * (heads + 2 * kv_heads) * head_dim + head * head_dim + 2 * i;

  float sine = 0, cosine = 1;
  if (i < rope_dim / 2) sincosf(pos * inv_freq[i], &sine, &cosine);
  float a = from[0] * cosine - from[1] * sine, b = from[0] * sine + from[1] * cosine;

  if (head < heads) {
    half* to = q + ((size_t)token * heads + head) * head_dim + 2 * i;
    store(to, a);
    store(to + 1, b);
  } else {
    size_t to = ((size_t)pos * kv_heads + head - heads) * head_dim + 2 * i;
    const float* value = from + kv_heads * head_dim;
    store(keys + to, a);
    store(keys + to + 1, b);
    store(values + to, value[0]);
    store(values + to + 1, value[1]);
  }
}
