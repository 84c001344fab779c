// Go to the next position. Behind the tokens that are given (a prompt, or a text to be scored) the best token so
// far becomes the next one; within them nothing is overwritten.
extern "C" __global__ void advance(const int* best,   // [1]
                                   int* tokens,       // [context + 1]
                                   int* position,     // [1]
                                   const int* given)  // [1], how many tokens are given
{
  int next = *position + 1;
  if (next >= *given) tokens[next] = *best;
  *position = next;
}
