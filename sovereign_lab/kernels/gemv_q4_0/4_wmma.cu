// y = W x on Tensor Cores through CUDA's warp matrices: a block takes 16 rows, and its eight warps every eighth block of
// 32 weights of each.
//
// The hardware multiplies 16 x 16 by 16 x 16. W fills the left matrix; of the right one x is a single column, and the
// other 15 are zeros, multiplied all the same. A warp unpacks its part of the rows to halves in shared memory, two lanes
// a row; rows are 40 halves apart there, since 32 would put every fourth row into the same banks.
#include "q4_0_halves.cuh"
#include "wmma.cuh"

#define TILE 16
#define STEP 40  // halves from row to row in shared memory
#define WARPS 8

extern "C" __global__ void gemv_q4_0(const block_q4_0* W,  // [rows, blocks_per_row]
                                     const float* x,       // [blocks_per_row * 32]
                                     float* y,             // [rows]
                                     int rows, int blocks_per_row) {
  __shared__ __align__(32) half w_tiles[WARPS][TILE * STEP], x_tiles[WARPS][TILE * STEP];
  __shared__ __align__(32) float y_tiles[WARPS][TILE * TILE];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_row = blockIdx.x * TILE;
  half *w_tile = w_tiles[warp], *x_tile = x_tiles[warp];  // [row, k], [column, k]
  for (int i = lane; i < TILE * STEP; i += 32) x_tile[i] = __float2half(0);

  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
  wmma::fill_fragment(sums, 0.0f);

  int my_row = lane / 2, my_half = lane % 2;
  const block_q4_0* blocks = W + (size_t)min(first_row + my_row, rows - 1) * blocks_per_row;
  for (int k = warp; k < blocks_per_row; k += WARPS) {
    uint4 chunks[4];
    unpack_block(nibbles_of(blocks + k), blocks[k].scale, chunks);
    __syncwarp();  // all have loaded the last step's fragments
    uint4* to = (uint4*)(w_tile + my_row * STEP) + my_half * 2;
    to[0] = my_half ? chunks[2] : chunks[0];
    to[1] = my_half ? chunks[3] : chunks[1];
    x_tile[lane] = __float2half(x[k * 32 + lane]);
    __syncwarp();

    for (int part = 0; part < 32; part += TILE) {
      wmma::load_matrix_sync(a, w_tile + part, STEP);
      wmma::load_matrix_sync(b, x_tile + part, STEP);
      wmma::mma_sync(sums, a, b, sums);
    }
  }

  wmma::store_matrix_sync(y_tiles[warp], sums, TILE, wmma::mem_row_major);
  __syncthreads();
  int row = threadIdx.x;
  if (row >= TILE || first_row + row >= rows) return;
  float sum = 0;
  for (int w = 0; w < WARPS; w++) sum += y_tiles[w][row * TILE];
  y[first_row + row] = sum;
}
