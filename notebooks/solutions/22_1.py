from sovereign_lab.notebook.exercises import check

# Three slots: whoever is at step s has every word of step s - 1, so all have read the words of step s - 2, and their
# slot can be poisoned for step s + 1. The fence stands between the poison and the note on one side and the word on the
# other.
mine = """\
#include "messages.cuh"
#include "warp.cuh"

extern "C" __global__ void relay(unsigned* words,  // [3, blocks], NOT_YET everywhere
                                 unsigned* notes,  // [steps, blocks]
                                 unsigned* sums,   // [steps, blocks]
                                 int steps) {
  int lane = lane_index(), blocks = gridDim.x, me = blockIdx.x;
  unsigned sum = 0;
  for (int step = 0; step < steps; step++) {
    unsigned *now = words + step % 3 * blocks, *next = words + (step + 1) % 3 * blocks;
    if (lane == 0) {
      say(next + me, NOT_YET);
      notes[step * blocks + me] = sum % 1000 + me;
      __threadfence();
      say(now + me, sum % 1000 + 7 * me + step);
    }
    unsigned word = lane < blocks ? await(now + lane) : 0;
    __threadfence();
    __syncwarp();
    for (int mask = 16; mask > 0; mask /= 2) word += __shfl_xor_sync(FULL_WARP, word, mask);
    sum = word + notes[step * blocks + (me + 1) % blocks];
    if (lane == 0) sums[step * blocks + me] = sum;
  }
}
"""

check("22.1", mine)
