// What a block needs of the messages that others have said: its warps' parts of a vector, and a query with its own key
// and value.
#pragma once
#include "messages.cuh"
#include "split_attention.cuh"
#include "tiles.cuh"

// This warp's pairs of a vector, as soon as they have been said: normed but for the root mean square, and quantised.
// MOST pairs at a time, whose loads and reductions overlap.
template <int MOST>
__device__ __noinline__ void take(const float* from, const float* norm, int columns, Q8Pair* x, float* squares) {
  int lane = lane_index(), warp = warp_index(), pairs = (columns + 63) / 64;
  float sum = 0;
  for (int first = warp; first < pairs; first += MOST * WARPS) {
    auto column = [&](int i) { return (first + i * WARPS) * 64 + 2 * lane; };
    uint2 words[MOST];
    float2 v[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++) {
      bool there = column(i) < columns;
      words[i] = there ? make_uint2(NOT_YET, NOT_YET) : make_uint2(0, 0);
      v[i] = there && norm ? __ldg((const float2*)(norm + column(i))) : make_float2(1, 1);
    }
    await_all(words, [&](int i) { return (const uint2*)(from + column(i)); });
#pragma unroll
    for (int i = 0; i < MOST; i++) {
      float2 said = as_floats(words[i]);
      sum += said.x * said.x + said.y * said.y;
      v[i] = make_float2(v[i].x * said.x, v[i].y * said.y);
    }
    quantise<MOST>(v, x, first, pairs);
  }
  if (!norm) return;
  sum = warp_sum(sum);
  if (lane == 0) squares[warp] = sum;
}

// The same of what attention gives, in halves.
template <int MOST>
__device__ __noinline__ void take_halves(const unsigned* from, int columns, Q8Pair* x) {
  int lane = lane_index(), pairs = (columns + 63) / 64;
  for (int first = warp_index(); first < pairs; first += MOST * WARPS) {
    auto column = [&](int i) { return (first + i * WARPS) * 64 + 2 * lane; };
    unsigned words[MOST];
    float2 v[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++) words[i] = column(i) < columns ? NOT_YET : 0;
    await_all(words, [&](int i) { return from + column(i) / 2; });
#pragma unroll
    for (int i = 0; i < MOST; i++) v[i] = as_floats(words[i]);
    quantise<MOST>(v, x, first, pairs);
  }
}

// This warp's positions, from `first` on, of one split: what the bundle's heads take of them goes to `meeting`. Position
// `now` is not in memory yet; its key and value are said, as the queries are.
__device__ __noinline__ void attend(const unsigned* qkv_said, const KV* keys, const KV* values, int heads, int kv_heads, int head_dim,
                                    int first_head, int in_bundle, int first, int last, int now, SplitMeeting meeting) {
  int lane = lane_index(), kv_head = first_head / (heads / kv_heads), end = min(last, now);
  size_t stride = (size_t)kv_heads * head_dim;
  const unsigned *k_said = qkv_said + (heads + kv_head) * head_dim / 2, *v_said = k_said + kv_heads * head_dim / 2;
  keys += kv_head * head_dim, values += kv_head * head_dim;
  SplitKeys k;
  SplitValues v;
  k.load(keys, stride, first, end, 0, head_dim);
  v.load(values, stride, first, end, 0, head_dim);
  int mine = now - first;  // this warp has the token's own position where that is less than PER_WARP
  bool key_here = mine % 8 == lane / 4 && mine < PER_WARP, value_here = mine % 8 / 2 == lane % 4 && mine < PER_WARP;
  float scores[4][2] = {};
  uint4 own_value;
  for (int chunk = 0; chunk * CHUNK < head_dim; chunk++) {
    int d = chunk * CHUNK + lane % 4 * 16, d_value = lane / 4 * 8;
    if (chunk) k.load(keys, stride, first, end, chunk, head_dim);
    const unsigned* q_said = qkv_said + (first_head + lane / 4) * head_dim / 2;
    bool wanted[5] = {lane / 4 < in_bundle, lane / 4 < in_bundle, key_here, key_here, value_here && chunk == 0};
    uint4 said[5];
#pragma unroll
    for (int i = 0; i < 5; i++) {
      unsigned word = wanted[i] && (i < 4 ? d : d_value) < head_dim ? NOT_YET : 0;
      said[i] = make_uint4(word, word, word, word);
    }
    await_all(said, [&](int i) {
      return (const uint4*)(i < 2 ? q_said + d / 2 + 4 * i : i < 4 ? k_said + d / 2 + 4 * (i - 2) : v_said + d_value / 2);
    });
    if (chunk == 0) own_value = said[4];
#pragma unroll
    for (int t = 0; t < 4; t++)
      if (key_here && mine / 8 == t) k.put(t, said[2], said[3]);
    unsigned q[8] = {said[0].x, said[0].y, said[0].z, said[0].w, said[1].x, said[1].y, said[1].z, said[1].w};
    add_scores(scores, q, k);
  }
  float2 soft = softmax_weights(scores, first, last, rsqrtf((float)head_dim) * 1.44269504f);
  for (int chunk = 0; chunk * CHUNK < head_dim; chunk++) {
    int d = chunk * CHUNK + lane / 4 * 8;
    if (chunk) {
      v.load(values, stride, first, end, chunk, head_dim);
      if (value_here && d < head_dim) own_value = await((const uint4*)(v_said + d / 2));
      __syncwarp();
    }
#pragma unroll
    for (int t = 0; t < 8; t++)
      if (value_here && mine / 8 == t / 2 && mine % 2 == t % 2) v.put(t / 2, t % 2, own_value);
    float mean[16];
    weigh_values(mean, scores, v);
    meeting.leave(chunk, mean, soft);
  }
}

