// The logits with the head in Q8_0: a byte a weight and a scale for 32, where FP32 moves four times as much. Products of
// int8 with int8 by `__dp4a`.
#include "vectors.cuh"

#define ROWS 32

extern "C" __global__ void __launch_bounds__(256, 2)
logits_q8_0(const uint4* W,  // [vocab / 4] tiles
            const float* x,  // [blocks_per_row * 32]
            float* y,        // [vocab]
            int vocab, int blocks_per_row) {
  extern __shared__ uint4 memory[];
  Q8Pair* x8 = (Q8Pair*)memory;  // [pairs]
  __shared__ Partial partial[ROWS];
  take_vector(x, nullptr, blocks_per_row * 32, x8, nullptr);

  int first = blockIdx.x * ROWS, pairs = (blocks_per_row + 1) / 2, count = tiles_of(vocab, first, ROWS);
  TilesInMemory tiles(W, first, pairs * Q8_0_PAIR);
  multiply_rows<Q8_0_PAIR, ROWS>(tiles, count, pairs, x8, partial);
  __syncthreads();
  for_row_pairs(partial, count * TILE_ROWS, [&](int row, float2 sums) {
    if (first + row < vocab) y[first + row] = sums.x;
    if (first + row + 1 < vocab) y[first + row + 1] = sums.y;
  });
}
