// y = x W^T (+ y) for few tokens on Tensor Cores: a block takes only 16 rows, so that there are blocks for every
// multiprocessor, and its eight warps share the depth between them. Their sums meet in shared memory at the end.
//
// As in gemv_q4_0:mma a lane unpacks what it has loaded into its own part of a fragment; the columns are tokens, eight
// to an mma. A sum does not mind the order of its terms: lane t takes the weights 4t to 4t + 3 of each 16 in place of
// the four that mma names, of W one word a row and of x eight bytes a token, and both factors agree.
#include "mma.cuh"
#include "q4_0_halves.cuh"

#define WARPS 8
#define ROWS 16    // of W, a block
#define TOKENS 64  // a block
#define TILES (TOKENS / 8)

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    gemm_q4_0_batch(const uint4* nibbles,  // [rows, blocks_per_row], 16 bytes a block of 32 weights
                    const half2* scales,   // [rows, (blocks_per_row + 1) / 2]
                    const half* x,         // [count, blocks_per_row * 32]
                    float* y,              // [count, rows]
                    int rows, int blocks_per_row, int count, int accumulate) {
  __shared__ float partial[WARPS][TOKENS][ROWS + 1];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, t = lane % 4;
  int token_tiles = (count + TOKENS - 1) / TOKENS;  // neighbouring blocks share rows of W
  int first_row = blockIdx.x / token_tiles * ROWS, first_token = blockIdx.x % token_tiles * TOKENS;
  int pairs = (blocks_per_row + 1) / 2;  // of blocks: 32 bytes of nibbles, a sector
  size_t my_rows[2];
  for (int r = 0; r < 2; r++) my_rows[r] = min(first_row + group + 8 * r, rows - 1);

  float sums[TILES][4] = {};
  for (int pair = warp; pair < pairs; pair += WARPS) {
    half2 scale[2];
    for (int r = 0; r < 2; r++) scale[r] = scales[my_rows[r] * pairs + pair];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int k = pair * 2 + i;
      if (k >= blocks_per_row) break;
      unsigned a[2][4];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        unsigned bytes = ((const unsigned*)(nibbles + my_rows[r] * blocks_per_row + k))[t];
        half2 both = __half2half2(i ? scale[r].y : scale[r].x);
        halves_of_low_nibbles(bytes, both, a[0][r], a[0][r + 2]);
        halves_of_low_nibbles(bytes >> 4, both, a[1][r], a[1][r + 2]);
      }
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        if (first_token + n * 8 >= count) break;
        int token = min(first_token + n * 8 + group, count - 1);  // columns behind the last token are not kept
        const uint2* fours = (const uint2*)(x + ((size_t)token * blocks_per_row + k) * 32);
        uint2 low = fours[t], high = fours[t + 4];
        unsigned b[2][2] = {{low.x, low.y}, {high.x, high.y}};
        mma_16x8x16(sums[n], a[0], b[0]);
        mma_16x8x16(sums[n], a[1], b[1]);
      }
    }
  }

#pragma unroll
  for (int n = 0; n < TILES; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) partial[warp][n * 8 + t * 2 + e % 2][group + e / 2 * 8] = sums[n][e];
  __syncthreads();
  for (int i = threadIdx.x; i < TOKENS * ROWS; i += blockDim.x) {
    int token = i / ROWS, row = i % ROWS;
    if (first_token + token >= count || first_row + row >= rows) continue;
    float sum = 0;
    for (int w = 0; w < WARPS; w++) sum += partial[w][token][row];
    float* out = y + (size_t)(first_token + token) * rows + first_row + row;
    *out = accumulate ? *out + sum : sum;
  }
}
