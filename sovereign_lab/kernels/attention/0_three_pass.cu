// One query position attends to all cached ones: scores, softmax, weighted sum, with barriers between them.
//
// One block a query head. Scores go through global memory, since their number grows with the context. Query head
// h uses KV head h / (heads / kv_heads): grouped-query attention repeats KV heads, it does not tile them.
#include "block.cuh"
#include "kv.cuh"

extern "C" __global__ void attention(const float* q,        // [heads, head_dim]
                                     const KV* keys,        // [context, kv_heads, head_dim]
                                     const KV* values,      // [context, kv_heads, head_dim]
                                     float* scores,         // [heads, context], scratch
                                     float* out,            // [heads, head_dim]
                                     const int* position,   // [1]
                                     int heads, int kv_heads, int head_dim, int context) {
  __shared__ float partial_max[32], partial_sum[32];
  int head = blockIdx.x, kv_head = head / (heads / kv_heads), length = *position + 1;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  size_t stride = (size_t)kv_heads * head_dim;
  float* score = scores + (size_t)head * context;
  const float* query = q + head * head_dim;

  // scores: a warp a position
  float scale = rsqrtf((float)head_dim), largest = -INFINITY;
  for (int t = warp; t < length; t += warps) {
    const KV* key = keys + t * stride + kv_head * head_dim;
    float dot = 0;
    for (int i = lane; i < head_dim; i += 32) dot += query[i] * to_float(key[i]);
    dot = warp_sum(dot) * scale;
    if (lane == 0) score[t] = dot;
    largest = fmaxf(largest, dot);
  }
  if (lane == 0) partial_max[warp] = largest;
  __syncthreads();
  largest = warp_max(lane < warps ? partial_max[lane] : -INFINITY);

  // softmax, not yet divided by its sum
  float sum = 0;
  for (int t = threadIdx.x; t < length; t += blockDim.x) {
    float weight = expf(score[t] - largest);
    score[t] = weight;
    sum += weight;
  }
  sum = block_sum(sum, partial_sum);
  __syncthreads();  // every weight is written before any thread reads those of others

  // weighted sum of the values: a thread a dimension
  for (int i = threadIdx.x; i < head_dim; i += blockDim.x) {
    const KV* value = values + kv_head * head_dim + i;
    float total = 0;
    for (int t = 0; t < length; t++) total += score[t] * to_float(value[t * stride]);
    out[head * head_dim + i] = total / sum;
  }
}
