// The first half of the feed forward step from the residual stream in one launch: norm, quantise, gate, up, SwiGLU.
#include "vectors.cuh"

#define ROWS 32

extern "C" __global__ void __launch_bounds__(256, 2)
norm_ffn(const uint4* W,     // [2 * rows / 4] tiles: row 2 i is gate's row i, row 2 i + 1 is up's
         const float* x,     // [blocks_per_row * 32]
         const float* norm,  // [blocks_per_row * 32]
         float* hidden,      // [rows]
         int rows, int blocks_per_row, float eps) {
  extern __shared__ uint4 memory[];
  Q8Pair* x8 = (Q8Pair*)memory;  // [pairs]
  __shared__ Partial partial[ROWS];
  __shared__ float squares[WARPS];
  take_vector(x, norm, blocks_per_row * 32, x8, squares);

  int first = blockIdx.x * ROWS, pairs = (blocks_per_row + 1) / 2;
  TilesInMemory tiles(W, first, pairs * Q4_0_PAIR);
  multiply_rows<Q4_0_PAIR, ROWS>(tiles, tiles_of(2 * rows, first, ROWS), pairs, x8, partial);
  __syncthreads();
  float scale = inverse_rms(squares, blocks_per_row * 32, eps);
  for_row_pairs(partial, min(ROWS, 2 * rows - first), [&](int row, float2 y) {
    hidden[(first + row) / 2] = silu(y.x * scale) * (y.y * scale);
  });
}
