// Each of several sequences attends to its own cached positions, in a single pass: attention:online_softmax, with a block
// for a query head of a sequence. A sequence that has ended costs a block that leaves at once.
#include "kv.cuh"
#include "warp.cuh"

#define MAX_WARPS 8
#define MAX_HEAD_DIM 128
#define PER_LANE (MAX_HEAD_DIM / 32)

extern "C" __global__ void attention_batch(const float* q,       // [count, heads, head_dim]
                                           const KV* keys,       // [count, context, kv_heads, head_dim]
                                           const KV* values,     // [count, context, kv_heads, head_dim]
                                           half* out,            // [count, heads, head_dim]
                                           const int* position,  // [count]
                                           const int* active,    // [count], 0 for a sequence that has ended
                                           int heads, int kv_heads, int head_dim, int context, int count) {
  __shared__ float warp_largest[MAX_WARPS], warp_sums[MAX_WARPS], warp_out[MAX_WARPS][MAX_HEAD_DIM];
  int sequence = blockIdx.x / heads, head = blockIdx.x % heads, kv_head = head / (heads / kv_heads);
  if (!active[sequence]) return;  // the whole block leaves together
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int length = position[sequence] + 1;
  size_t stride = (size_t)kv_heads * head_dim, first = (size_t)sequence * context * stride + kv_head * head_dim;

  // lane l keeps dimensions l, l + 32, ... of the query and of the output
  float query[PER_LANE], total[PER_LANE];
  float scale = rsqrtf((float)head_dim);
  for (int i = 0; i < PER_LANE; i++) {
    int d = lane + 32 * i;
    query[i] = d < head_dim ? q[(size_t)blockIdx.x * head_dim + d] * scale : 0;
    total[i] = 0;
  }

  float largest = -INFINITY, sum = 0;
  for (int t = warp; t < length; t += warps) {
    const KV* key = keys + first + t * stride;
    const KV* value = values + first + t * stride;
    float score = 0;
    for (int i = 0; i < PER_LANE; i++)
      if (lane + 32 * i < head_dim) score += query[i] * to_float(key[lane + 32 * i]);
    score = warp_sum(score);

    float now = fmaxf(largest, score);
    float correction = expf(largest - now), weight = expf(score - now);
    largest = now;
    sum = sum * correction + weight;
    for (int i = 0; i < PER_LANE; i++)
      if (lane + 32 * i < head_dim) total[i] = total[i] * correction + weight * to_float(value[lane + 32 * i]);
  }

  // the warps' results meet: bring all to the largest maximum, then add
  for (int i = 0; i < PER_LANE; i++) warp_out[warp][lane + 32 * i] = total[i];
  if (lane == 0) {
    warp_largest[warp] = largest;
    warp_sums[warp] = sum;
  }
  __syncthreads();
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float most = -INFINITY, whole = 0, result = 0;
    for (int w = 0; w < warps; w++) most = fmaxf(most, warp_largest[w]);
    for (int w = 0; w < warps; w++) {
      float correction = expf(warp_largest[w] - most);  // 0 for a warp that had no position
      whole += warp_sums[w] * correction;
      result += warp_out[w][d] * correction;
    }
    store(out + (size_t)blockIdx.x * head_dim + d, result / whole);
  }
}
