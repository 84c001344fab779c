// y = x W^T (+ y) on Tensor Cores through CUDA's warp matrices: a warp computes 16 tokens by 16 rows, 32 weights of each
// row at a time. The hardware takes 16 tokens or none: with fewer, the rest of the tile is zeros.
//
// A warp unpacks its rows of W to halves in shared memory, two lanes a row, and brings the tokens beside them; rows are
// 40 halves apart there, since 32 would put every fourth row into the same banks. load_matrix_sync deals both out into
// fragments, whose layout over the lanes CUDA does not tell.
#include "q4_0_halves.cuh"
#include "wmma.cuh"

#define TILE 16
#define STEP 40  // halves from row to row in shared memory
#define WARPS 4

extern "C" __global__ void gemm_q4_0(const uint4* nibbles,  // [rows, blocks_per_row], 16 bytes a block of 32 weights
                                     const half2* scales,   // [rows, (blocks_per_row + 1) / 2]
                                     const half* x,         // [count, blocks_per_row * 32]
                                     float* y,              // [count, rows]
                                     int rows, int blocks_per_row, int count, int accumulate) {
  __shared__ __align__(32) half x_tiles[WARPS][TILE * STEP], w_tiles[WARPS][TILE * STEP];
  __shared__ __align__(32) float y_tiles[WARPS][TILE * TILE];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int token_tiles = (count + TILE - 1) / TILE, tile = blockIdx.x * WARPS + warp;
  int first_row = tile / token_tiles * TILE, first_token = tile % token_tiles * TILE;
  if (first_row >= rows) return;  // the whole warp leaves together

  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
  wmma::fill_fragment(sums, 0.0f);

  int my_row = lane / 2, my_half = lane % 2;
  half *x_tile = x_tiles[warp], *w_tile = w_tiles[warp];
  for (int k = 0; k < blocks_per_row; k++) {
    uint4 zeros = make_uint4(0, 0, 0, 0);
    uint4* x_to = (uint4*)(x_tile + my_row * STEP) + my_half * 2;
    bool token_there = first_token + my_row < count;
    const uint4* x_from = (const uint4*)(x + ((size_t)(first_token + my_row) * blocks_per_row + k) * 32) + my_half * 2;
    x_to[0] = token_there ? x_from[0] : zeros;
    x_to[1] = token_there ? x_from[1] : zeros;

    size_t row = min(first_row + my_row, rows - 1);
    half2 pair = scales[row * ((blocks_per_row + 1) / 2) + k / 2];
    uint4 chunks[4];
    unpack_block(nibbles[row * blocks_per_row + k], k % 2 ? pair.y : pair.x, chunks);
    uint4* w_to = (uint4*)(w_tile + my_row * STEP) + my_half * 2;
    w_to[0] = my_half ? chunks[2] : chunks[0];
    w_to[1] = my_half ? chunks[3] : chunks[1];
    __syncwarp();

    for (int part = 0; part < 32; part += TILE) {
      wmma::load_matrix_sync(a, x_tile + part, STEP);
      wmma::load_matrix_sync(b, w_tile + part, STEP);
      wmma::mma_sync(sums, a, b, sums);
    }
    __syncwarp();
  }

  float* y_tile = y_tiles[warp];
  wmma::store_matrix_sync(y_tile, sums, TILE, wmma::mem_row_major);
  __syncwarp();
  for (int i = lane; i < TILE * TILE; i += 32) {
    int token = first_token + i / TILE, row = first_row + i % TILE;
    if (token >= count || row >= rows) continue;
    float* out = y + (size_t)token * rows + row;
    *out = accumulate ? *out + y_tile[i] : y_tile[i];
  }
}
