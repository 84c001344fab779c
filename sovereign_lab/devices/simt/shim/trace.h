// The traced build: every load and store of the kernel, with its address and the place that made it.
//
// The compiler's thread sanitiser instruments each access with a call; the library is linked without that
// sanitiser's runtime and these are the calls. Only addresses in registered arrays and in shared memory are kept,
// so the accesses of the shim itself, and of a lane's own stack, fall away.
#pragma once
#include <dlfcn.h>

#include "runtime.h"

#define SIMT_CALLBACK extern "C" SIMT_UNTRACED __attribute__((visibility("default")))

namespace simt {

struct Event {
  uint64_t address;
  uint64_t place;       // the return address of the call
  uint32_t block, thread, epoch;
  uint16_t size;
  uint8_t store, shared;
};
struct Range { uint64_t start, end; };

static Range* ranges;
static uint32_t range_count;
static Event* events;
static uint64_t event_count, event_room;
static uint64_t traced_first, traced_step;    // blocks first, first + step, ... are kept

SIMT_UNTRACED inline void record(uint64_t address, uint32_t size, bool store, void* place) {
  Fiber* f = current;
  if (!f || f == &scheduler || !f->block) return;
  bool shared = (address >= (uint64_t)__start_simt_shared && address < (uint64_t)__stop_simt_shared) ||
                (launch->dynamic_shared_bytes && address >= (uint64_t)f->block->dynamic_shared &&
                 address < (uint64_t)f->block->dynamic_shared + launch->dynamic_shared_bytes);
  if (!shared) {
    uint32_t r = 0;
    while (r < range_count && (address < ranges[r].start || address >= ranges[r].end)) r++;
    if (r == range_count) return;
  }
  const Block& b = *f->block;
  uint64_t block = ((uint64_t)b.index.z * launch->grid.y + b.index.y) * launch->grid.x + b.index.x;
  if (block < traced_first || (block - traced_first) % traced_step) return;
  if (event_count == event_room) {
    event_room = event_room ? 2 * event_room : 1 << 16;
    Event* grown = (Event*)realloc(events, event_room * sizeof(Event));
    if (!grown) abort();
    events = grown;
  }
  uint32_t thread = (f->thread.z * launch->block.y + f->thread.y) * launch->block.x + f->thread.x;
  events[event_count++] = {address, (uint64_t)place, (uint32_t)block, thread, f->epoch, (uint16_t)size, store, shared};
}

}  // namespace simt

#define SIMT_PLACE __builtin_return_address(0)
#define SIMT_ACCESS(bytes)                                                                                              \
  SIMT_CALLBACK void __tsan_read##bytes(void* p) { simt::record((uint64_t)p, bytes, false, SIMT_PLACE); }    \
  SIMT_CALLBACK void __tsan_write##bytes(void* p) { simt::record((uint64_t)p, bytes, true, SIMT_PLACE); }
SIMT_ACCESS(1)
SIMT_ACCESS(2)
SIMT_ACCESS(4)
SIMT_ACCESS(8)
SIMT_ACCESS(16)
#undef SIMT_ACCESS
#define SIMT_UNALIGNED(bytes)                                                                                                    \
  SIMT_CALLBACK void __tsan_unaligned_read##bytes(void* p) { simt::record((uint64_t)p, bytes, false, SIMT_PLACE); }   \
  SIMT_CALLBACK void __tsan_unaligned_write##bytes(void* p) { simt::record((uint64_t)p, bytes, true, SIMT_PLACE); }
SIMT_UNALIGNED(2)
SIMT_UNALIGNED(4)
SIMT_UNALIGNED(8)
SIMT_UNALIGNED(16)
#undef SIMT_UNALIGNED
SIMT_CALLBACK void __tsan_read_range(void* p, long n) { simt::record((uint64_t)p, (uint32_t)n, false, SIMT_PLACE); }
SIMT_CALLBACK void __tsan_write_range(void* p, long n) { simt::record((uint64_t)p, (uint32_t)n, true, SIMT_PLACE); }
SIMT_CALLBACK void* __tsan_memcpy(void* to, const void* from, size_t n) {
  simt::record((uint64_t)from, (uint32_t)n, false, SIMT_PLACE);
  simt::record((uint64_t)to, (uint32_t)n, true, SIMT_PLACE);
  return memcpy(to, from, n);
}
SIMT_CALLBACK void* __tsan_memset(void* to, int value, size_t n) {
  simt::record((uint64_t)to, (uint32_t)n, true, SIMT_PLACE);
  return memset(to, value, n);
}
SIMT_CALLBACK void* __tsan_memmove(void* to, const void* from, size_t n) { return memmove(to, from, n); }
SIMT_CALLBACK void __tsan_init() {}
SIMT_CALLBACK void __tsan_func_entry(void*) {}
SIMT_CALLBACK void __tsan_func_exit() {}
SIMT_CALLBACK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Keep events of blocks first, first + step, ... in `n` ranges of addresses.
SIMT_CALLBACK void simt_trace_begin(simt::Range* ranges, uint32_t n, uint64_t first, uint64_t step) {
  simt::ranges = ranges;
  simt::range_count = n;
  simt::traced_first = first;
  simt::traced_step = step;
  simt::event_count = 0;
}
SIMT_CALLBACK simt::Event* simt_trace_events(uint64_t* count) {
  *count = simt::event_count;
  return simt::events;
}
SIMT_CALLBACK void simt_trace_end() {
  free(simt::events);
  simt::events = nullptr;
  simt::event_count = simt::event_room = 0;
  simt::range_count = 0;
}
// Where the library lies in memory: places less this are addresses in its file.
SIMT_CALLBACK uint64_t simt_trace_base() {
  Dl_info info;
  return dladdr((void*)&simt_trace_base, &info) ? (uint64_t)info.dli_fbase : 0;
}
