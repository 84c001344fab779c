// Products of a quantised matrix with a vector in int8, four products an instruction (`__dp4a`).
//
// The matrix lies in tiles of four rows, its columns in pairs of blocks of 32. Eight blocks lie side by side, those of a
// pair in four rows, so that eight lanes load 128 bytes in a row, and a warp does so in four tiles at once:
//   Q4_0  uint4 nibbles[pairs][2 blocks][4 rows]            half scales[pairs][2 blocks][4 rows]     two's complement
//   Q8_0  uint4 values[pairs][2 halves][2 blocks][4 rows]   half scales[pairs][2 blocks][4 rows]
// Warps share the columns, not the rows: a warp needs the activations of its own pairs and no others, and what the warps
// have summed for a row meets in shared memory.
#pragma once
#include <cuda_fp16.h>
#include "warp.cuh"

#define TILE_ROWS 4
#define WARPS 8          // that multiply
#define Q4_0_PAIR 9      // of 16 bytes: eight blocks of nibbles, and their scales
#define Q8_0_PAIR 17

// 64 activations in int8: what a pair of blocks is multiplied with.
struct __align__(16) Q8Pair {
  signed char values[64];
  float scales[2];
  float unused[2];
};

// A warp quantises pairs `first`, first + WARPS, ... below `pairs`, COUNT at most, each block of 32 by its largest value.
// The lane brings activations 2 lane and 2 lane + 1 of each.
template <int COUNT>
__device__ __forceinline__ void quantise(const float2 (&v)[COUNT], Q8Pair* x, int first, int pairs) {
  int lane = lane_index();
  float largest[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) largest[i] = fmaxf(fabsf(v[i].x), fabsf(v[i].y));
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2)
#pragma unroll
    for (int i = 0; i < COUNT; i++) largest[i] = fmaxf(largest[i], __shfl_xor_sync(FULL_WARP, largest[i], mask));
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    float inverse = __fdividef(127, fmaxf(largest[i], 1e-30f));
    char2 two = make_char2((signed char)__float2int_rn(v[i].x * inverse), (signed char)__float2int_rn(v[i].y * inverse));
    Q8Pair* to = &x[first + i * WARPS];
    if (first + i * WARPS < pairs) {
      ((char2*)to->values)[lane] = two;
      if (lane % 16 == 0) to->scales[lane / 16] = largest[i] * (1 / 127.0f);
    }
  }
  __syncwarp();
}

// A block of 32 activations in a lane's registers.
struct Q8Block {
  int values[8];
  float scale;

  __device__ __forceinline__ void load(const Q8Pair* pair, int block) {
    const int4* from = (const int4*)(pair->values + 32 * block);
    int4 low = from[0], high = from[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
    scale = pair->scales[block];
  }
};

// 16 times the product of 32 weights and 32 activations. A nibble at the top of a byte is a signed byte, 16 times the
// weight: one mask for the high nibbles, a shift more for the low ones.
__device__ __forceinline__ int dot_q4_0(uint4 w, const Q8Block& x) {
  const unsigned top = 0xf0f0f0f0;
  int dot = __dp4a((int)(w.x << 4 & top), x.values[0], 0);
  dot = __dp4a((int)(w.y << 4 & top), x.values[1], dot);
  dot = __dp4a((int)(w.z << 4 & top), x.values[2], dot);
  dot = __dp4a((int)(w.w << 4 & top), x.values[3], dot);
  dot = __dp4a((int)(w.x & top), x.values[4], dot);
  dot = __dp4a((int)(w.y & top), x.values[5], dot);
  dot = __dp4a((int)(w.z & top), x.values[6], dot);
  return __dp4a((int)(w.w & top), x.values[7], dot);
}

// The product of 32 weights in int8 and 32 activations.
__device__ __forceinline__ int dot_q8_0(uint4 first, uint4 second, const Q8Block& x) {
  int dot = __dp4a((int)first.x, x.values[0], 0);
  dot = __dp4a((int)first.y, x.values[1], dot);
  dot = __dp4a((int)first.z, x.values[2], dot);
  dot = __dp4a((int)first.w, x.values[3], dot);
  dot = __dp4a((int)second.x, x.values[4], dot);
  dot = __dp4a((int)second.y, x.values[5], dot);
  dot = __dp4a((int)second.z, x.values[6], dot);
  return __dp4a((int)second.w, x.values[7], dot);
}

// 16 bytes that are read once: past L1, which would only lose what is read again.
__device__ __forceinline__ uint4 load_once(const uint4* p) {
#if defined(SOVEREIGN_SIMT)
  return *p;
#else
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
#endif
}

// Where tiles lie: in global memory, one behind the other. (persistent/2_bulk.cu has tiles in shared memory.)
struct TilesInMemory {
  const char* first;
  int bytes;  // of a tile

