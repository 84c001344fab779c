// Rotate q and k by the position, and write k and v into this position's slot of the KV cache.
//
// Rotary embedding (Su et al., 2021) as Llama GGUF files store it: pair i is (2i, 2i+1), turned by
// position * inv_freq[i]. Dimensions from rope_dim on are left as they are. One thread a pair, over the query
// heads first, then the KV heads.
#include "kv.cuh"

extern "C" __global__ void rope_kv(float* q,               // [heads, head_dim], rotated in place
                                   const float* k,         // [kv_heads, head_dim]
                                   const float* v,         // [kv_heads, head_dim]
                                   KV* keys,               // [context, kv_heads, head_dim]
                                   KV* values,             // [context, kv_heads, head_dim]
                                   const float* inv_freq,  // [rope_dim / 2]
                                   const int* position,    // [1]
                                   int heads, int kv_heads, int head_dim, int rope_dim) {
  int pairs_per_head = head_dim / 2;
  int pair = blockIdx.x * blockDim.x + threadIdx.x;
  if (pair >= (heads + kv_heads) * pairs_per_head) return;
  int head = pair / pairs_per_head, i = pair % pairs_per_head;
  int pos = *position;

  float sine = 0, cosine = 1;
  if (i < rope_dim / 2) sincosf(pos * inv_freq[i], &sine, &cosine);

  if (head < heads) {
    float* p = q + head * head_dim + 2 * i;
    float a = p[0], b = p[1];
    p[0] = a * cosine - b * sine;
    p[1] = a * sine + b * cosine;
  } else {
    int from = (head - heads) * head_dim + 2 * i;
    size_t to = (size_t)pos * kv_heads * head_dim + from;  // the position's offset, added exactly once
    float a = k[from], b = k[from + 1];
    store(keys + to, a * cosine - b * sine);
    store(keys + to + 1, a * sine + b * cosine);
    store(values + to, v[from]);
    store(values + to + 1, v[from + 1]);
  }
}
