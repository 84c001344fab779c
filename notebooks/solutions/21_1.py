from sovereign_lab.notebook.exercises import check

# Chapter 11's step, with a whole split in the place of a position: its sum of weights goes along. What an empty split
# has left is not looked at: its mean was never written, and the first of all has nothing that -inf could be
# subtracted from.
mine = """\
#include "warp.cuh"

extern "C" __global__ void attention_merge(const float* parts,     // [splits, heads, head_dim]
                                           const float2* softmax,  // [splits, heads]: largest score, sum of weights
                                           float* out,             // [heads, head_dim]
                                           const int* position,    // [1]
                                           int heads, int head_dim, int split) {  // positions of a split
  int head = blockIdx.x, splits = *position / split + 1;
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float largest = -INFINITY, sum = 0, total = 0;
    for (int s = 0; s < splits; s++) {
      float2 its = softmax[s * heads + head];
      if (its.y == 0) continue;
      float now = fmaxf(largest, its.x), correction = exp2f(largest - now), weight = its.y * exp2f(its.x - now);
      sum = sum * correction + weight;
      total = total * correction + weight * parts[(s * heads + head) * head_dim + d];
      largest = now;
    }
    out[head * head_dim + d] = total / sum;
  }
}
"""

check("21.1", mine)
