// Go to the next position. Behind the tokens that are given (a prompt, or a text to be scored) the chosen token
// becomes the next one, and the best is noted beside it; within them nothing is overwritten.
extern "C" __global__ void advance(const int* following,  // [1], the token that was chosen
                                   const int* best,       // [1], the most likely one
                                   int* tokens,           // [context + 1]
                                   int* argmaxes,         // [context + 1]
                                   int* position,         // [1]
                                   const int* given)      // [1], how many tokens are given
{
  int next = *position + 1;
  if (next >= *given) {
    tokens[next] = *following;
    argmaxes[next] = *best;
  }
  *position = next;
}
