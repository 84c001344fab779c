// x += W y: the product goes straight to the residual stream.
#include "vectors.cuh"

#define ROWS 16

extern "C" __global__ void __launch_bounds__(256, 2)
gemv_add(const uint4* W,  // [rows / 4] tiles
         const float* y,  // [blocks_per_row * 32]
         float* x,        // [rows], the residual stream
         int rows, int blocks_per_row) {
  extern __shared__ uint4 memory[];
  Q8Pair* y8 = (Q8Pair*)memory;  // [pairs]
  __shared__ Partial partial[ROWS];
  take_vector<6>(y, nullptr, blocks_per_row * 32, y8, nullptr);

  int first = blockIdx.x * ROWS, pairs = (blocks_per_row + 1) / 2, count = tiles_of(rows, first, ROWS);
  TilesInMemory tiles(W, first, pairs * Q4_0_PAIR);
  multiply_rows<Q4_0_PAIR, ROWS>(tiles, count, pairs, y8, partial);
  __syncthreads();
  for_row_pairs(partial, count * TILE_ROWS, [&](int row, float2 sums) {
    if (first + row < rows) x[first + row] += sums.x;
    if (first + row + 1 < rows) x[first + row + 1] += sums.y;
  });
}
