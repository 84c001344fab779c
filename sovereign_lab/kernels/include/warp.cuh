// Reductions over the 32 lanes of a warp. Every lane of the warp must call them.
#pragma once

#define FULL_WARP 0xffffffffu
#ifndef INFINITY  // NVRTC has no math.h
#define INFINITY __int_as_float(0x7f800000)
#endif

// The sum over the warp, in lane 0 (other lanes hold partial sums).
__device__ __forceinline__ float warp_sum_to_lane_0(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(FULL_WARP, value, offset);
  return value;
}

// The sum over the warp, in every lane.
__device__ __forceinline__ float warp_sum(float value) {
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(FULL_WARP, value, mask);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
  for (int mask = 16; mask > 0; mask /= 2) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, mask));
  return value;
}

// threadIdx.x / 32, as a value that the compiler knows to be the same in all lanes: what depends on it alone is then a
// branch of the whole warp, and needs no code for lanes that part.
__device__ __forceinline__ int warp_index() { return __shfl_sync(FULL_WARP, (int)threadIdx.x / 32, 0); }

// threadIdx.x % 32, read anew wherever it stands: what is worked out from it is not kept in registers through a long loop.
__device__ __forceinline__ int lane_index() {
#if defined(SOVEREIGN_SIMT)
  return threadIdx.x % 32;
#else
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
#endif
}
