// y = W x, one block of threads a row: a thread takes whole blocks of 32 weights, every blockDim-th of the row.
//
// The partial sums meet in shared memory, halving the number of threads that add at each step, with a barrier
// between steps. A row of 2,048 weights has 64 blocks, so of 256 threads 192 have nothing to multiply.
#include "q4_0.cuh"

#define MAX_THREADS 256

extern "C" __global__ void gemv_q4_0(const block_q4_0* W,  // [rows, blocks_per_row]
                                     const float* x,       // [blocks_per_row * 32]
                                     float* y,             // [rows]
                                     int rows, int blocks_per_row) {
  __shared__ float partial[MAX_THREADS];
  int row = blockIdx.x;

  const block_q4_0* blocks = W + (size_t)row * blocks_per_row;
  float sum = 0;
  for (int b = threadIdx.x; b < blocks_per_row; b += blockDim.x) {
    const float* xb = x + b * 32;
    float dot = 0;
    for (int i = 0; i < 16; i++) {
      int byte = blocks[b].nibbles[i];
      dot += (float)((byte & 15) - 8) * xb[i] + (float)((byte >> 4) - 8) * xb[i + 16];
    }
    sum += __half2float(blocks[b].scale) * dot;
  }

  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half_of_them = blockDim.x / 2; half_of_them > 0; half_of_them /= 2) {  // blockDim.x is a power of two
    if (threadIdx.x < half_of_them) partial[threadIdx.x] += partial[threadIdx.x + half_of_them];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[row] = partial[0];
}
