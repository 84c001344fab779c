// Q4_0: 32 weights in 18 bytes. Weight i of a block is (nibble - 8) * scale; the low nibbles of the 16 bytes
// hold weights 0..15, the high nibbles weights 16..31.
#pragma once
#include <cuda_fp16.h>

struct block_q4_0 {
  half scale;
  unsigned char nibbles[16];
};
static_assert(sizeof(block_q4_0) == 18, "a Q4_0 block is 18 bytes, so blocks are aligned to 2 bytes only");
