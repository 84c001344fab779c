// One query position attends to a part of the cached ones, eight query heads at a time: Tensor Cores multiply what the
// heads that share a KV head have in common. A split is what a block takes; its warps take PER_WARP positions each.
//
// Everything stays in registers. Along head_dim the order of a product's terms is free, so a lane takes 16 dimensions
// in a row (of every 64), and loads 32 or 16 bytes at a time; scores come out where the second product wants its weights.
#pragma once
#include "kv.cuh"
#include "mma.cuh"
#include "warp.cuh"

#define BUNDLE 8         // query heads that go together
#define SPLIT_WARPS 8
#define PER_WARP 32      // positions
#define SPLIT (SPLIT_WARPS * PER_WARP)
#define CHUNK 64         // dimensions at a time

// Eight neighbouring elements of the cache as four registers of halves.
__device__ __forceinline__ uint4 load_halves(const half* p) { return __ldcg((const uint4*)p); }
__device__ __forceinline__ uint4 load_halves(const float* p) {
  float4 a = __ldcg((const float4*)p), b = __ldcg((const float4*)p + 1);
  return make_uint4(pack_halves(a.x, a.y), pack_halves(a.z, a.w), pack_halves(b.x, b.y), pack_halves(b.z, b.w));
}

// Asks for the line of an address to come into L2, and waits for nothing.
__device__ __forceinline__ void prefetch(const void* p) {
#if !defined(SOVEREIGN_SIMT)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// Keys of positions `first` + 8 t + lane / 4, t = 0..3, dimensions from 16 (lane % 4) on of a chunk.
struct SplitKeys {
  unsigned words[4][8];

  __device__ __forceinline__ void load(const KV* keys, size_t stride, int first, int end, int chunk, int head_dim) {
    int lane = lane_index(), d = chunk * CHUNK + lane % 4 * 16;
    for (int t = 0; t < 4; t++) {
      int position = first + 8 * t + lane / 4;
      uint4 a = make_uint4(0, 0, 0, 0), b = a;
      if (position < end && d < head_dim) a = load_halves(keys + position * stride + d), b = load_halves(keys + position * stride + d + 8);
      put(t, a, b);
    }
  }
  __device__ __forceinline__ void put(int t, uint4 a, uint4 b) {
    words[t][0] = a.x, words[t][1] = a.y, words[t][2] = a.z, words[t][3] = a.w;
    words[t][4] = b.x, words[t][5] = b.y, words[t][6] = b.z, words[t][7] = b.w;
  }
};

// Values of positions `first` + 8 t + 2 (lane % 4) and the next, dimensions from 8 (lane / 4) on of a chunk.
struct SplitValues {
  unsigned words[4][2][4];

  __device__ __forceinline__ void load(const KV* values, size_t stride, int first, int end, int chunk, int head_dim) {
    int lane = lane_index(), d = chunk * CHUNK + lane / 4 * 8;
    for (int t = 0; t < 4; t++)
      for (int i = 0; i < 2; i++) {
        int position = first + 8 * t + lane % 4 * 2 + i;
        put(t, i, position < end && d < head_dim ? load_halves(values + position * stride + d) : make_uint4(0, 0, 0, 0));
      }
  }
  __device__ __forceinline__ void put(int t, int i, uint4 a) {
    words[t][i][0] = a.x, words[t][i][1] = a.y, words[t][i][2] = a.z, words[t][i][3] = a.w;
  }
};

// scores[t] of query head lane / 4 and positions 8 t + 2 (lane % 4) and the next += q k over a chunk; q as 16 halves from
// 16 (lane % 4) on, of head lane / 4.
__device__ __forceinline__ void add_scores(float (&scores)[4][2], const unsigned (&q)[8], const SplitKeys& k) {
  for (int t = 0; t < 4; t++) {
    float d[4] = {scores[t][0], scores[t][1], 0, 0};
    for (int s = 0; s < 4; s++) {
      unsigned a[4] = {q[2 * s], 0, q[2 * s + 1], 0};
      unsigned b[2] = {k.words[t][2 * s], k.words[t][2 * s + 1]};
      mma_16x8x16(d, a, b);
    }
    scores[t][0] = d[0], scores[t][1] = d[1];
  }
}

// Scores become weights exp2(score scale - largest); returns the largest scaled score and the weights' sum, both of head
// lane / 4, over positions before `end`. The warp has at least one.
__device__ __forceinline__ float2 softmax_weights(float (&scores)[4][2], int first, int end, float scale) {
  int lane = lane_index();
  float largest = -INFINITY, sum = 0;
  for (int t = 0; t < 4; t++)
    for (int i = 0; i < 2; i++) {
      bool there = first + 8 * t + lane % 4 * 2 + i < end;
      scores[t][i] = there ? scores[t][i] * scale : -INFINITY;
      largest = fmaxf(largest, scores[t][i]);
    }
  for (int mask = 2; mask > 0; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, mask));
  for (int t = 0; t < 4; t++)
    for (int i = 0; i < 2; i++) {
      scores[t][i] = exp2f(scores[t][i] - largest);
      sum += scores[t][i];
    }
  for (int mask = 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, mask);
  return make_float2(largest, sum);
}

