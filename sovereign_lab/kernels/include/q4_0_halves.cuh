// Weights in Q4_0 become halves on the fly. A nibble n put under the bits 0x6400 is the half 1024 + n, exactly: no
// conversion is needed, only a subtraction. (nibble - 8) * scale is then rounded once, to half.
#pragma once
#include "q4_0.cuh"

// The nibbles of a block as it lies in the file, where it is aligned to 2 bytes only.
__device__ __forceinline__ uint4 nibbles_of(const block_q4_0* block) {
  const unsigned short* pairs = (const unsigned short*)block->nibbles;
  return make_uint4(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16, pairs[4] | pairs[5] << 16, pairs[6] | pairs[7] << 16);
}

// Four bytes of nibbles to four halves (nibble - 8) * scale, two a register, in the order of the bytes.
__device__ __forceinline__ void halves_of_low_nibbles(unsigned bytes, half2 scale, unsigned& first, unsigned& second) {
  unsigned nibbles = bytes & 0x0f0f0f0fu;
  unsigned pairs[2] = {__byte_perm(nibbles, 0x64646464u, 0x4140), __byte_perm(nibbles, 0x64646464u, 0x4342)};
  half2 bias = __float2half2_rn(1032);
  half2 a = __hmul2(__hsub2(*(half2*)&pairs[0], bias), scale), b = __hmul2(__hsub2(*(half2*)&pairs[1], bias), scale);
  first = *(unsigned*)&a;
  second = *(unsigned*)&b;
}

// The 16 bytes of a block's nibbles to its 32 weights: four chunks of eight.
__device__ __forceinline__ void unpack_block(uint4 nibbles, half scale, uint4 (&chunks)[4]) {
  half2 both = __half2half2(scale);
  halves_of_low_nibbles(nibbles.x, both, chunks[0].x, chunks[0].y);
  halves_of_low_nibbles(nibbles.y, both, chunks[0].z, chunks[0].w);
  halves_of_low_nibbles(nibbles.z, both, chunks[1].x, chunks[1].y);
  halves_of_low_nibbles(nibbles.w, both, chunks[1].z, chunks[1].w);
  halves_of_low_nibbles(nibbles.x >> 4, both, chunks[2].x, chunks[2].y);
  halves_of_low_nibbles(nibbles.y >> 4, both, chunks[2].z, chunks[2].w);
  halves_of_low_nibbles(nibbles.z >> 4, both, chunks[3].x, chunks[3].y);
  halves_of_low_nibbles(nibbles.w >> 4, both, chunks[3].z, chunks[3].w);
}

// What lane l of a warp holds of a row's block as the left factor of two mma_16x8x16, weights 0..15 and 16..31: of each,
// elements 2t and the next, and those 8 further on; t = l % 4.
__device__ __forceinline__ void unpack_for_lane(const block_q4_0* block, int t, unsigned& first, unsigned& first_8_on,
                                                unsigned& second, unsigned& second_8_on) {
  const unsigned short* pairs = (const unsigned short*)block->nibbles;
  unsigned bytes = pairs[t] | pairs[t + 4] << 16;
  half2 scale = __half2half2(block->scale);
  halves_of_low_nibbles(bytes, scale, first, first_8_on);
  halves_of_low_nibbles(bytes >> 4, scale, second, second_8_on);
}
