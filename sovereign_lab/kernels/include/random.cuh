// Random numbers without a generator's state: a hash of a seed and a counter, so that the number of a position is
// the same whoever asks, in whatever order. kernels/drawing.py has the same in NumPy.
#pragma once

// Each bit of x moves about half of the bits of the result; one to one (found by search: hash-prospector, lowbias32).
__device__ __forceinline__ unsigned mixed(unsigned x) {
  x = (x ^ x >> 16) * 0x21f0aaadu;
  x = (x ^ x >> 15) * 0xd35a2d97u;
  return x ^ x >> 15;
}

// The 32 random bits of a position in the sequence of a seed; over 2^32 they are a number in [0, 1).
__device__ __forceinline__ unsigned random_bits(int seed, int position) {
  return mixed(mixed((unsigned)seed + 0x9e3779b9u) + (unsigned)position);
}