// What the splits of a context have said of a head meets, and is said: the block's warps take splits in turn, and meet in
// shared memory, `met` [WARPS] and `met_softmax` [WARPS].
template <class Barrier>
__device__ __forceinline__ void merge_splits(const unsigned* parts, const uint2* softmax, int splits, int head, int heads, int head_dim,
                                             float2 (*met)[64], float2* met_softmax, unsigned* attended, Barrier barrier) {
  int lane = lane_index(), warp = warp_index();
  float2 soft = make_float2(-INFINITY, 0);
  for (int i = lane; i < (head_dim + 63) / 64 * 32; i += 32) {
    float2 v = make_float2(0, 0);
    soft = make_float2(-INFINITY, 0);
    for (int first = warp; first < splits; first += 4 * WARPS) {  // all that is said of four splits is under way together
      uint2 theirs[4];
      unsigned words[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        bool wanted = first + k * WARPS < splits && i < head_dim / 2;
        theirs[k] = wanted ? make_uint2(NOT_YET, NOT_YET) : make_uint2(0, 0);
        words[k] = wanted ? peek(parts + ((first + k * WARPS) * heads + head) * head_dim / 2 + i) : 0;
      }
      await_all(theirs, [&](int k) { return softmax + (first + k * WARPS) * heads + head; });
      await_all(words, [&](int k) { return parts + ((first + k * WARPS) * heads + head) * head_dim / 2 + i; });
#pragma unroll
      for (int k = 0; k < 4; k++) {
        if (first + k * WARPS >= splits) break;
        float2 its = as_floats(theirs[k]), value = as_floats(words[k]);
        float largest = fmaxf(soft.x, its.x), before = exp2f(soft.x - largest), weight = its.y * exp2f(its.x - largest);
        v = make_float2(v.x * before + value.x * weight, v.y * before + value.y * weight);
        soft = make_float2(largest, soft.y * before + weight);
      }
    }
    if (i < head_dim / 2) met[warp][i] = v;
  }
  if (lane == 0) met_softmax[warp] = soft;
  barrier();
  for (int i = threadIdx.x; i < head_dim / 2; i += 32 * WARPS) {
    float largest = -INFINITY, sum = 0;
    float2 v = make_float2(0, 0);
    for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, met_softmax[w].x);
    for (int w = 0; w < WARPS; w++) {
      float correction = exp2f(met_softmax[w].x - largest);
      sum += met_softmax[w].y * correction;
      v = make_float2(v.x + met[w][i].x * correction, v.y + met[w][i].y * correction);
    }
    say(attended + head * head_dim / 2 + i, pack_halves(__fdividef(v.x, sum), __fdividef(v.y, sum)));
  }
}
