from sovereign_lab.notebook.exercises import check

# A lane takes eight neighbouring dimensions, 16 bytes of FP16, so that a head of 64 needs eight lanes, and a warp looks
# at four positions at once. Each group of lanes keeps its own maximum, sum and output; they meet at the end.
mine = """\
#include "kv.cuh"
#include "warp.cuh"

#define MAX_WARPS 8
#define MAX_HEAD_DIM 128
#define EACH 8  // dimensions a lane

__device__ __forceinline__ void load8(const half* p, float* to) {
  uint4 bits = *(const uint4*)p;
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float2 pair = __half22float2(*(const half2*)&words[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}
__device__ __forceinline__ void load8(const float* p, float* to) {
  float4 a = ((const float4*)p)[0], b = ((const float4*)p)[1];
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

extern "C" __global__ void attention(const float* q,        // [heads, head_dim]
                                     const KV* keys,        // [context, kv_heads, head_dim]
                                     const KV* values,      // [context, kv_heads, head_dim]
                                     float* scores,         // not used
                                     float* out,            // [heads, head_dim]
                                     const int* position,   // [1]
                                     int heads, int kv_heads, int head_dim, int context) {
  __shared__ float warp_largest[MAX_WARPS], warp_sums[MAX_WARPS], warp_out[MAX_WARPS][MAX_HEAD_DIM];
  int head = blockIdx.x, kv_head = head / (heads / kv_heads), length = *position + 1;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  size_t stride = (size_t)kv_heads * head_dim;

  // `width` lanes a position: the power of two that covers the head; some of them idle where it is none
  int width = 1;
  while (width * EACH < head_dim) width *= 2;
  int groups = 32 / width, group = lane / width, d = lane % width * EACH;
  bool inside = d < head_dim;

  float query[EACH] = {}, total[EACH] = {};
  float scale = rsqrtf((float)head_dim), largest = -INFINITY, sum = 0;
  if (inside) load8(q + head * head_dim + d, query);

  for (int first = warp * groups; first < length; first += warps * groups) {
    int t = first + group;
    bool here = inside && t < length;
    float key[EACH] = {}, value[EACH] = {}, score = 0;
    if (here) load8(keys + t * stride + kv_head * head_dim + d, key);
    if (here) load8(values + t * stride + kv_head * head_dim + d, value);
#pragma unroll
    for (int i = 0; i < EACH; i++) score += query[i] * key[i];
    for (int mask = width / 2; mask > 0; mask /= 2) score += __shfl_xor_sync(FULL_WARP, score, mask);
    if (t < length) {
      score *= scale;
      float now = fmaxf(largest, score);
      float correction = expf(largest - now), weight = expf(score - now);
      largest = now;
      sum = sum * correction + weight;
#pragma unroll
      for (int i = 0; i < EACH; i++) total[i] = total[i] * correction + weight * value[i];
    }
  }

  // the groups of a warp meet in registers, then the warps in shared memory: bring both to the larger maximum, and add
  for (int mask = width; mask < 32; mask *= 2) {
    float now = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, mask));
    float correction = largest > -INFINITY ? expf(largest - now) : 0;  // 0 for a group that had no position
    largest = now;
    sum *= correction;
    sum += __shfl_xor_sync(FULL_WARP, sum, mask);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      total[i] *= correction;
      total[i] += __shfl_xor_sync(FULL_WARP, total[i], mask);
    }
  }
  if (group == 0 && inside) {
#pragma unroll
    for (int i = 0; i < EACH; i++) warp_out[warp][d + i] = total[i];
  }
  if (lane == 0) {
    warp_largest[warp] = largest;
    warp_sums[warp] = sum;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < head_dim; e += blockDim.x) {
    float most = -INFINITY, whole = 0, result = 0;
    for (int w = 0; w < warps; w++) most = fmaxf(most, warp_largest[w]);
    for (int w = 0; w < warps; w++) {
      float correction = expf(warp_largest[w] - most);  // 0 for a warp that had no position
      whole += warp_sums[w] * correction;
      result += warp_out[w][e] * correction;
    }
    out[head * head_dim + e] = result / whole;
  }
}
"""

check("14.4", mine)
