// hidden = silu(W_gate x) * (W_up x) in one kernel, four neighbouring weights a lane, x loaded as float4: the fused
// kernel with the loads of gemv_q4_0's float4 step.
#include "q4_0.cuh"
#include "warp.cuh"

// The products of a lane's four weights, from one block, with its four values of x.
__device__ __forceinline__ float dot4(const block_q4_0& block, int first_byte, int shift, float4 v) {
  const unsigned char* bytes = block.nibbles + first_byte;
  float dot = (float)((bytes[0] >> shift & 15) - 8) * v.x + (float)((bytes[1] >> shift & 15) - 8) * v.y +
              (float)((bytes[2] >> shift & 15) - 8) * v.z + (float)((bytes[3] >> shift & 15) - 8) * v.w;
  return __half2float(block.scale) * dot;
}

extern "C" __global__ void ffn_swiglu(const block_q4_0* W_gate,  // [rows, blocks_per_row]
                                      const block_q4_0* W_up,    // [rows, blocks_per_row]
                                      const float* x,            // [blocks_per_row * 32]
                                      float* hidden,             // [rows]
                                      int rows, int blocks_per_row) {
  int lane = threadIdx.x % 32;
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;  // the whole warp leaves together

  const block_q4_0* gate_blocks = W_gate + (size_t)row * blocks_per_row;
  const block_q4_0* up_blocks = W_up + (size_t)row * blocks_per_row;
  const float4* x4 = (const float4*)x;
  int first_byte = lane % 4 * 4;
  int shift = lane % 8 < 4 ? 0 : 4;
  float gate = 0, up = 0;
  for (int b = lane / 8; b < blocks_per_row; b += 4) {
    float4 v = x4[b * 8 + lane % 8];
    gate += dot4(gate_blocks[b], first_byte, shift, v);
    up += dot4(up_blocks[b], first_byte, shift, v);
  }

  gate = warp_sum_to_lane_0(gate);
  up = warp_sum_to_lane_0(up);
  if (lane == 0) hidden[row] = gate / (1.0f + expf(-gate)) * up;
}
