// The traced build: what each warp does to memory, and how its lanes part and meet, put together as the kernel runs.
//
// The compiler's thread sanitiser instruments each access with a call, its coverage instrumentation each basic block;
// the library is linked without the runtimes of either and these are the calls. Only addresses in registered arrays
// and in shared memory are kept, so the accesses of the shim itself, and of a lane's own stack, fall away.
//
// A warp's lanes run one after the other here and side by side on a GPU, so what belongs together must be found: the
// accesses that they make at the same place in the same iterations of all loops around it. A first run of the launch
// learns which basic block follows which; measure/control_flow.py finds the loops in that, and a second run counts.
// (gcc before 12 gives no blocks. There, what belongs together is told by the barriers and exchanges passed, and by how
// often a lane came by since the last: lanes that skip an iteration of a loop without any are counted one early.)
#pragma once
#include <dlfcn.h>

#include "runtime.h"

#define SIMT_CALLBACK extern "C" SIMT_UNTRACED __attribute__((visibility("default")))
#define SIMT_CALLER __builtin_return_address(0)

namespace simt {

// ---- what is exchanged with measure/recorder.py: keep in step with it ----

enum Kind : uint8_t { kLoad, kStore, kAtomic, kBarrier, kWarpBarrier, kShuffle, kVote, kProduct, kBranch };

// What the lanes of a warp did together. `lanes`: their mask. `parted`: a branch behind which they went different ways.
struct Deed {
  uint64_t place;         // return address of the call, less the library's base
  uint64_t block;
  uint32_t warp, loops;   // `loops`: an index into `iterations`
  uint32_t at;            // the basic block, an index into `basic_blocks`
  uint32_t lanes, epoch;
  uint32_t addresses;     // of memory accesses: an index into `lane_addresses`
  uint16_t size;
  uint8_t kind, shared, parted, pad[3];
};
// A basic block in a chain of calls (0: the kernel's own function). The Python side fills in the last three fields.
struct BasicBlock { uint64_t place; uint32_t context; int32_t loop; uint8_t header, branch, pad[6]; };
struct Loop { int32_t parent; uint32_t depth; };                        // depth of an outermost loop: 1
struct Iteration { uint32_t parent; int32_t loop; uint32_t number; };   // its parent is its own index at the root
struct Edge { uint32_t from, to; };
struct Addresses { uint64_t of_lane[kWarp]; };
struct Range { uint64_t start, end; };

// ---- containers: this library is linked without the C++ runtime's ----

template <class T> struct List {
  T* items;
  uint64_t count, room;
  SIMT_UNTRACED T& add(const T& item) {
    if (count == room) {
      room = room ? 2 * room : 1024;
      items = (T*)realloc(items, room * sizeof(T));
      if (!items) abort();
    }
    return items[count++] = item;
  }
  SIMT_UNTRACED void clear() { free(items); items = nullptr; count = room = 0; }
};

// From keys of three words to numbers. `forget` empties it without touching the slots.
struct Table {
  struct Slot { uint64_t a; uint32_t b, c, value, generation; };
  Slot* slots;
  uint32_t room, used, generation;
  SIMT_UNTRACED static uint64_t hash(uint64_t a, uint32_t b, uint32_t c) {
    uint64_t h = (a ^ ((uint64_t)c << 32 | b)) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
    h = (h + b) * 0xbf58476d1ce4e5b9ull;
    return h ^ h >> 32;
  }
  SIMT_UNTRACED Slot& probe(uint64_t a, uint32_t b, uint32_t c) {
    uint32_t i = (uint32_t)hash(a, b, c);
    for (;; i++) {
      Slot& s = slots[i & (room - 1)];
      if (s.generation != generation || (s.a == a && s.b == b && s.c == c)) return s;
    }
  }
  // The value under the key, or null and room for one.
  SIMT_UNTRACED uint32_t* find(uint64_t a, uint32_t b, uint32_t c) {
    if (!slots) return nullptr;
    Slot& s = probe(a, b, c);
    return s.generation == generation ? &s.value : nullptr;
  }
  SIMT_UNTRACED void put(uint64_t a, uint32_t b, uint32_t c, uint32_t value) {
    if (2 * (used + 1) > room) grow();
    probe(a, b, c) = {a, b, c, value, generation};
    used++;
  }
  SIMT_UNTRACED void grow() {
    Table bigger = {nullptr, room ? 2 * room : 4096, 0, 1};
    bigger.slots = (Slot*)calloc(bigger.room, sizeof(Slot));
    if (!bigger.slots) abort();
    for (uint32_t i = 0; i < room; i++)
      if (slots[i].generation == generation)
        bigger.put(slots[i].a, slots[i].b, slots[i].c, slots[i].value);
    free(slots);
    *this = bigger;
  }
  SIMT_UNTRACED void forget() { generation++; used = 0; }
  SIMT_UNTRACED void clear() { free(slots); *this = {nullptr, 0, 0, 1}; }
};

// ---- what is known ----

enum Mode { kOff, kLearn, kCount };
static Mode trace_mode;
static uint64_t trace_base;                   // where the library lies in memory
static uint64_t trace_step;                   // blocks 0, step, 2 step, ... run and are kept
static const Range* ranges;
static uint32_t range_count;
static const Loop* trace_loops;
static Range shared_range;
static Range told[2];                         // the last range read and written: its start and its bytes

static List<BasicBlock> basic_blocks;         // the first is what comes before a thread's first block
static List<Edge> edges;
static List<Iteration> iterations;
static List<Deed> deeds;
static List<Addresses> lane_addresses;
static Table block_index, edge_index, context_index, iteration_index, deed_index;
static uint32_t contexts;

constexpr uint32_t kMaxDepth = 32, kMaxCalls = 64, kNone = ~0u;

// Where a thread is: in which calls, in which basic block, in which iterations of the loops around it.
struct Position {
  uint64_t block;                             // of the grid, and 1 more: 0 for a place never used
  uint32_t at, depth, calls, context;
  uint32_t warp, thread;
  uint32_t loops[kMaxDepth + 1];              // by depth: an index into `iterations`; [0] is the warp's root
  int32_t loop[kMaxDepth + 1];
  uint32_t callers[kMaxCalls];
};
static Position* positions;
static uint64_t position_count, counted_block;

SIMT_UNTRACED inline uint64_t linear(const Block& b) {
  return ((uint64_t)b.index.z * launch->grid.y + b.index.y) * launch->grid.x + b.index.x;
}

// Only the blocks that are kept run, for a sample of a large launch costs what it keeps. A cooperative launch runs
// whole: its blocks wait for one another.
SIMT_UNTRACED bool skipped(uint64_t block) { return trace_mode != kOff && !cooperative && block % trace_step; }

SIMT_UNTRACED inline uint32_t iteration_of(uint32_t parent, int32_t loop, uint32_t number) {
  if (uint32_t* known = iteration_index.find((uint64_t)(uint32_t)loop, parent, number)) return *known;
  uint32_t index = (uint32_t)iterations.count;
  iterations.add({loop < 0 ? index : parent, loop, number});
  iteration_index.put((uint64_t)(uint32_t)loop, parent, number, index);
  return index;
}

// The position of the thread that runs, null for the scheduler and for blocks that are not kept.
SIMT_UNTRACED inline Position* position() {
  Fiber* f = current;
  if (trace_mode == kOff || !f || f == &scheduler) return nullptr;
  uint64_t block = linear(*f->block);
  uint32_t thread = (uint32_t)(f - f->block->fibers), threads = launch->block.x * launch->block.y * launch->block.z;
  if (trace_step > 1 && block % trace_step) return nullptr;
  if (!cooperative && counted_block != block + 1) {
    counted_block = block + 1;                // the threads of the last block will not be heard of again
    iteration_index.forget();
    deed_index.forget();
  }
  Position& p = positions[cooperative ? block * threads + thread : thread];
  if (__builtin_expect(p.block != block + 1, 0)) {
    p.block = block + 1;
    p.at = p.depth = p.calls = p.context = 0;
    p.warp = f->warp->index;
    p.thread = thread;
    // The loop of a root is no loop: it tells the warps and blocks apart.
    p.loops[0] = trace_mode == kCount ? iteration_of(kNone, -1 - (int32_t)p.warp, (uint32_t)block) : 0;
  }
  return &p;
}

// ---- what a warp does together ----

SIMT_UNTRACED inline Deed& deed(const Position& p, uint64_t place, Kind kind, uint32_t size, bool shared) {
  const uint32_t lane = p.thread % kWarp, loops = p.loops[p.depth];
  // Addresses of code take 47 bits.
  const uint64_t what = place | (uint64_t)(size << 5 | kind << 1 | shared) << 47;
  // A lane comes here once an iteration. Where no loop was seen, as in code that jumps into one, it comes again.
  for (uint32_t again = 0;; again++) {
    const uint32_t where = p.context | again << 12;
    uint32_t* known = deed_index.find(what, loops, where);
    if (!known) {
      deed_index.put(what, loops, where, (uint32_t)deeds.count);
      return deeds.add({place, p.block - 1, p.warp, loops, p.at, 1u << lane, current->epoch, 0, (uint16_t)size, kind,
                        shared, 0, {}});
    }
    Deed& d = deeds.items[*known];
    if (d.lanes >> lane & 1) continue;
    d.lanes |= 1u << lane;
    return d;
  }
}

SIMT_UNTRACED inline void record(uint64_t address, uint32_t size, Kind kind, void* from) {
  Fiber* f = current;
  if (trace_mode != kCount || !f || f == &scheduler) return;
  bool shared = (address >= shared_range.start && address < shared_range.end) ||
                address - (uint64_t)f->block->dynamic_shared < launch->dynamic_shared_bytes;
  if (!shared) {
    uint32_t r = 0;
    while (r < range_count && (address < ranges[r].start || address >= ranges[r].end)) r++;
    if (r == range_count) return;
  }
  Position* p = position();
  if (!p) return;
  uint64_t count = deeds.count;
  Deed& d = deed(*p, (uint64_t)from - trace_base, kind, size < 65535 ? size : 65535, shared);
  if (deeds.count > count) {
    d.addresses = (uint32_t)lane_addresses.count;
    lane_addresses.add({});
  }
  lane_addresses.items[d.addresses].of_lane[p->thread % kWarp] = address;
}

// A barrier, a shuffle, a vote or a Tensor Core's product of 16 x 16 by 16 x 8, by its CUDA name. Loads and stores of
// fragments are counted by their accesses.
SIMT_UNTRACED __attribute__((noinline)) void met(const char* name, void* from) {
  current->epoch++;
  if (trace_mode != kCount) return;
  Position* p = position();
  if (!p) return;
  if (basic_blocks.count == 1)
    p->loops[0] = iteration_of(kNone - current->epoch, -1 - (int32_t)p->warp, (uint32_t)p->block);
  if (strstr(name, "_matri")) return;
  Kind kind = !strncmp(name, "__shfl", 6) ? kShuffle : !strcmp(name, "__syncwarp") ? kWarpBarrier
            : !strncmp(name, "__sync", 6) || !strncmp(name, "grid", 4) || !strncmp(name, "barrier", 7) ? kBarrier
            : !strncmp(name, "mma_", 4) ? kProduct : kVote;
  deed(*p, (uint64_t)from - trace_base, kind, 0, false);
}

// ---- where a lane is ----

// Be in `loop` (-1: in none), at least in its first iteration.
SIMT_UNTRACED inline void enter(Position& p, int32_t loop) {
  if (loop < 0) {
    p.depth = 0;
    return;
  }
  const uint32_t depth = trace_loops[loop].depth;
  if (depth > kMaxDepth) return;
  if (p.depth >= depth && p.loop[depth] == loop) {
    p.depth = depth;
    return;
  }
  enter(p, trace_loops[loop].parent);
  p.depth = depth;
  p.loop[depth] = loop;
  p.loops[depth] = iteration_of(p.loops[depth - 1], loop, 0);
}

SIMT_UNTRACED inline void arrive_at(Position& p, uint32_t index) {
  const BasicBlock& b = basic_blocks.items[index];
  if (basic_blocks.items[p.at].branch) {
    Deed& d = deed(p, basic_blocks.items[p.at].place, kBranch, 0, false);
    // `addresses` of a branch: the block that the first lane went to.
    if (!(d.lanes & (d.lanes - 1))) d.addresses = index;
    else if (d.addresses != index) d.parted = 1;
  }
  p.at = index;
  const bool again = b.header && p.depth >= trace_loops[b.loop].depth && p.loop[trace_loops[b.loop].depth] == b.loop;
  enter(p, b.loop);
  if (again) {
    Iteration now = iterations.items[p.loops[p.depth]];
    p.loops[p.depth] = iteration_of(now.parent, now.loop, now.number + 1);
  }
}

}  // namespace simt

