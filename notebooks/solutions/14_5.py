from sovereign_lab.notebook.exercises import check

# A row of W is a run of bytes like any other: the warp fetches it 16 bytes a lane, aligned, into shared memory, where
# odd addresses cost nothing, and takes scales and nibbles from there. The block's four warps fetch x together. Blocks
# are taken 64 at a time, so that shared memory holds them however long a row is.
mine = """\
#include "q4_0.cuh"
#include "warp.cuh"

#define WARPS 4
#define CHUNK 64                                    // blocks of 32 weights at a time
#define UNITS ((CHUNK * 18 + 15 + 15) / 16)         // 16-byte units that they can touch

extern "C" __global__ void gemv_q4_0(const block_q4_0* W,  // [rows, blocks_per_row]
                                     const float* x,       // [blocks_per_row * 32]
                                     float* y,             // [rows]
                                     int rows, int blocks_per_row) {
  __shared__ uint4 staged[WARPS][UNITS];
  __shared__ float4 staged_x[CHUNK * 8];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;  // a warp without a row stays: there are barriers

  const unsigned char* bytes = (const unsigned char*)W;
  size_t end = (size_t)rows * blocks_per_row * 18;
  int first_byte = lane % 4 * 4;
  int shift = lane % 8 < 4 ? 0 : 4;
  float sum = 0;
  for (int first = 0; first < blocks_per_row; first += CHUNK) {
    int blocks = min(CHUNK, blocks_per_row - first);
    for (int i = threadIdx.x; i < blocks * 8; i += blockDim.x) staged_x[i] = ((const float4*)x)[first * 8 + i];

    size_t start = ((size_t)row * blocks_per_row + first) * 18, from = start / 16 * 16;
    int skip = (int)(start - from), units = row < rows ? (skip + blocks * 18 + 15) / 16 : 0;
    for (int i = lane; i < units; i += 32) {
      size_t at = from + i * 16;
      if (at + 16 <= end) {
        staged[warp][i] = *(const uint4*)(bytes + at);
      } else {  // behind the last row of W nothing may be read
        for (int j = 0; at + 2 * j < end; j++)
          ((unsigned short*)&staged[warp][i])[j] = ((const unsigned short*)(bytes + at))[j];
      }
    }
    __syncthreads();

    if (row < rows) {
      const unsigned char* mine = (const unsigned char*)staged[warp] + skip;
      for (int b = lane / 8; b < blocks; b += 4) {
        const block_q4_0* block = (const block_q4_0*)(mine + b * 18);
        const unsigned short* pairs = (const unsigned short*)(block->nibbles + first_byte);
        float4 v = staged_x[b * 8 + lane % 8];
        int p = pairs[0] >> shift, q = pairs[1] >> shift;
        float dot = (float)((p & 15) - 8) * v.x + (float)((p >> 8 & 15) - 8) * v.y +
                    (float)((q & 15) - 8) * v.z + (float)((q >> 8 & 15) - 8) * v.w;
        sum += __half2float(block->scale) * dot;
      }
    }
    __syncthreads();  // all have read, before the next blocks come
  }

  sum = warp_sum_to_lane_0(sum);
  if (lane == 0 && row < rows) y[row] = sum;
}
"""

check("14.5", mine)
