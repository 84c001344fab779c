// Values passed from block to block within a launch, each its own flag: memory is poisoned, and a word that is poison no
// more has been said.
//
// Loads and stores here are relaxed atomics at the scope of the GPU: they go past L1, and a word comes whole. They order
// nothing else; what must be seen together with a message needs a fence on both sides.
#pragma once

#define NOT_YET 0xffffffffu  // as a float a NaN that no arithmetic gives: the GPU's own is 0x7fffffff

#if !defined(SOVEREIGN_SIMT)  // which has its own of these: devices/simt/shim/messages.h
__device__ __forceinline__ unsigned peek(const unsigned* p) {
  unsigned word;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(word) : "l"(p) : "memory");
  return word;
}
__device__ __forceinline__ uint2 peek(const uint2* p) {
  uint2 w;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];" : "=r"(w.x), "=r"(w.y) : "l"(p) : "memory");
  return w;
}
__device__ __forceinline__ uint4 peek(const uint4* p) {
  uint4 w;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : "l"(p) : "memory");
  return w;
}
__device__ __forceinline__ void say(unsigned* p, unsigned word) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(word) : "memory");
}
// Two words, each for itself.
__device__ __forceinline__ void say(uint2* p, uint2 words) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(words.x), "r"(words.y) : "memory");
}
__device__ __forceinline__ void yield() {}  // in loops that wait: the SIMT device lets other threads run here
#endif

__device__ __forceinline__ uint2 as_words(float2 v) { return make_uint2(__float_as_uint(v.x), __float_as_uint(v.y)); }
__device__ __forceinline__ float2 as_floats(uint2 w) { return make_float2(__uint_as_float(w.x), __uint_as_float(w.y)); }

__device__ __forceinline__ bool here(unsigned w) { return w != NOT_YET; }
__device__ __forceinline__ bool here(uint2 w) { return here(w.x) && here(w.y); }
__device__ __forceinline__ bool here(uint4 w) { return here(w.x) && here(w.y) && here(w.z) && here(w.w); }

// Waits until the words at `p` have been said. Lanes leave when theirs are there; a __syncwarp() must follow before the
// warp exchanges anything: shuffles of a warp in parts take many times as long.
template <class T> __device__ __forceinline__ T await(const T* p) {
  T words = peek(p);
  while (!here(words)) {
    yield();
    words = peek(p);
  }
  return words;
}

// The whole warp waits for COUNT words a lane, those of `at(i)`, whose loads are under way together. `words` are NOT_YET
// where they are wanted, anything else where they are not.
template <int COUNT, class T, class At> __device__ __forceinline__ void await_all(T (&words)[COUNT], At at) {
  while (true) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      if (!here(words[i])) words[i] = peek(at(i));
    bool all = true;
#pragma unroll
    for (int i = 0; i < COUNT; i++) all = all && here(words[i]);
    if (__all_sync(0xffffffffu, all)) return;
    yield();
  }
}

// A logit and its row as a message, to be compared by `better`: words that grow with the logit. Never NOT_YET.
__device__ __forceinline__ uint2 ranked(float logit, int row) {
  unsigned bits = __float_as_uint(logit), grows = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return make_uint2(min(grows, NOT_YET - 1), (unsigned)row);
}
// The larger logit's; of equal ones the first row's.
__device__ __forceinline__ uint2 better(uint2 a, uint2 b) {
  bool second = b.x > a.x || (b.x == a.x && b.y < a.y);
  return make_uint2(second ? b.x : a.x, second ? b.y : a.y);
}
