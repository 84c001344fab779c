// best = the index of the largest logit, the first of several equal ones. One block for the whole vocabulary.
#include "warp.cuh"

// Keep the larger of two (value, index) pairs, the smaller index on a tie, over the warp; valid in every lane.
__device__ __forceinline__ void warp_argmax(float& value, int& index) {
  for (int mask = 16; mask > 0; mask /= 2) {
    float other_value = __shfl_xor_sync(FULL_WARP, value, mask);
    int other_index = __shfl_xor_sync(FULL_WARP, index, mask);
    if (other_value > value || (other_value == value && other_index < index)) {
      value = other_value;
      index = other_index;
    }
  }
}

extern "C" __global__ void argmax(const float* logits,  // [vocab]
                                  int* best,            // [1]
                                  int vocab) {
  __shared__ float values[32];
  __shared__ int indices[32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float value = -INFINITY;
  int index = 0x7fffffff;
  for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
    if (logits[i] > value) {
      value = logits[i];
      index = i;
    }
  }
  warp_argmax(value, index);
  if (lane == 0) {
    values[warp] = value;
    indices[warp] = index;
  }
  __syncthreads();

  value = lane < warps ? values[lane] : -INFINITY;
  index = lane < warps ? indices[lane] : 0x7fffffff;
  warp_argmax(value, index);
  if (threadIdx.x == 0) *best = index;
}
