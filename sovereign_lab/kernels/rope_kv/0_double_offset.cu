// Rotate q and k by the position, and write k and v into this position's slot of the KV cache: with the seed's bug.
//
// `keys` is first moved to the position's slot, and then the position's offset is added once more. From position 1 on
// every key lies at twice its place, where attention never looks. Kept for the chapter that finds it; it needs a key
// cache of twice the context, or it writes past the end.
#include "kv.cuh"

extern "C" __global__ void rope_kv(float* q,               // [heads, head_dim], rotated in place
                                   const float* k,         // [kv_heads, head_dim]
                                   const float* v,         // [kv_heads, head_dim]
                                   KV* keys,               // [2 * context, kv_heads, head_dim]
                                   KV* values,             // [context, kv_heads, head_dim]
                                   const float* inv_freq,  // [rope_dim / 2]
                                   const int* position,    // [1]
                                   int heads, int kv_heads, int head_dim, int rope_dim) {
  int pairs_per_head = head_dim / 2;
  int pair = blockIdx.x * blockDim.x + threadIdx.x;
  if (pair >= (heads + kv_heads) * pairs_per_head) return;
  int head = pair / pairs_per_head, i = pair % pairs_per_head;
  int pos = *position, kv_dim = kv_heads * head_dim;

  float sine = 0, cosine = 1;
  if (i < rope_dim / 2) sincosf(pos * inv_freq[i], &sine, &cosine);

  if (head < heads) {
    float* p = q + head * head_dim + 2 * i;
    float a = p[0], b = p[1];
    p[0] = a * cosine - b * sine;
    p[1] = a * sine + b * cosine;
  } else {
    int from = (head - heads) * head_dim + 2 * i;
    KV* key = keys + (size_t)pos * kv_dim;  // this position's slot
    KV* value = values + (size_t)pos * kv_dim;
    float a = k[from], b = k[from + 1];
    store(key + (size_t)pos * kv_dim + from, a * cosine - b * sine);
    store(key + (size_t)pos * kv_dim + from + 1, a * sine + b * cosine);
    store(value + from, v[from]);
    store(value + from + 1, v[from + 1]);
  }
}
