// Every sequence that has not ended takes its chosen token as the next one and goes to its next position; the best token
// is noted beside it. It has ended when it stands at its last token, or when the token is one that ends a text. From
// then on it stays where it is.
extern "C" __global__ void advance_batch(const int* following,  // [count], the tokens that were chosen
                                         const int* best,       // [count], the most likely ones
                                         const int* ends,       // [ends_count], tokens that end a text
                                         const int* last,       // [count], the index of a sequence's last token
                                         int* tokens,           // [count, context + 1]
                                         int* argmaxes,         // [count, context + 1]
                                         int* position,         // [count]
                                         int* active,           // [count], 0 for a sequence that has ended
                                         int ends_count, int context, int count) {
  int sequence = blockIdx.x * blockDim.x + threadIdx.x;
  if (sequence >= count || !active[sequence]) return;
  int next = position[sequence] + 1, token = following[sequence];
  size_t to = (size_t)sequence * (context + 1) + next;
  tokens[to] = token;
  argmaxes[to] = best[sequence];
  position[sequence] = next;

  bool ended = next >= last[sequence];
  for (int i = 0; i < ends_count; i++) ended = ended || token == ends[i];
  if (ended) active[sequence] = 0;
}