// out[16], dimensions from 16 (lane % 4) on of a chunk, of head lane / 4 = the weighted sum of values.
__device__ __forceinline__ void weigh_values(float (&out)[16], const float (&weights)[4][2], const SplitValues& v) {
  unsigned a[2][4] = {};
  for (int t = 0; t < 4; t++) a[t / 2][t % 2 * 2] = pack_halves(weights[t][0], weights[t][1]);
  for (int i = 0; i < 8; i++) {
    float d[4] = {0, 0, 0, 0};
    for (int step = 0; step < 2; step++) {
      unsigned b[2];
      for (int j = 0; j < 2; j++)
        b[j] = __byte_perm(v.words[2 * step + j][0][i / 2], v.words[2 * step + j][1][i / 2], i % 2 ? 0x7632 : 0x5410);
      mma_16x8x16(d, a[step], b);
    }
    out[i] = d[0], out[8 + i] = d[1];
  }
}

__device__ __forceinline__ float2 as_floats(unsigned halves) {
  return make_float2(__half2float(__ushort_as_half((unsigned short)halves)), __half2float(__ushort_as_half((unsigned short)(halves >> 16))));
}

// Where the warps of a block leave what they have for each other, in shared memory.
struct SplitMeeting {
  unsigned* out;    // halves [SPLIT_WARPS, BUNDLE, head_dim], not yet divided by the sum of weights
  float2* softmax;  // [SPLIT_WARPS, BUNDLE]: the largest scaled score, the sum of weights
  int head_dim;

  // A warp's own, of head lane / 4.
  __device__ __forceinline__ void leave(int chunk, const float (&from)[16], float2 its_softmax) const {
    int lane = lane_index(), place = threadIdx.x / 32 * BUNDLE + lane / 4, d = chunk * CHUNK + lane % 4 * 16;
    if (d < head_dim)
      for (int i = 0; i < 16; i += 8)
        *(uint4*)&out[(place * head_dim + d + i) / 2] = make_uint4(pack_halves(from[i], from[i + 1]), pack_halves(from[i + 2], from[i + 3]),
                                                                   pack_halves(from[i + 4], from[i + 5]), pack_halves(from[i + 6], from[i + 7]));
    if (d == 0) softmax[place] = its_softmax;
  }

  // A warp that has no position leaves this.
  __device__ __forceinline__ void leave_nothing() const {
    int lane = lane_index();
    if (lane < BUNDLE) softmax[threadIdx.x / 32 * BUNDLE + lane] = make_float2(-INFINITY, 0);
  }

  // Behind a barrier: over all warps, the mean of values in dimensions d and d + 1 of `head`; what belongs to it, the
  // largest scaled score and the sum of weights, goes to `all`.
  __device__ __forceinline__ float2 meet(int head, int d, float2* all) const {
    float2 theirs[SPLIT_WARPS], total = make_float2(0, 0);
    float largest = -INFINITY, sum = 0;
#pragma unroll
    for (int w = 0; w < SPLIT_WARPS; w++) {
      theirs[w] = softmax[w * BUNDLE + head];
      largest = fmaxf(largest, theirs[w].x);
    }
#pragma unroll
    for (int w = 0; w < SPLIT_WARPS; w++) {
      float correction = exp2f(theirs[w].x - largest);
      float2 its = as_floats(theirs[w].y > 0 ? out[((w * BUNDLE + head) * head_dim + d) / 2] : 0u);
      sum += theirs[w].y * correction;
      total.x += its.x * correction;
      total.y += its.y * correction;
    }
    *all = make_float2(largest, sum);
    return make_float2(__fdividef(total.x, sum), __fdividef(total.y, sum));
  }
};