// ---- the calls that the compiler puts in ----

SIMT_CALLBACK void __sanitizer_cov_trace_pc() {
  simt::Position* p = simt::position();
  if (!p) return;
  uint64_t place = (uint64_t)SIMT_CALLER - simt::trace_base;
  uint32_t* known = simt::block_index.find(place, p->context, 0);
  if (simt::trace_mode == simt::kCount) {
    if (known) simt::arrive_at(*p, *known);
    return;
  }
  uint32_t index = known ? *known : (uint32_t)simt::basic_blocks.count;
  if (!known) {
    simt::basic_blocks.add({place, p->context, -1, 0, 0, {}});
    simt::block_index.put(place, p->context, 0, index);
  }
  if (!simt::edge_index.find(p->at, index, 0)) {
    simt::edge_index.put(p->at, index, 0, 0);
    simt::edges.add({p->at, index});
  }
  p->at = index;
}

SIMT_CALLBACK void __tsan_func_entry(void* from) {
  simt::Position* p = simt::position();
  if (!p) return;
  if (p->calls < simt::kMaxCalls) {
    p->callers[p->calls] = p->context;
    uint64_t place = (uint64_t)from - simt::trace_base;
    uint32_t* known = simt::context_index.find(place, p->context, 0);
    uint32_t context = known ? *known : simt::contexts++;
    if (!known) simt::context_index.put(place, p->context, 0, context);
    p->context = context;
  }
  p->calls++;
}
SIMT_CALLBACK void __tsan_func_exit() {
  simt::Position* p = simt::position();
  if (p && p->calls && --p->calls < simt::kMaxCalls) p->context = p->callers[p->calls];
}

