// best = the index of the largest logit of every sequence, the first of several equal ones; a block a sequence. The block
// agrees on the largest value first; of the threads that hold it, the lowest index counts.
#include "warp.cuh"

#define NONE 0x7fffffff

extern "C" __global__ void argmax_batch(const float* logits,  // [count, vocab]
                                        int* best,            // [count]
                                        int vocab, int count) {
  __shared__ float warp_largest[32];
  __shared__ int lowest;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const float* mine = logits + (size_t)blockIdx.x * vocab;
  float value = -INFINITY;
  int index = NONE;
  for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
    if (mine[i] > value) {
      value = mine[i];
      index = i;
    }
  }

  float largest = warp_max(value);
  if (lane == 0) warp_largest[warp] = largest;
  if (threadIdx.x == 0) lowest = NONE;
  __syncthreads();
  largest = warp_max(lane < warps ? warp_largest[lane] : -INFINITY);
  if (value == largest) atomicMin(&lowest, index);
  __syncthreads();
  if (threadIdx.x == 0) best[blockIdx.x] = lowest < vocab ? lowest : 0;  // token 0 where no logit is a number
}
