// Three passes, with the positions spread over the warps in the last one as well.
//
// In the plain three passes a thread adds up one dimension over all positions, one after the other: a chain as long as
// the context. Here each warp takes every so many positions for all dimensions, and the warps' sums meet in shared
// memory at the end. A warp reads neighbouring dimensions of one position, so the reads are coalesced in both passes.
#include "block.cuh"
#include "kv.cuh"

#define MAX_WARPS 8
#define MAX_HEAD_DIM 128
#define PER_LANE (MAX_HEAD_DIM / 32)

extern "C" __global__ void attention(const float* q,        // [heads, head_dim]
                                     const KV* keys,        // [context, kv_heads, head_dim]
                                     const KV* values,      // [context, kv_heads, head_dim]
                                     float* scores,         // [heads, context], scratch
                                     float* out,            // [heads, head_dim]
                                     const int* position,   // [1]
                                     int heads, int kv_heads, int head_dim, int context) {
  __shared__ float partial_max[32], partial_sum[32], warp_out[MAX_WARPS][MAX_HEAD_DIM];
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

  // weighted sum of the values: a warp a position, then over the warps
  float total[PER_LANE] = {0, 0, 0, 0};
  for (int t = warp; t < length; t += warps) {
    const KV* value = values + t * stride + kv_head * head_dim;
    float weight = score[t];
    for (int i = 0; i < PER_LANE; i++)
      if (lane + 32 * i < head_dim) total[i] += weight * to_float(value[lane + 32 * i]);
  }
  for (int i = 0; i < PER_LANE; i++) warp_out[warp][lane + 32 * i] = total[i];
  __syncthreads();
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float result = 0;
    for (int w = 0; w < warps; w++) result += warp_out[w][d];
    out[head * head_dim + d] = result / sum;
  }
}