#define SIMT_ACCESS(name, bytes)                                                                                       \
  SIMT_CALLBACK void __tsan_##name##read##bytes(void* p) { simt::record((uint64_t)p, bytes, simt::kLoad, SIMT_CALLER); } \
  SIMT_CALLBACK void __tsan_##name##write##bytes(void* p) { simt::record((uint64_t)p, bytes, simt::kStore, SIMT_CALLER); }
SIMT_ACCESS(, 1)
SIMT_ACCESS(, 2)
SIMT_ACCESS(, 4)
SIMT_ACCESS(, 8)
SIMT_ACCESS(, 16)
SIMT_ACCESS(unaligned_, 2)
SIMT_ACCESS(unaligned_, 4)
SIMT_ACCESS(unaligned_, 8)
SIMT_ACCESS(unaligned_, 16)
#undef SIMT_ACCESS
SIMT_CALLBACK void __tsan_read_range(void* p, long n) {
  simt::told[0] = {(uint64_t)p, (uint64_t)n};
  simt::record((uint64_t)p, (uint32_t)n, simt::kLoad, SIMT_CALLER);
}
SIMT_CALLBACK void __tsan_write_range(void* p, long n) {
  simt::told[1] = {(uint64_t)p, (uint64_t)n};
  simt::record((uint64_t)p, (uint32_t)n, simt::kStore, SIMT_CALLER);
}
// Large copies, and those whose size is not known, are calls of memcpy: gcc and older clangs leave them to a runtime
// that replaces these functions, and so they are replaced here (linked with -Bsymbolic-functions where that is needed).
// gcc tells of some of them beforehand, by ranges.
namespace simt {
SIMT_UNTRACED inline void copied(void* to, const void* from, size_t n, void* caller) {
  const Range read = {(uint64_t)from, n}, write = {(uint64_t)to, n};
  const bool known = !memcmp(&told[0], &read, sizeof read) && !memcmp(&told[1], &write, sizeof write);
  told[0] = told[1] = {0, 0};
  if (known) return;
  record((uint64_t)from, (uint32_t)n, kLoad, caller);
  record((uint64_t)to, (uint32_t)n, kStore, caller);
}
// Byte by byte, and not to be turned back into a call of memmove.
SIMT_UNTRACED inline void* move_bytes(void* to, const void* from, size_t n) {
  char* t = (char*)to;
  const char* f = (const char*)from;
  for (size_t i = 0; i < n; i++) {
    size_t k = t <= f ? i : n - 1 - i;
    t[k] = f[k];
    asm volatile("" ::: "memory");
  }
  return to;
}
}  // namespace simt
#define SIMT_REPLACED extern "C" SIMT_UNTRACED __attribute__((visibility("hidden"), used))
SIMT_REPLACED void* memcpy(void* __restrict to, const void* __restrict from, size_t n) noexcept {
  simt::copied(to, from, n, SIMT_CALLER);
  return simt::move_bytes(to, from, n);
}
SIMT_REPLACED void* memmove(void* to, const void* from, size_t n) noexcept {
  simt::copied(to, from, n, SIMT_CALLER);
  return simt::move_bytes(to, from, n);
}
SIMT_REPLACED void* memset(void* to, int value, size_t n) noexcept {
  if (simt::told[1].start != (uint64_t)to || simt::told[1].end != n)
    simt::record((uint64_t)to, (uint32_t)n, simt::kStore, SIMT_CALLER);
  simt::told[1] = {0, 0};
  for (size_t i = 0; i < n; i++) {
    ((char*)to)[i] = (char)value;
    asm volatile("" ::: "memory");
  }
  return to;
}
SIMT_CALLBACK void* __tsan_memcpy(void* to, const void* from, size_t n) {
  simt::copied(to, from, n, SIMT_CALLER);
  return simt::move_bytes(to, from, n);
}
SIMT_CALLBACK void* __tsan_memmove(void* to, const void* from, size_t n) {
  simt::copied(to, from, n, SIMT_CALLER);
  return simt::move_bytes(to, from, n);
}
SIMT_CALLBACK void* __tsan_memset(void* to, int value, size_t n) {
  simt::record((uint64_t)to, (uint32_t)n, simt::kStore, SIMT_CALLER);
  for (size_t i = 0; i < n; i++) ((volatile char*)to)[i] = (char)value;
  return to;
}
SIMT_CALLBACK void __tsan_init() {}

