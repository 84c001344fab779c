// Causal attention for many tokens on Tensor Cores: each attends to every position up to its own.
//
// A block takes 64 queries of one head, a warp 16 of them, and goes along keys and values 64 positions at a time.
// Scores stay in registers: as mma leaves a tile of them, so it takes them as the left factor of the product with the
// values. The softmax is online, as in attention:online_softmax, with a maximum and a sum for each query. A row of a
// tile in shared memory is 16 chunks of 8 halves; chunk c of row r lies at c ^ r % 8, against bank conflicts.
#include "kv.cuh"
#include "mma.cuh"
#include "warp.cuh"

#define QUERIES 64  // a block
#define KEYS 64     // a step
#define MAX_HEAD_DIM 128
#define CHUNKS (MAX_HEAD_DIM / 8)

__device__ __forceinline__ uint4* chunk(uint4* tile, int row, int c) { return tile + row * CHUNKS + (c ^ row % 8); }

// Eight neighbours of the cache as halves.
__device__ __forceinline__ uint4 load_8(const half* p) { return *(const uint4*)p; }
__device__ __forceinline__ uint4 load_8(const float* p) {
  return make_uint4(pack_halves(p[0], p[1]), pack_halves(p[2], p[3]), pack_halves(p[4], p[5]), pack_halves(p[6], p[7]));
}

extern "C" __global__ void __launch_bounds__(128)
    attention_tokens(const half* q,        // [count, heads, head_dim]
                     const KV* keys,       // [context, kv_heads, head_dim]
                     const KV* values,     // [context, kv_heads, head_dim]
                     half* out,            // [count, heads, head_dim]
                     const int* position,  // [1], of the first token
                     int heads, int kv_heads, int head_dim, int count) {
  __shared__ uint4 key_tile[KEYS * CHUNKS], value_tile[KEYS * CHUNKS];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int head = blockIdx.x % heads, first_query = blockIdx.x / heads * QUERIES, kv_head = head / (heads / kv_heads);
  int start = *position, length = start + min(first_query + QUERIES, count);  // positions that the last query sees
  size_t stride = (size_t)kv_heads * head_dim;
  int chunks = head_dim / 8;
  float scale = rsqrtf((float)head_dim);

  // this lane's rows of the warp's tiles: two queries, 8 apart
  int query[2] = {first_query + warp * 16 + lane / 4, first_query + warp * 16 + lane / 4 + 8};
  unsigned a[CHUNKS / 2][4] = {};
#pragma unroll
  for (int k = 0; k < CHUNKS / 2; k++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (k * 16 < head_dim && query[e % 2] < count)
        a[k][e] = *(const unsigned*)(q + ((size_t)query[e % 2] * heads + head) * head_dim + k * 16 + lane % 4 * 2 + e / 2 * 8);

  float total[CHUNKS][4] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int first_key = 0; first_key < length; first_key += KEYS) {
    __syncthreads();  // nobody reads the tiles any more
    for (int i = threadIdx.x; i < KEYS * chunks; i += blockDim.x) {
      int row = i / chunks, c = i % chunks;
      size_t from = (first_key + row) * stride + kv_head * head_dim + c * 8;
      bool there = first_key + row < length;
      *chunk(key_tile, row, c) = there ? load_8(keys + from) : make_uint4(0, 0, 0, 0);
      *chunk(value_tile, row, c) = there ? load_8(values + from) : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();

    // scores of 16 queries and 64 keys
    float scores[KEYS / 8][4] = {};
#pragma unroll
    for (int j = 0; j < KEYS / 8; j += 2)
#pragma unroll
      for (int k = 0; k < CHUNKS / 2; k++) {
        if (k * 16 >= head_dim) break;
        unsigned two[4];
        load_matrices(two, chunk(key_tile, j * 8 + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
        unsigned b[2][2] = {{two[0], two[1]}, {two[2], two[3]}};
        mma_16x8x16(scores[j], a[k], b[0]);
        mma_16x8x16(scores[j + 1], a[k], b[1]);
      }

    // to weights: exp(score - the largest so far), and what was summed up before is brought to the same maximum
    float now[2] = {largest[0], largest[1]};
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        bool seen = first_key + j * 8 + lane % 4 * 2 + e % 2 <= start + query[e / 2];
        scores[j][e] = seen ? scores[j][e] * scale : -INFINITY;
        now[e / 2] = fmaxf(now[e / 2], scores[j][e]);
      }
    float correction[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      now[r] = fmaxf(now[r], __shfl_xor_sync(FULL_WARP, now[r], 1));  // four lanes share a query
      now[r] = fmaxf(now[r], __shfl_xor_sync(FULL_WARP, now[r], 2));
      correction[r] = expf(largest[r] - now[r]);
      largest[r] = now[r];
      sum[r] *= correction[r];
    }
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        scores[j][e] = expf(scores[j][e] - now[e / 2]);
        sum[e / 2] += scores[j][e];
      }
#pragma unroll
    for (int d = 0; d < CHUNKS; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) total[d][e] *= correction[e / 2];

    // weights times values
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
      unsigned weights[4] = {pack_halves(scores[2 * k][0], scores[2 * k][1]), pack_halves(scores[2 * k][2], scores[2 * k][3]),
                             pack_halves(scores[2 * k + 1][0], scores[2 * k + 1][1]),
                             pack_halves(scores[2 * k + 1][2], scores[2 * k + 1][3])};
#pragma unroll
      for (int d = 0; d < CHUNKS; d += 2) {
        if (d * 8 >= head_dim) break;
        unsigned two[4];
        load_matrices_transposed(two, chunk(value_tile, k * 16 + lane % 16, d + lane / 16));
        unsigned b[2][2] = {{two[0], two[1]}, {two[2], two[3]}};
        mma_16x8x16(total[d], weights, b[0]);
        mma_16x8x16(total[d + 1], weights, b[1]);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < 2; r++) {
    sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], 1);
    sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], 2);
  }
#pragma unroll
  for (int d = 0; d < CHUNKS; d++)
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (d * 8 < head_dim && query[r] < count)
        *(unsigned*)(out + ((size_t)query[r] * heads + head) * head_dim + d * 8 + lane % 4 * 2) =
            pack_halves(total[d][2 * r] / sum[r], total[d][2 * r + 1] / sum[r]);
}
