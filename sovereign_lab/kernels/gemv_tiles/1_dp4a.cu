// y = W x with W in tiles and x in int8: `__dp4a` multiplies four pairs of bytes and adds them up, so that 32 weights take
// eight instructions instead of 32, and no conversion.
//
// The block quantises all of x first, into shared memory; then a warp a tile, as before.
#include "vectors.cuh"

extern "C" __global__ void gemv_tiles(const uint4* W,  // [rows / 4] tiles
                                      const float* x,  // [blocks_per_row * 32]
                                      float* y,        // [rows]
                                      int rows, int blocks_per_row) {
  extern __shared__ uint4 memory[];
  Q8Pair* x8 = (Q8Pair*)memory;  // [pairs]
  take_vector(x, nullptr, blocks_per_row * 32, x8, nullptr);
  __syncthreads();

  int lane = threadIdx.x % 32, tile = blockIdx.x * WARPS + warp_index(), pairs = (blocks_per_row + 1) / 2;
  if (tile * TILE_ROWS >= rows) return;  // the whole warp leaves together
  const uint4* nibbles = W + (size_t)tile * pairs * Q4_0_PAIR;
  const half* scales = (const half*)(nibbles + pairs * (Q4_0_PAIR - 1));
  float sum = 0;
  for (int pair = lane / 8; pair < pairs; pair += 4) {
    Q8Block activations;
    activations.load(&x8[pair], lane / 4 % 2);
    int at = pair * 8 + lane % 8;
    sum += activations.scale / 16 * __half2float(scales[at]) * (float)dot_q4_0(load_once(nibbles + at), activations);
  }

  for (int mask = 4; mask < 32; mask *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, mask);  // lanes of the same row
  int row = tile * TILE_ROWS + lane;
  if (lane < TILE_ROWS && row < rows) y[row] = sum;
}