// An atomic of the kernel's own (the shim's say themselves what they are): the call must do the operation, too. A
// library compiled with the sanitiser has every block of it in one thread, so plain atomics of the host are enough.
#define SIMT_ATOMIC_CALL(bits)                                                                                         \
  SIMT_CALLBACK uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* p, int) {                     \
    simt::record((uint64_t)p, bits / 8, simt::kAtomic, SIMT_CALLER);                                                   \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                       \
  }                                                                                                                    \
  SIMT_CALLBACK void __tsan_atomic##bits##_store(volatile uint##bits##_t* p, uint##bits##_t v, int) {                  \
    simt::record((uint64_t)p, bits / 8, simt::kAtomic, SIMT_CALLER);                                                   \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                                          \
  }                                                                                                                    \
  SIMT_ATOMIC_UPDATE(bits, exchange, __atomic_exchange_n)                                                              \
  SIMT_ATOMIC_UPDATE(bits, fetch_add, __atomic_fetch_add)                                                              \
  SIMT_ATOMIC_UPDATE(bits, fetch_sub, __atomic_fetch_sub)                                                              \
  SIMT_ATOMIC_UPDATE(bits, fetch_and, __atomic_fetch_and)                                                              \
  SIMT_ATOMIC_UPDATE(bits, fetch_or, __atomic_fetch_or)                                                                \
  SIMT_ATOMIC_UPDATE(bits, fetch_xor, __atomic_fetch_xor)                                                              \
  SIMT_ATOMIC_UPDATE(bits, fetch_nand, __atomic_fetch_nand)                                                            \
  SIMT_ATOMIC_COMPARE(bits, strong)                                                                                    \
  SIMT_ATOMIC_COMPARE(bits, weak)                                                                                      \
  SIMT_CALLBACK uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(volatile uint##bits##_t* p,                  \
                                                                          uint##bits##_t expected, uint##bits##_t v,   \
                                                                          int, int) {                                  \
    simt::record((uint64_t)p, bits / 8, simt::kAtomic, SIMT_CALLER);                                                   \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
    return expected;                                                                                                   \
  }
