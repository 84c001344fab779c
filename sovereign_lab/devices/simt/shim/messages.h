// Messages between the blocks of a launch, and waiting for them, for the SIMT device. kernels/include/messages.cuh has
// the same functions for a GPU. Blocks that wait for one another share an OS thread, so plain atomics are enough.
#pragma once

namespace simt {

__attribute__((noinline, cold)) inline void message_misaligned(const void* p, uint32_t bytes, bool writes, Place at) {
#if defined(SIMT_SANITIZED)
  misaligned(at.file, at.line, bytes == 4 ? "unsigned" : bytes == 8 ? "uint2" : "uint4", (uint64_t)p, bytes, writes);
#endif
  say_place();
  say("%s at %s:%d accesses %u bytes at address 0x%zx, which is not a multiple of %u bytes: a GPU faults on this", at.name,
      base_name(at.file), at.line, bytes, (size_t)p, bytes);
  fail_now();
}

#if defined(SIMT_TRACED)
#define SIMT_RECORD_MESSAGE(p, bytes, writes) record((uint64_t)(p), bytes, writes ? kStore : kLoad, __builtin_return_address(0))
#elif defined(SIMT_SANITIZED)
#define SIMT_RECORD_MESSAGE(p, bytes, writes) message_access(p, bytes, writes, __builtin_return_address(0))
#else
#define SIMT_RECORD_MESSAGE(p, bytes, writes) ((void)0)
#endif

template <uint32_t words> struct Words { uint32_t of[words]; };
template <uint32_t words> SIMT_ATOMIC Words<words> heard(const unsigned* p, Place at) {
  if (__builtin_expect((uintptr_t)p % (4 * words) != 0, 0)) message_misaligned(p, 4 * words, false, at);
  SIMT_RECORD_MESSAGE(p, 4 * words, false);
  Words<words> w;
  for (uint32_t i = 0; i < words; i++) w.of[i] = __atomic_load_n(p + i, __ATOMIC_RELAXED);
  asked_for = "a message";
  return w;
}
template <uint32_t words> SIMT_ATOMIC void said(unsigned* p, Words<words> w, Place at) {
  if (__builtin_expect((uintptr_t)p % (4 * words) != 0, 0)) message_misaligned(p, 4 * words, true, at);
  SIMT_RECORD_MESSAGE(p, 4 * words, true);
  for (uint32_t i = 0; i < words; i++) {
    activity += __atomic_load_n(p + i, __ATOMIC_RELAXED) != w.of[i];
    __atomic_store_n(p + i, w.of[i], __ATOMIC_RELAXED);
  }
}

}  // namespace simt

SIMT_INLINE unsigned peek(const unsigned* p, SIMT_HERE) {
  simt::AllMemory around;
  return simt::heard<1>(p, SIMT_PLACE_OF("peek")).of[0];
}
SIMT_INLINE uint2 peek(const uint2* p, SIMT_HERE) {
  simt::AllMemory around;
  const simt::Words<2> w = simt::heard<2>((const unsigned*)p, SIMT_PLACE_OF("peek"));
  return {w.of[0], w.of[1]};
}
SIMT_INLINE uint4 peek(const uint4* p, SIMT_HERE) {
  simt::AllMemory around;
  const simt::Words<4> w = simt::heard<4>((const unsigned*)p, SIMT_PLACE_OF("peek"));
  return {w.of[0], w.of[1], w.of[2], w.of[3]};
}
SIMT_INLINE void say(unsigned* p, unsigned word, SIMT_HERE) {
  simt::AllMemory around;
  simt::said<1>(p, {{word}}, SIMT_PLACE_OF("say"));
}
SIMT_INLINE void say(uint2* p, uint2 words, SIMT_HERE) {
  simt::AllMemory around;
  simt::said<2>((unsigned*)p, {{words.x, words.y}}, SIMT_PLACE_OF("say"));
}
SIMT_INLINE void yield(SIMT_HERE) {
  simt::AllMemory around;
  simt::yield(SIMT_PLACE_OF("yield"));
}
