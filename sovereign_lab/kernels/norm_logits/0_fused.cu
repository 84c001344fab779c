// The last norm and the head in one launch, the head in Q8_0.
#include "vectors.cuh"

#define ROWS 32

extern "C" __global__ void __launch_bounds__(256, 2)
norm_logits(const uint4* W,     // [vocab / 4] tiles
            const float* x,     // [blocks_per_row * 32]
            const float* norm,  // [blocks_per_row * 32]
            float* y,           // [vocab]
            int vocab, int blocks_per_row, float eps) {
  extern __shared__ uint4 memory[];
  Q8Pair* x8 = (Q8Pair*)memory;  // [pairs]
  __shared__ Partial partial[ROWS];
  __shared__ float squares[WARPS];
  take_vector(x, norm, blocks_per_row * 32, x8, squares);

  int first = blockIdx.x * ROWS, pairs = (blocks_per_row + 1) / 2, count = tiles_of(vocab, first, ROWS);
  TilesInMemory tiles(W, first, pairs * Q8_0_PAIR);
  multiply_rows<Q8_0_PAIR, ROWS>(tiles, count, pairs, x8, partial);
  __syncthreads();
  float scale = inverse_rms(squares, blocks_per_row * 32, eps);
  for_row_pairs(partial, count * TILE_ROWS, [&](int row, float2 sums) {
    if (first + row < vocab) y[first + row] = sums.x * scale;
    if (first + row + 1 < vocab) y[first + row + 1] = sums.y * scale;
  });
}
