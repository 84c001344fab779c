// A sum over a block of threads: each warp sums in registers, then the first warp sums the warps' sums.
#pragma once
#include "warp.cuh"

// The sum over the block, in every thread. `partial` is shared memory for 32 floats. blockDim.x is a multiple of
// 32; every thread of the block must call it. May be called again with the same `partial` only after a barrier.
__device__ __forceinline__ float block_sum(float value, float* partial) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  value = warp_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? partial[lane] : 0.0f);
}
