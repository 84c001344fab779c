// drawn = a token drawn from softmax(logits / temperature) over the fewest likeliest tokens that hold top_p.
// The few tokens at least 1e-4 times as likely as the likeliest are gathered first, and compared with each other.
#include "sampling.cuh"

#define ROOM 512
#define LOG_1E_4 -9.2103404f

extern "C" __global__ void sample(const float* logits,  // [vocab]
                                  const int* best,      // [1], the argmax
                                  const float* choice,  // [2]: temperature > 0, top_p
                                  const int* seed,      // [1]
                                  const int* position,  // [1]
                                  int* drawn,           // [1]
                                  int vocab) {
  __shared__ Mass partial[32], masses[ROOM];
  __shared__ float values[ROOM];
  __shared__ int ids[ROOM], found;
  float temperature = choice[0], top_p = choice[1];
  unsigned bits = random_bits(*seed, *position);
  if (*best < 0 || *best >= vocab) {  // no logit is a number
    if (threadIdx.x == 0) *drawn = *best;
    return;
  }
  float highest = logits[*best];

  // one pass: the mass of all, and the candidates in whatever order the threads come by
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  Mass total = 0;
  for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
    float logit = logits[i];
    Mass mass = mass_of(logit, highest);
    total += mass;
    if (logit >= highest + LOG_1E_4) {
      int slot = atomicAdd(&found, 1);
      if (slot < ROOM) {
        ids[slot] = i;
        values[slot] = logit;
        masses[slot] = mass;
      }
    }
  }
  total = block_sum(total, partial);

  // a candidate stays if those before it, likelier or equal with a lower id, do not reach top_p without it
  int room = min(ROOM, (int)blockDim.x), count = min(found, room), me = threadIdx.x;
  Mass wanted = wanted_mass(top_p, total), before = 0;
  if (me < count)
    for (int j = 0; j < count; j++)
      if (values[j] > values[me] || (values[j] == values[me] && ids[j] < ids[me])) before += masses[j];
  bool stays = me < count && before < wanted;
  bool reaches = stays && before + masses[me] >= wanted;
  if (!__syncthreads_or(reaches) || found > room || top_p >= 1) {  // the candidates do not do: look at all tokens
    Kept kept = keep_top_p(logits, vocab, highest, top_p, partial);
    draw_kept(logits, vocab, highest, kept, temperature, bits, *best, drawn, partial);
    return;
  }

  // the token in whose mass the point lies, in the order of ids
  if (me < count) masses[me] = stays ? mass_of(values[me], highest, temperature) : 0;
  __syncthreads();
  Mass lower = 0, all = 0;
  if (me < count) {
    for (int j = 0; j < count; j++) {
      all += masses[j];
      if (ids[j] < ids[me]) lower += masses[j];
    }
    Mass point = point_in(all, bits);
    if (point >= lower && point < lower + masses[me]) *drawn = ids[me];
  }
}