  __device__ __forceinline__ TilesInMemory(const uint4* matrix, int row, int tile_size) : first((const char*)(matrix + (size_t)row / TILE_ROWS * tile_size)), bytes(tile_size * 16) {}
  __device__ __forceinline__ void wait(int count) const {}
  __device__ __forceinline__ const char* tile(int t) const { return first + (size_t)t * bytes; }
  __device__ __forceinline__ uint4 load(const char* p) const { return load_once((const uint4*)p); }
};

// What the warps have summed, [rows][warp]: an odd row, so that 16 rows of a column lie in 16 banks.
typedef float Partial[WARPS + 1];

// Four tiles at a time, GROUPS times at most; a lane takes a block of a row in each. The loads of all groups, and of
// UNROLL pairs, are under way together.
template <int PAIR, int GROUPS, int UNROLL, class Tiles>
__device__ __forceinline__ void multiply_groups(const Tiles& tiles, int count, int pairs, const Q8Pair* x, Partial* partial) {
  int lane = lane_index(), warp = warp_index();
  int block = lane / 4 % 2, place = lane % 8;
  const char* tile[GROUPS];
  float sum[GROUPS];
#pragma unroll
  for (int g = 0; g < GROUPS; g++) tile[g] = tiles.tile(min(4 * g + lane / 8, count - 1)), sum[g] = 0;

#pragma unroll UNROLL
  for (int pair = warp; pair < pairs; pair += WARPS) {
    Q8Block activations;
    activations.load(&x[pair], block);
    int weights_at = (pair * (PAIR - 1) + place) * 16, scale_at = (pairs * (PAIR - 1) + pair) * 16 + place * 2;
    if (PAIR == Q4_0_PAIR) activations.scale /= 16;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      uint4 w = tiles.load(tile[g] + weights_at);
      int dot = PAIR == Q4_0_PAIR ? dot_q4_0(w, activations) : dot_q8_0(w, tiles.load(tile[g] + weights_at + 128), activations);
      sum[g] += activations.scale * __half2float(*(const half*)(tile[g] + scale_at)) * (float)dot;
    }
  }
#pragma unroll
  for (int g = 0; g < GROUPS; g++) {
    float both = sum[g] + __shfl_xor_sync(FULL_WARP, sum[g], 4);  // the pair's two blocks
    int row = (4 * g + lane / 8) * TILE_ROWS + lane % 4;
    if (block == 0 && row < count * TILE_ROWS) partial[row][warp] = both;
  }
}

// partial[row][this warp] = the sum over this warp's pairs, for all rows of `count` tiles, at most MOST_TILES. Every warp
// of WARPS calls it, with what it has quantised itself in x[pair], pair = warp, warp + WARPS, ...
#define MOST_TILES 24
template <int PAIR, class Tiles>
__device__ __noinline__ void multiply(Tiles tiles, int count, int pairs, const Q8Pair* x, Partial* partial) {
  if (count == 0) return;
  tiles.wait(count);
  if (count <= 4) multiply_groups<PAIR, 1, 4>(tiles, count, pairs, x, partial);
  else if (count <= 8) multiply_groups<PAIR, 2, 2>(tiles, count, pairs, x, partial);
  else multiply_groups<PAIR, 6, PAIR == Q4_0_PAIR ? 2 : 1>(tiles, count, pairs, x, partial);
}

// The sum over WARPS neighbouring lanes, in each of them.
__device__ __forceinline__ float sum_over_warps(float value) {
  for (int mask = WARPS / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(FULL_WARP, value, mask);
  return value;
}

// Behind a barrier: `then(row, sums)` for every even row of `rows`, called by one lane, with the sums of that row and the
// next. WARPS lanes take two rows.
template <class Then> __device__ __forceinline__ void for_row_pairs(const Partial* partial, int rows, Then then) {
  int lane = lane_index();
  for (int first = 64 / WARPS * warp_index(); first < rows; first += 64) {
    int row = first + lane / WARPS * 2, from = min(row, rows - 2);
    float2 sums = make_float2(sum_over_warps(partial[from][lane % WARPS]), sum_over_warps(partial[from + 1][lane % WARPS]));
    if (row < rows && lane % WARPS == 0) then(row, sums);
  }
}

// 1 / rms(x) from each warp's sum of squares, behind a barrier, in every thread.
__device__ __forceinline__ float inverse_rms(const float* squares, int dim, float eps) {
  return rsqrtf(__fdividef(sum_over_warps(squares[lane_index() % WARPS]), dim) + eps);
}

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1 + __expf(-x)); }
