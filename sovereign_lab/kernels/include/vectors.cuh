// A block's warps take a vector that earlier launches have written: each its own pairs, quantised.
#pragma once
#include "tiles.cuh"

// Normed but for the root mean square where there is a `norm`; the warp's sum of squares then goes to `squares`.
template <int MOST = 4>
__device__ __forceinline__ void take_vector(const float* from, const float* norm, int columns, Q8Pair* x, float* squares) {
  int lane = lane_index(), warp = warp_index(), pairs = (columns + 63) / 64;
  float sum = 0;
  for (int first = warp; first < pairs; first += MOST * WARPS) {
    float2 v[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++) {
      int column = (first + i * WARPS) * 64 + 2 * lane;
      v[i] = column < columns ? *(const float2*)(from + column) : make_float2(0, 0);
      sum += v[i].x * v[i].x + v[i].y * v[i].y;
      if (norm && column < columns) {
        float2 weight = *(const float2*)(norm + column);
        v[i] = make_float2(v[i].x * weight.x, v[i].y * weight.y);
      }
    }
    quantise<MOST>(v, x, first, pairs);
  }
  if (!norm) return;
  sum = warp_sum(sum);
  if (lane == 0) squares[warp] = sum;
}

// `multiply` for a block of 16 or 32 rows, in place: no other sizes, and no call. Kernels with it say
// __launch_bounds__(256, 2): nvcc would save registers for more blocks, and then has one load wait for another.
template <int PAIR, int ROWS>
__device__ __forceinline__ void multiply_rows(const TilesInMemory& tiles, int count, int pairs, const Q8Pair* x,
                                              Partial* partial) {
  multiply_groups<PAIR, ROWS / 16, 64 / ROWS>(tiles, count, pairs, x, partial);
}

// Tiles of a block that owns `owned` rows from `first` on, of `rows`.
__device__ __forceinline__ int tiles_of(int rows, int first, int owned) {
  return (min(owned, rows - first) + TILE_ROWS - 1) / TILE_ROWS;
}
