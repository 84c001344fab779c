// One query position attends, a block a split of the cached positions and a bundle of query heads that share a KV head:
// keys and values are loaded once for all of the bundle, and a long context is spread over the GPU.
//
// Each block leaves the mean over its own positions, and what is needed to weigh it against the others': the largest
// scaled score and the sum of weights. The grid covers the whole context, so that one recording serves every position.
#include "split_attention.cuh"

extern "C" __global__ void attention_split(const float* q,        // [heads, head_dim]
                                           const KV* keys,        // [context, kv_heads, head_dim]
                                           const KV* values,      // [context, kv_heads, head_dim]
                                           float* parts,          // [splits, heads, head_dim]
                                           float2* softmax,       // [splits, heads]
                                           const int* position,   // [1]
                                           int heads, int kv_heads, int head_dim, int context) {
  extern __shared__ uint4 memory[];
  __shared__ float2 softmax_met[SPLIT_WARPS * BUNDLE];
  SplitMeeting meeting = {(unsigned*)memory, softmax_met, head_dim};
  int group = heads / kv_heads, bundles_per_kv = (group + BUNDLE - 1) / BUNDLE, bundles = kv_heads * bundles_per_kv;
  int bundle = blockIdx.x % bundles, split = blockIdx.x / bundles, length = *position + 1;
  if (split * SPLIT >= length) return;
  int kv_head = bundle / bundles_per_kv, first_head = kv_head * group + bundle % bundles_per_kv * BUNDLE;
  int in_bundle = min(BUNDLE, (kv_head + 1) * group - first_head);
  int lane = lane_index(), first = split * SPLIT + warp_index() * PER_WARP, last = min((split + 1) * SPLIT, length);

  if (first < last) {
    size_t stride = (size_t)kv_heads * head_dim;
    SplitKeys k;
    SplitValues v;
    k.load(keys + kv_head * head_dim, stride, first, last, 0, head_dim);
    v.load(values + kv_head * head_dim, stride, first, last, 0, head_dim);
    float scores[4][2] = {};
    for (int chunk = 0; chunk * CHUNK < head_dim; chunk++) {
      int d = chunk * CHUNK + lane % 4 * 16;
      if (chunk) k.load(keys + kv_head * head_dim, stride, first, last, chunk, head_dim);
      unsigned halves[8] = {};
      if (d < head_dim && lane / 4 < in_bundle)
        for (int i = 0; i < 8; i++) {
          float2 two = *(const float2*)(q + (first_head + lane / 4) * head_dim + d + 2 * i);
          halves[i] = pack_halves(two.x, two.y);
        }
      add_scores(scores, halves, k);
    }
    float2 soft = softmax_weights(scores, first, last, rsqrtf((float)head_dim) * 1.44269504f);
    for (int chunk = 0; chunk * CHUNK < head_dim; chunk++) {
      if (chunk) v.load(values + kv_head * head_dim, stride, first, last, chunk, head_dim);
      float mean[16];
      weigh_values(mean, scores, v);
      meeting.leave(chunk, mean, soft);
    }
  } else {
    meeting.leave_nothing();
  }
  __syncthreads();
  for (int i = threadIdx.x; i < in_bundle * head_dim / 2; i += blockDim.x) {
    int head = i / (head_dim / 2), d = i % (head_dim / 2) * 2;
    float2 all, mean = meeting.meet(head, d, &all);
    *(float2*)(parts + (split * heads + first_head + head) * head_dim + d) = mean;
    if (d == 0) softmax[split * heads + first_head + head] = all;
  }
}
