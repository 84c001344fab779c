// hidden = silu(W_gate x) * (W_up x) in one kernel: x is read once for both matrices, and the two products never
// leave the registers. A warp a row, a lane an element, as in the coalesced gemv_q4_0.
//
// Both scales of a block travel in one shuffle, packed as two halves.
#include "q4_0.cuh"
#include "warp.cuh"

extern "C" __global__ void ffn_swiglu(const block_q4_0* W_gate,  // [rows, blocks_per_row]
                                      const block_q4_0* W_up,    // [rows, blocks_per_row]
                                      const float* x,            // [blocks_per_row * 32]
                                      float* hidden,             // [rows]
                                      int rows, int blocks_per_row) {
  int lane = threadIdx.x % 32;
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;  // the whole warp leaves together

  const block_q4_0* gate_block = W_gate + (size_t)row * blocks_per_row;
  const block_q4_0* up_block = W_up + (size_t)row * blocks_per_row;
  int byte_index = lane % 16;
  int shift = lane < 16 ? 0 : 4;
  float gate = 0, up = 0;
  for (int b = 0; b < blocks_per_row; b++, gate_block++, up_block++) {
    unsigned scales = 0;
    if (lane == 0) scales = (unsigned)__half_as_ushort(gate_block->scale) << 16 | __half_as_ushort(up_block->scale);
    scales = __shfl_sync(FULL_WARP, scales, 0);
    float gate_scale = __half2float(__ushort_as_half(scales >> 16));
    float up_scale = __half2float(__ushort_as_half(scales & 0xffff));

    float value = x[b * 32 + lane];
    gate += gate_scale * (float)((gate_block->nibbles[byte_index] >> shift & 15) - 8) * value;
    up += up_scale * (float)((up_block->nibbles[byte_index] >> shift & 15) - 8) * value;
  }

  gate = warp_sum_to_lane_0(gate);
  up = warp_sum_to_lane_0(up);
  if (lane == 0) hidden[row] = gate / (1.0f + expf(-gate)) * up;
}
