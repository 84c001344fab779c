// rope_kv for several sequences: rotate each one's query and key by its own position, and write key and value into its
// own region of the cache. A sequence that has ended writes nothing: its position may lie behind its region.
//
// Query, key and value of a sequence lie behind one another, as one product with [WQ; WK; WV] leaves them. One thread a
// pair of a sequence, over the query heads first, then the KV heads.
#include "kv.cuh"

extern "C" __global__ void rope_kv_batch(const float* qkv,       // [count, (heads + 2 * kv_heads) * head_dim]
                                         float* q,               // [count, heads, head_dim]
                                         KV* keys,               // [count, context, kv_heads, head_dim]
                                         KV* values,             // [count, context, kv_heads, head_dim]
                                         const float* inv_freq,  // [rope_dim / 2]
                                         const int* position,    // [count]
                                         const int* active,      // [count], 0 for a sequence that has ended
                                         int heads, int kv_heads, int head_dim, int rope_dim, int context, int count) {
  int pairs_per_head = head_dim / 2, pairs = (heads + kv_heads) * pairs_per_head;
  int work = blockIdx.x * blockDim.x + threadIdx.x;
  if (work >= count * pairs) return;
  int sequence = work / pairs, head = work % pairs / pairs_per_head, i = work % pairs_per_head;
  if (!active[sequence]) return;
  int pos = position[sequence];
  const float* from = qkv + (size_t)sequence * (heads + 2 * kv_heads) * head_dim + head * head_dim + 2 * i;

  float sine = 0, cosine = 1;
  if (i < rope_dim / 2) sincosf(pos * inv_freq[i], &sine, &cosine);
  float a = from[0] * cosine - from[1] * sine, b = from[0] * sine + from[1] * cosine;

  if (head < heads) {
    float* to = q + ((size_t)sequence * heads + head) * head_dim + 2 * i;
    to[0] = a;
    to[1] = b;
  } else {
    size_t to = (((size_t)sequence * context + pos) * kv_heads + head - heads) * head_dim + 2 * i;
    const float* value = from + kv_heads * head_dim;
    store(keys + to, a);
    store(keys + to + 1, b);
    store(values + to, value[0]);
    store(values + to + 1, value[1]);
  }
}
