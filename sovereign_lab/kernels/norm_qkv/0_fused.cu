// Queries, keys and values from the residual stream in one launch: norm, quantise, multiply, rotate, remember.
//
// Each block norms all of x for itself, which is less than to wait for another launch. The root mean square is needed only
// behind the product: it scales a row's sum. Rotating takes rows 2 i and 2 i + 1, which are summed side by side.
#include "kv.cuh"
#include "vectors.cuh"

#define ROWS 16

extern "C" __global__ void __launch_bounds__(256, 2)
norm_qkv(const uint4* W,         // [(heads + 2 * kv_heads) * head_dim / 4] tiles: wq, wk, wv
         const float* x,         // [blocks_per_row * 32]
         const float* norm,      // [blocks_per_row * 32]
         const float* inv_freq,  // [rope_dim / 2]
         const int* position,    // [1]
         float* q,               // [heads, head_dim]
         KV* keys,               // [context, kv_heads, head_dim]
         KV* values,
         int heads, int kv_heads, int head_dim, int rope_dim, int blocks_per_row, float eps) {
  extern __shared__ uint4 memory[];
  Q8Pair* x8 = (Q8Pair*)memory;  // [pairs]
  __shared__ Partial partial[ROWS];
  __shared__ float squares[WARPS];
  take_vector(x, norm, blocks_per_row * 32, x8, squares);

  int first = blockIdx.x * ROWS, rows = (heads + 2 * kv_heads) * head_dim, pairs = (blocks_per_row + 1) / 2;
  TilesInMemory tiles(W, first, pairs * Q4_0_PAIR);
  multiply_rows<Q4_0_PAIR, ROWS>(tiles, tiles_of(rows, first, ROWS), pairs, x8, partial);
  __syncthreads();
  float scale = inverse_rms(squares, blocks_per_row * 32, eps);
  for_row_pairs(partial, min(ROWS, rows - first), [&](int row, float2 y) {
    int part = (first + row) / head_dim, d = (first + row) % head_dim;
    y = make_float2(y.x * scale, y.y * scale);
    if (part < heads + kv_heads && d < rope_dim) {
      float sin, cos;
      sincosf(*position * inv_freq[d / 2], &sin, &cos);
      y = make_float2(y.x * cos - y.y * sin, y.x * sin + y.y * cos);
    }
    if (part < heads) {
      *(float2*)(q + part * head_dim + d) = y;
      return;
    }
    bool key = part < heads + kv_heads;
    KV* to = (key ? keys : values) + ((size_t)*position * kv_heads + part - heads - (key ? 0 : kv_heads)) * head_dim + d;
    store(to, y.x);
    store(to + 1, y.y);
  });
}
