// y = W x with W in tiles: a lane loads a whole block of 32 weights with one instruction, where the layout of the file,
// 18 bytes a block, allowed two bytes at most. The arithmetic is as before: float by float.
//
// A warp a tile: eight lanes side by side take the eight blocks of a pair in four rows.
#include "tiles.cuh"

extern "C" __global__ void gemv_tiles(const uint4* W,  // [rows / 4] tiles
                                      const float* x,  // [blocks_per_row * 32]
                                      float* y,        // [rows]
                                      int rows, int blocks_per_row) {
  int lane = threadIdx.x % 32, tile = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (tile * TILE_ROWS >= rows) return;  // the whole warp leaves together

  int pairs = (blocks_per_row + 1) / 2;
  const uint4* nibbles = W + (size_t)tile * pairs * Q4_0_PAIR;
  const half* scales = (const half*)(nibbles + pairs * (Q4_0_PAIR - 1));
  float sum = 0;
  for (int pair = lane / 8; pair < pairs; pair += 4) {
    int at = pair * 8 + lane % 8, block = 2 * pair + lane / 4 % 2;
    if (block >= blocks_per_row) continue;  // the last pair may be half a one
    uint4 w = load_once(nibbles + at);
    unsigned words[4] = {w.x, w.y, w.z, w.w};
    const float4* x4 = (const float4*)(x + block * 32);
    float dot = 0;
    for (int i = 0; i < 4; i++) {
      float4 low = x4[i], high = x4[i + 4];  // weights 4 i and on, and those 16 further on
      int w0 = (int)words[i];
      dot += (float)(w0 << 28 >> 28) * low.x + (float)(w0 << 20 >> 28) * low.y +
             (float)(w0 << 12 >> 28) * low.z + (float)(w0 << 4 >> 28) * low.w;
      dot += (float)(w0 << 24 >> 28) * high.x + (float)(w0 << 16 >> 28) * high.y +
             (float)(w0 << 8 >> 28) * high.z + (float)(w0 >> 28) * high.w;
    }
    sum += __half2float(scales[at]) * dot;
  }

  for (int mask = 4; mask < 32; mask *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, mask);  // lanes of the same row
  int row = tile * TILE_ROWS + lane;
  if (lane < TILE_ROWS && row < rows) y[row] = sum;
}