#define SIMT_ATOMIC_UPDATE(bits, name, operation)                                                                      \
  SIMT_CALLBACK uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t* p, uint##bits##_t v, int) {       \
    simt::record((uint64_t)p, bits / 8, simt::kAtomic, SIMT_CALLER);                                                   \
    return operation(p, v, __ATOMIC_SEQ_CST);                                                                          \
  }
#define SIMT_ATOMIC_COMPARE(bits, name)                                                                                \
  SIMT_CALLBACK int __tsan_atomic##bits##_compare_exchange_##name(volatile uint##bits##_t* p,                          \
                                                                  uint##bits##_t* expected, uint##bits##_t v, int,     \
                                                                  int) {                                               \
    simt::record((uint64_t)p, bits / 8, simt::kAtomic, SIMT_CALLER);                                                   \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                     \
  }
SIMT_ATOMIC_CALL(8)
SIMT_ATOMIC_CALL(16)
SIMT_ATOMIC_CALL(32)
SIMT_ATOMIC_CALL(64)
#undef SIMT_ATOMIC_CALL
#undef SIMT_ATOMIC_UPDATE
#undef SIMT_ATOMIC_COMPARE
SIMT_CALLBACK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMT_CALLBACK void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

// ---- what measure/recorder.py calls ----

// Learn (`loops` null), or count with the `blocks` that an earlier run learnt and the loops found in them. `threads`:
// how many have a position of their own, a block's or, in a cooperative launch, the grid's.
SIMT_CALLBACK void simt_trace_begin(const simt::Range* ranges, uint32_t range_count, uint64_t step, uint64_t threads,
                                    const simt::BasicBlock* blocks, uint64_t block_count, const simt::Loop* loops) {
  using namespace simt;
  Dl_info info;
  trace_base = dladdr((void*)&simt_trace_begin, &info) ? (uint64_t)info.dli_fbase : 0;
  simt::ranges = ranges;
  simt::range_count = range_count;
  shared_range = {(uint64_t)__start_simt_shared, (uint64_t)__stop_simt_shared};
  trace_step = step;
  trace_loops = loops;
  positions = (Position*)calloc(threads, sizeof(Position));
  if (!positions) abort();
  for (Table* t : {&block_index, &edge_index, &context_index, &iteration_index, &deed_index}) t->clear();
  contexts = 1;
  counted_block = 0;
  if (!loops) basic_blocks.add({0, 0, -1, 0, 0, {}});
  for (uint64_t i = 0; i < block_count; i++) {
    basic_blocks.add(blocks[i]);
    if (i) block_index.put(blocks[i].place, blocks[i].context, 0, (uint32_t)i);
  }
  trace_mode = loops ? kCount : kLearn;
}
SIMT_CALLBACK void simt_trace_end() {
  using namespace simt;
  trace_mode = kOff;
  for (Table* t : {&block_index, &edge_index, &context_index, &iteration_index, &deed_index}) t->clear();
  basic_blocks.clear();
  edges.clear();
  iterations.clear();
  deeds.clear();
  lane_addresses.clear();
  free(positions);
  positions = nullptr;
}
#define SIMT_READ(name)                                                              \
  SIMT_CALLBACK const void* simt_trace_##name(uint64_t* count) {                     \
    *count = simt::name.count;                                                       \
    return simt::name.items;                                                         \
  }
SIMT_READ(basic_blocks)
SIMT_READ(edges)
SIMT_READ(iterations)
SIMT_READ(deeds)
SIMT_READ(lane_addresses)
#undef SIMT_READ
