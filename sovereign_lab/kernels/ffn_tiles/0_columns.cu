// hidden = silu(W_gate x) * (W_up x), the rows of gate and up in turn in one matrix of tiles: both rows of a pair meet in
// the lanes that sum them.
#include "vectors.cuh"

#define ROWS 32

extern "C" __global__ void __launch_bounds__(256, 2)
ffn_tiles(const uint4* W,  // [2 * rows / 4] tiles: row 2 i is gate's row i, row 2 i + 1 is up's
          const float* x,  // [blocks_per_row * 32]
          float* hidden,   // [rows]
          int rows, int blocks_per_row) {
  extern __shared__ uint4 memory[];
  Q8Pair* x8 = (Q8Pair*)memory;  // [pairs]
  __shared__ Partial partial[ROWS];
  take_vector(x, nullptr, blocks_per_row * 32, x8, nullptr);

  int first = blockIdx.x * ROWS, pairs = (blocks_per_row + 1) / 2;
  TilesInMemory tiles(W, first, pairs * Q4_0_PAIR);
  multiply_rows<Q4_0_PAIR, ROWS>(tiles, tiles_of(2 * rows, first, ROWS), pairs, x8, partial);
  __syncthreads();
  for_row_pairs(partial, min(ROWS, 2 * rows - first), [&](int row, float2 y) { hidden[(first + row) / 2] = silu(y.x) * y.y; });
}
