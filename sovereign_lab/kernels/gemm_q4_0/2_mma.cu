// y = x W^T (+ y) for many tokens on Tensor Cores: a block computes a tile of 64 tokens by 128 rows, and goes along them
// 64 weights at a time. x comes by asynchronous copies; W is unpacked to halves on its way into shared memory.
//
// A row of a tile in shared memory is 64 halves, eight chunks of 16 bytes. Chunk c of row r lies at c ^ r % 8, so that
// the eight rows that ldmatrix reads at once come from different banks. Two tiles in turn: while the Tensor Cores
// work on one, the next is on its way. Each of the 4 warps keeps 32 tokens by 64 rows of y in its registers.
#include "mma.cuh"
#include "q4_0_halves.cuh"

#define TOKENS 64   // a block
#define ROWS 128    // of W, a block
#define THREADS 128
#define CHUNKS 8    // of 8 halves: 64 weights, two blocks of Q4_0

__device__ __forceinline__ uint4* chunk(uint4* tile, int row, int c) { return tile + row * CHUNKS + (c ^ row % 8); }

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_q4_0(const uint4* nibbles,  // [rows, blocks_per_row], 16 bytes a block of 32 weights
              const half2* scales,   // [rows, (blocks_per_row + 1) / 2]
              const half* x,         // [count, blocks_per_row * 32]
              float* y,              // [count, rows]
              int rows, int blocks_per_row, int count, int accumulate) {
  __shared__ uint4 x_tiles[2][TOKENS * CHUNKS], w_tiles[2][ROWS * CHUNKS];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int token_tiles = (count + TOKENS - 1) / TOKENS;  // neighbouring blocks share rows of W
  int first_row = blockIdx.x / token_tiles * ROWS, first_token = blockIdx.x % token_tiles * TOKENS;
  int depth = blocks_per_row * 32, steps = (blocks_per_row + 1) / 2;

  auto copy_x = [&](int step) {
    for (int i = threadIdx.x; i < TOKENS * CHUNKS; i += THREADS) {
      int row = i / CHUNKS, c = i % CHUNKS, k = (step * CHUNKS + c) * 8;
      bool there = first_token + row < count && k < depth;
      copy_16(chunk(x_tiles[step % 2], row, c), there ? x + (size_t)(first_token + row) * depth + k : x, there);
    }
    copies_end();
  };

  // a step, a thread brings two blocks of 32 weights: the same block of two rows, half a tile apart
  int my_row = threadIdx.x / 2, my_block = threadIdx.x % 2;
  uint4 fetched[2];
  half scale[2];
  auto fetch_w = [&](int step) {
    int b = step * 2 + my_block;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      size_t row = first_row + my_row + i * ROWS / 2;
      bool there = row < rows && b < blocks_per_row;
      fetched[i] = there ? nibbles[row * blocks_per_row + b] : make_uint4(0, 0, 0, 0);
      scale[i] = there ? ((const half*)scales)[row * steps * 2 + b] : __float2half(0);
    }
  };
  auto unpack_w = [&](int step) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint4 chunks[4];
      unpack_block(fetched[i], scale[i], chunks);
#pragma unroll
      for (int c = 0; c < 4; c++) *chunk(w_tiles[step % 2], my_row + i * ROWS / 2, my_block * 4 + c) = chunks[c];
    }
  };

  float sums[2][8][4] = {};  // [16 tokens][8 rows][as mma leaves them]
  int my_tokens = warp / 2 * 32, my_rows = warp % 2 * 64;
  copy_x(0);
  fetch_w(0);
  unpack_w(0);
  fetch_w(1);  // zeros, where there is no second step
  for (int step = 0; step < steps; step++) {
    copies_wait<0>();
    __syncthreads();  // this step's tiles are there, and nobody reads the other two any more
    if (step + 1 < steps) {
      copy_x(step + 1);
      unpack_w(step + 1);
      fetch_w(step + 2);
    }

    uint4 *x_tile = x_tiles[step % 2], *w_tile = w_tiles[step % 2];
#pragma unroll
    for (int k = 0; k < CHUNKS; k += 2) {
      unsigned a[2][4], b[8][2];
#pragma unroll
      for (int i = 0; i < 2; i++) load_matrices(a[i], chunk(x_tile, my_tokens + i * 16 + lane % 16, k + lane / 16));
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        unsigned two[4];
        load_matrices(two, chunk(w_tile, my_rows + j * 8 + lane % 8 + lane / 16 * 8, k + lane / 8 % 2));
        b[j][0] = two[0], b[j][1] = two[1], b[j + 1][0] = two[2], b[j + 1][1] = two[3];
      }
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) mma_16x8x16(sums[i][j], a[i], b[j]);
    }
  }

#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int token = first_token + my_tokens + i * 16 + lane / 4 + e / 2 * 8;
        int row = first_row + my_rows + j * 8 + lane % 4 * 2 + e % 2;
        if (token >= count || row >= rows) continue;
        float* out = y + (size_t)token * rows + row;
        *out = accumulate ? *out + sums[i][j][e] : sums[i][j][e];
      }
}
