// y = W x with W in tiles and x in int8, the columns shared among the warps: each quantises its own part of x, keeps it
// in registers, and multiplies it with all rows of the block.
//
// No barrier between quantising and multiplying, and x is loaded from shared memory once, not once a tile. The warps
// meet behind the product, in shared memory.
#include "vectors.cuh"

#define ROWS 16

extern "C" __global__ void __launch_bounds__(256, 2)
gemv_tiles(const uint4* W,  // [rows / 4] tiles
           const float* x,  // [blocks_per_row * 32]
           float* y,        // [rows]
           int rows, int blocks_per_row) {
  extern __shared__ uint4 memory[];
  Q8Pair* x8 = (Q8Pair*)memory;  // [pairs]
  __shared__ Partial partial[ROWS];
  take_vector(x, nullptr, blocks_per_row * 32, x8, nullptr);

  int first = blockIdx.x * ROWS, pairs = (blocks_per_row + 1) / 2, count = tiles_of(rows, first, ROWS);
  TilesInMemory tiles(W, first, pairs * Q4_0_PAIR);
  multiply_rows<Q4_0_PAIR, ROWS>(tiles, count, pairs, x8, partial);
  __syncthreads();
  for_row_pairs(partial, count * TILE_ROWS, [&](int row, float2 sums) {
    if (first + row < rows) y[first + row] = sums.x;
    if (first + row + 1 < rows) y[first + row + 1] = sums.y;
  });
}
