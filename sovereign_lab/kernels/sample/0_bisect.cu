// drawn = a token drawn from softmax(logits / temperature) over the fewest likeliest tokens that hold top_p.
// No sort: the threshold is found by trying. Each trial adds up the mass of a whole vocabulary.
#include "sampling.cuh"

extern "C" __global__ void sample(const float* logits,  // [vocab]
                                  const int* best,      // [1], the argmax
                                  const float* choice,  // [2]: temperature > 0, top_p
                                  const int* seed,      // [1]
                                  const int* position,  // [1]
                                  int* drawn,           // [1]
                                  int vocab) {
  __shared__ Mass partial[32];
  float temperature = choice[0], top_p = choice[1];
  if (*best < 0 || *best >= vocab) {  // no logit is a number
    if (threadIdx.x == 0) *drawn = *best;
    return;
  }
  float highest = logits[*best];
  Kept kept = keep_top_p(logits, vocab, highest, top_p, partial);
  draw_kept(logits, vocab, highest, kept, temperature, random_bits(*seed, *position), *best, drawn, partial);
}
