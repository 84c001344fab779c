// Copies in bulk and their arrivals, and a barrier of some of a block's warps, for the SIMT device.
// kernels/include/pipeline.cuh has the same functions for a GPU.
//
// A copy happens at once here, and its phase ends with it: whoever overwrites what others still read is not found out.
// The sanitized build finds those who read what they have not waited for.
#pragma once

namespace simt {

// An arrival's 64 bits: what tells that it is one, its number in the sanitized build, how many phases have ended.
constexpr uint64_t kArrivalMark = 0x5a17, kArrivalMarkShift = 48, kArrivalNumberShift = 32;

__attribute__((noinline, cold, noreturn, format(printf, 2, 3))) inline void bulk_fault(Place at, const char* format, ...) {
  char what[512];
  va_list list;
  va_start(list, format);
  vsnprintf(what, sizeof(what), format, list);
  va_end(list);
  say_place();
  say("%s at %s:%d %s", at.name, base_name(at.file), at.line, what);
  fail_now();
}

SIMT_UNTRACED inline bool in_shared(const void* p, uint64_t bytes) {
  const uint64_t fixed = (uint64_t)(__stop_simt_shared - __start_simt_shared), dynamic = launch->dynamic_shared_bytes;
  const uint64_t in_fixed = (uint64_t)p - (uint64_t)__start_simt_shared;
  const uint64_t in_dynamic = (uint64_t)p - (uint64_t)current->block->dynamic_shared;
  return (in_fixed < fixed && bytes <= fixed - in_fixed) || (in_dynamic < dynamic && bytes <= dynamic - in_dynamic);
}

SIMT_UNTRACED inline uint64_t arrival_now(const unsigned long long* a, Place at) {
  if (!in_shared(a, 8) || (uintptr_t)a % 8) bulk_fault(at, "names an arrival that is not in the block's shared memory");
  const uint64_t state = __atomic_load_n(a, __ATOMIC_RELAXED);
  if (state >> kArrivalMarkShift != kArrivalMark)
    bulk_fault(at, "names an arrival that no arrival_init has made, or that was overwritten since");
  return state;
}

SIMT_ATOMIC void make_arrival(unsigned long long* a, Place at) {
  if (!in_shared(a, 8) || (uintptr_t)a % 8) bulk_fault(at, "names an arrival that is not in the block's shared memory");
  uint64_t number = 0;
  SIMT_SANITIZE(number = arrival_made(a, __builtin_return_address(0)));
  __atomic_store_n(a, kArrivalMark << kArrivalMarkShift | number << kArrivalNumberShift, __ATOMIC_RELAXED);
}

SIMT_ATOMIC void bulk(void* to, const void* from, uint32_t bytes, unsigned long long* a, Place at) {
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16)
    bulk_fault(at, "copies %u bytes from address 0x%zx to 0x%zx: the size and both addresses must be multiples of 16, and a "
               "GPU faults on this", bytes, (size_t)from, (size_t)to);
  if (!in_shared(to, bytes)) bulk_fault(at, "copies %u bytes to address 0x%zx, which are not in the block's shared memory",
                                        bytes, (size_t)to);
  const uint64_t state = arrival_now(a, at);
  SIMT_SANITIZE(bulk_begins(to, from, bytes, a, (uint32_t)(state >> kArrivalNumberShift & 0xffff), __builtin_return_address(0)));
#if defined(SIMT_TRACED)   // not counted: it takes another way than loads and stores
  move_bytes(to, from, bytes);
#else
  memcpy(to, from, bytes);
#endif
  // The count of phases takes the lower half, and goes round.
  __atomic_store_n(a, state >> 32 << 32 | (uint32_t)(state + 1), __ATOMIC_RELAXED);
  activity++;
}

SIMT_ATOMIC bool phase_ended(const unsigned long long* a, unsigned phase, Place at) {
  const uint64_t state = arrival_now(a, at);
  const bool ended = (state & 1) != (phase & 1);
  SIMT_SANITIZE(arrival_asked(a, (uint32_t)(state >> kArrivalNumberShift & 0xffff), ended, __builtin_return_address(0)));
  asked_for = "an arrival";
  return ended;
}

}  // namespace simt

SIMT_INLINE void arrival_init(unsigned long long* a, SIMT_HERE) {
  asm volatile("" ::: "memory");
  simt::make_arrival(a, SIMT_PLACE_OF("arrival_init"));
  asm volatile("" ::: "memory");
}
SIMT_INLINE void copy_bulk(void* shared, const void* global, unsigned bytes, unsigned long long* a, SIMT_HERE) {
  asm volatile("" ::: "memory");
  simt::bulk(shared, global, bytes, a, SIMT_PLACE_OF("copy_bulk"));
  asm volatile("" ::: "memory");
}
SIMT_INLINE bool arrived(unsigned long long* a, unsigned phase, SIMT_HERE) {
  asm volatile("" ::: "memory");
  const bool ended = simt::phase_ended(a, phase, SIMT_PLACE_OF("arrived"));
  asm volatile("" ::: "memory");
  return ended;
}
SIMT_INLINE void barrier_of(int threads, SIMT_HERE) {
  simt::AllMemory around;
  simt::named_barrier((uint32_t)threads, SIMT_PLACE_OF("barrier_of"));
}
