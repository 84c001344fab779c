from sovereign_lab.measure.mine import edit
from sovereign_lab.notebook.exercises import check

# Two neighbouring pairs a thread, 16 bytes in one load: no request leaves a hole. The angles are read for two pairs at
# once too, by half as many warps. Half as many threads cover the pairs, so a block of 128 takes 256 of them. Sizes of
# heads and of what is turned are multiples of 4, as in every model here.
mine = """\
#include "kv.cuh"

__device__ __forceinline__ void store4(float* p, float4 v) { *(float4*)p = v; }
__device__ __forceinline__ void store4(half* p, float4 v) {
  half2 low = __floats2half2_rn(v.x, v.y), high = __floats2half2_rn(v.z, v.w);
  *(uint2*)p = make_uint2(*(unsigned*)&low, *(unsigned*)&high);
}

extern "C" __global__ void rope_kv(float* q,               // [heads, head_dim], rotated in place
                                   const float* k,         // [kv_heads, head_dim]
                                   const float* v,         // [kv_heads, head_dim]
                                   KV* keys,               // [context, kv_heads, head_dim]
                                   KV* values,             // [context, kv_heads, head_dim]
                                   const float* inv_freq,  // [rope_dim / 2]
                                   const int* position,    // [1]
                                   int heads, int kv_heads, int head_dim, int rope_dim) {
  int fours = head_dim / 4;
  int four = blockIdx.x * blockDim.x + threadIdx.x;
  if (four >= (heads + kv_heads) * fours) return;
  int head = four / fours, i = four % fours;
  int pos = *position;

  float sine = 0, cosine = 1, next_sine = 0, next_cosine = 1;
  if (4 * i < rope_dim) {
    float2 freq = ((const float2*)inv_freq)[i];
    sincosf(pos * freq.x, &sine, &cosine);
    sincosf(pos * freq.y, &next_sine, &next_cosine);
  }

  bool query = head < heads;
  int from = (query ? head : head - heads) * head_dim + 4 * i;
  float4 a = *(const float4*)((query ? q : k) + from);
  float4 turned = make_float4(a.x * cosine - a.y * sine, a.x * sine + a.y * cosine,
                              a.z * next_cosine - a.w * next_sine, a.z * next_sine + a.w * next_cosine);
  if (query) {
    *(float4*)(q + from) = turned;
  } else {
    size_t to = (size_t)pos * kv_heads * head_dim + from;  // the position's offset, added exactly once
    store4(keys + to, turned);
    store4(values + to, *(const float4*)(v + from));
  }
}
"""

check("14.3", edit("rope_kv", mine, rows_per_block=256))
