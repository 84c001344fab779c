// Top-p sampling by one block. Probabilities are whole numbers here, 2^40 for the likeliest token: the sum of whole
// numbers does not depend on the order, so any thread that adds the same tokens finds the same sum, to the last bit.
#pragma once
#include "random.cuh"
#include "warp.cuh"

typedef unsigned long long Mass;

// Which tokens stay: those above a logit, and those at it up to an id.
struct Kept {
  float lowest;
  int last;
  __device__ __forceinline__ bool holds(float logit, int id) const {
    return logit > lowest || (logit == lowest && id <= last);
  }
};

// exp((logit - highest) / temperature) as a whole number; 0 for a logit that is -inf or NaN, or where highest is.
__device__ __forceinline__ Mass mass_of(float logit, float highest, float temperature = 1) {
  const float one = 1099511627776.0f;  // 2^40: 150,000 of them stay below 2^58
  float below = logit - highest;
  if (!(below > -INFINITY && below < INFINITY)) return 0;
  return (Mass)(below == 0 ? one : expf(below / temperature) * one);  // 0 / 0 where the temperature underflowed
}

__device__ __forceinline__ Mass warp_sum(Mass mass) {
  for (int mask = 16; mask > 0; mask /= 2) mass += __shfl_xor_sync(FULL_WARP, mass, mask);
  return mass;
}

// The sum over the block, in every thread. `partial` is shared memory for 32 sums; every thread must call it.
__device__ __forceinline__ Mass block_sum(Mass mass, Mass* partial) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  mass = warp_sum(mass);
  __syncthreads();  // all have read what the last call left
  if (lane == 0) partial[warp] = mass;
  __syncthreads();
  return warp_sum(lane < warps ? partial[lane] : 0);
}

// The mass of the kept tokens at temperature 1, in every thread.
__device__ __forceinline__ Mass kept_mass(const float* logits, int vocab, float highest, Kept kept, Mass* partial) {
  Mass mass = 0;
  for (int i = threadIdx.x; i < vocab; i += blockDim.x)
    if (kept.holds(logits[i], i)) mass += mass_of(logits[i], highest);
  return block_sum(mass, partial);
}

// The least mass that reaches top_p, below 1, of a total.
__device__ __forceinline__ Mass wanted_mass(float top_p, Mass total) {
  Mass wanted = (Mass)ceil((double)top_p * (double)total);
  return wanted > 0 ? wanted : 1;  // one token always stays
}

// The place of a float among all floats in ascending order, and back.
__device__ __forceinline__ unsigned place_of(float value) {
  unsigned bits = __float_as_uint(value);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float float_at(unsigned place) {
  return __uint_as_float(place >> 31 ? place & 0x7fffffffu : ~place);
}

// The fewest likeliest tokens whose mass is at least top_p of all: the highest logit that still reaches it, found by
// halving the floats that it can be, at most 32 times; then, of equals at that logit, the lowest ids.
__device__ __forceinline__ Kept keep_top_p(const float* logits, int vocab, float highest, float top_p, Mass* partial) {
  Kept kept = {-INFINITY, vocab - 1};
  if (top_p >= 1) return kept;
  Mass wanted = wanted_mass(top_p, kept_mass(logits, vocab, highest, kept, partial));

  unsigned low = place_of(highest - 32), high = place_of(highest);  // exp(-32) * 2^40 < 1: no mass further down
  while (low < high) {
    unsigned middle = high - (high - low) / 2;
    Kept trial = {float_at(middle), vocab - 1};
    if (kept_mass(logits, vocab, highest, trial, partial) >= wanted) low = middle;
    else high = middle - 1;
  }
  kept.lowest = float_at(low);

  if (kept_mass(logits, vocab, highest, kept, partial) - mass_of(kept.lowest, highest) >= wanted) {
    int first = 0;
    while (first < kept.last) {
      Kept trial = {kept.lowest, first + (kept.last - first) / 2};
      if (kept_mass(logits, vocab, highest, trial, partial) >= wanted) kept.last = trial.last;
      else first = trial.last + 1;
    }
  }
  return kept;
}

// total * bits / 2^32, rounded down: a point in [0, total).
__device__ __forceinline__ Mass point_in(Mass total, unsigned bits) {
  return (total >> 32) * bits + ((total & 0xffffffffu) * bits >> 32);
}

// The kept token in whose mass at this temperature a point lies, walking in the order of ids; `otherwise` where
// nothing has any mass. A warp takes a stretch of the vocabulary, so that whole stretches can be passed over.
__device__ __forceinline__ void draw_kept(const float* logits, int vocab, float highest, Kept kept, float temperature,
                                          unsigned bits, int otherwise, int* drawn, Mass* partial) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int stretch = (vocab + warps - 1) / warps;
  int first = warp * stretch, end = min(first + stretch, vocab);
  Mass mass = 0;
  for (int i = first + lane; i < end; i += 32)
    if (kept.holds(logits[i], i)) mass += mass_of(logits[i], highest, temperature);
  mass = warp_sum(mass);
  __syncthreads();  // all have read what the last block_sum left
  if (lane == 0) partial[warp] = mass;
  __syncthreads();

  Mass total = 0, before = 0;
  for (int w = 0; w < warps; w++) total += partial[w];
  for (int w = 0; w < warp; w++) before += partial[w];
  if (total == 0 && threadIdx.x == 0) *drawn = otherwise;
  Mass point = point_in(total, bits);
  if (point < before || point >= before + mass) return;  // not in this warp's stretch

  // The point lies in one of the next 32 tokens, or beyond; a running sum over the lanes says where.
  for (int start = first; start < end; start += 32) {
    int i = start + lane;
    Mass mine = i < end && kept.holds(logits[i], i) ? mass_of(logits[i], highest, temperature) : 0;
    Mass up_to = mine;
    for (int step = 1; step < 32; step *= 2) {
      Mass lower = __shfl_up_sync(FULL_WARP, up_to, step);
      if (lane >= step) up_to += lower;
    }
    if (point >= before + up_to - mine && point < before + up_to) *drawn = i;
    before += __shfl_sync(FULL_WARP, up_to, 31);
    if (point < before) return;
  }
}
