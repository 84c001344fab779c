// Copies from global to shared memory that no thread waits for: one thread asks for a run of bytes, and an arrival
// (`mbarrier`) tells all others that it is there. sm_90.
#pragma once
#include "messages.cuh"

typedef unsigned long long Arrival;  // in shared memory

#if !defined(SOVEREIGN_SIMT)  // which has its own of these: devices/simt/shim/pipeline.h
// Before the first copy, by one thread; a barrier must follow.
__device__ __forceinline__ void arrival_init(Arrival* a) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"((unsigned)__cvta_generic_to_shared(a)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// `bytes`, a multiple of 16, between addresses that are; the arrival's next phase ends when all are there. What is read once
// a token leaves L2 first, so that the rest may stay.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, unsigned bytes, Arrival* a) {
  unsigned to = (unsigned)__cvta_generic_to_shared(shared), signal = (unsigned)__cvta_generic_to_shared(a);
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(signal), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               ::"r"(to), "l"(global), "r"(bytes), "r"(signal), "l"(policy) : "memory");
}

// Whether phase `phase` (0, 1, 0, ...) has ended. The thread then sees what was copied.
__device__ __forceinline__ bool arrived(Arrival* a, unsigned phase) {
  unsigned done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done) : "r"((unsigned)__cvta_generic_to_shared(a)), "r"(phase) : "memory");
  return done;
}
// A barrier of the block's first `threads` threads: the others go on.
__device__ __forceinline__ void barrier_of(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }
#endif

__device__ __forceinline__ void wait_for(Arrival* a, unsigned phase) {
  while (!arrived(a, phase)) yield();
}
