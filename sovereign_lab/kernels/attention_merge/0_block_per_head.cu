// What the splits of a context have found meets: their means, weighed as one softmax over all positions would do it.
#include "warp.cuh"

extern "C" __global__ void attention_merge(const float* parts,     // [splits, heads, head_dim]
                                           const float2* softmax,  // [splits, heads]: largest score, sum of weights
                                           float* out,             // [heads, head_dim]
                                           const int* position,    // [1]
                                           int heads, int head_dim, int split) {  // positions of a split
  int head = blockIdx.x, splits = *position / split + 1;
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float largest = -INFINITY, sum = 0, total = 0;
    for (int s = 0; s < splits; s++) largest = fmaxf(largest, softmax[s * heads + head].x);
    for (int s = 0; s < splits; s++) {
      float2 its = softmax[s * heads + head];
      float weight = its.y * exp2f(its.x - largest);
      sum += weight;
      total += weight * parts[(s * heads + head) * head_dim + d];
    }
    out[head * head_dim + d] = total / sum;
  }
}
