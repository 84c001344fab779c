// One block of CUDA threads on one OS thread: run a lane until it blocks, meet at barriers and shuffles,
// and say who waits where when nobody can go on.
//
// Compiled into every kernel's library. Each worker thread loads its own copy of that library, so that
// `__shared__` can be plain static storage and nothing here needs thread-local variables.
#pragma once
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fiber.h"

// The bounds of the section that holds every __shared__ variable of the kernel.
#if defined(__APPLE__)
extern "C" char __start_simt_shared[] __asm("section$start$__DATA$simt_shared");
extern "C" char __stop_simt_shared[] __asm("section$end$__DATA$simt_shared");
#else   // absent when it has none
extern "C" char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));
#endif

namespace simt {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kFull = 0xffffffffu;
constexpr uint64_t kPoison = ~0ull;     // NaN as a float, -1 as an int: an undefined value that shows

// One exchange of the full warp. A lane needs only the value of the lane that it reads from, so it goes on as soon as
// that lane has been here; kAhead exchanges are kept, and the fastest lane may be so far ahead of the slowest. (A
// shuffle orders no memory: CUDA allows this. __syncwarp and votes do wait for every lane.)
constexpr uint32_t kAhead = 16;
struct alignas(64) Exchange {
  uint32_t generation;    // which exchange of the warp this is
  uint32_t arrived, left; // lanes
  uint32_t whole;         // changes when the last lane has arrived
  uint32_t votes;
  int line;               // where, as the first to arrive said; the others must come to the same place
  const char* name;
  const char* file;
};

// Threads of a warp that named a mask of fewer lanes meet here, all of them. Values go through two sets of slots in
// turn: a lane can be at most one meeting ahead of one that has not read the last.
struct Meeting {
  uint32_t mask;          // 0: free
  uint32_t expected;      // lanes of the mask that exist
  uint32_t missing;       // of those, not yet here
  uint32_t unread;        // lanes that have not resumed from the last meeting
  uint32_t generation;
  int line;
  const char* name;
  const char* file;
  uint32_t votes[2];
  uint64_t slot[2][kWarp];
};

// What lanes bring to one operation of a Tensor Core, and take from it (tensor_core.h).
struct Fragments {
  uint32_t a[kWarp][4], b[kWarp][2];
  float d[kWarp][4];
};

struct Warp {
  uint32_t lanes, present;          // those that exist: the last warp of a block may be short
  uint32_t index;
  uint32_t partial_used;            // places of `partial` that have ever been used in this block
  uint32_t deposited[kWarp];        // by lane: exchanges whose value is there to be read
  Exchange ahead[kAhead];
  uint64_t value[kAhead][kWarp];    // what each lane brings to each exchange
  Meeting partial[kWarp];
  Fragments fragments[2];
#if defined(SIMT_SANITIZED)
  uint32_t since;         // as Block::since, for this warp: the last full __syncwarp
#endif
};

#if defined(SIMT_SANITIZED)
struct Shadow;            // sanitize.cpp
#endif

struct Block {
  dim index;              // blockIdx
  uint32_t live, arrived, generation;   // __syncthreads
  uint32_t votes[2], count[2];
  uint32_t named_arrived, named_generation, named_threads;   // barrier_of
  Fiber* fibers;
  Fiber* first;           // to run, in the launch's lane order
  Warp* warps;
  char* dynamic_shared;
  char* saved_shared;     // cooperative launches only: this block's static shared memory while another runs
#if defined(SIMT_SANITIZED)
  Shadow* shadow;         // what is known of its shared memory
  uint32_t since;         // the time of the last barrier: what any thread did before happened before what any does now
  uint32_t named_since[kMaxThreads / kWarp];  // by warp: as `since`, of the last barrier_of that it and all before were in
  uint32_t first_id;      // of its first thread
  uint64_t* acquired;     // one bit a block: whose writes are visible here, by fences and atomics
  int barrier_line;       // where the first to arrive at the barrier waits
  const char* barrier_name;
  const char* barrier_file;
#endif
};

// Filled in by the pool (pool.cpp), read by one worker. Keep in step with pool.cpp.
struct Launch {
  dim grid, block;
  void** args;
  uint32_t dynamic_shared_bytes;
  uint32_t lane_order;    // 0 forward, 1 reverse, else the seed of a shuffled order
  char* stacks;           // one a fiber, stack_stride bytes apart
  size_t stack_stride;
  char* error;
  uint32_t error_bytes;
};

SIMT_STATIC Launch* launch;
SIMT_STATIC Fiber scheduler;  // the OS thread's own stack
SIMT_STATIC Block* current_block;
SIMT_STATIC bool failed;

// Grid-wide barrier of cooperative launches.
SIMT_STATIC bool cooperative;
SIMT_STATIC uint32_t grid_generation, grid_arrived, grid_live;

// Threads that wait for what no meeting tells of (messages.h) look again once in a round, in which all others run.
SIMT_STATIC uint32_t round_number;
SIMT_STATIC bool yielded;             // some thread, in this round
SIMT_STATIC uint64_t activity;        // messages, copies and atomics that changed memory
SIMT_STATIC const char* asked_for;    // by the thread that runs, before it yields

// Generated behind the kernel's source. Inlined into what is not instrumented, it would not be either.
__attribute__((noinline)) void kernel_body(void** args);

inline Block& block() { return *current_block; }

// In the traced build (trace.h) the runtime itself is not instrumented, and each call of a barrier or an exchange says
// where in the kernel it was made: there these are functions of their own, with a return address. The sanitized build
// (sanitize.cpp) leaves the runtime alone as well.
#if defined(SIMT_TRACED) || defined(SIMT_SANITIZED)
#if defined(__clang__)   // its no_sanitize leaves atomics instrumented
#define SIMT_UNTRACED __attribute__((disable_sanitizer_instrumentation, no_sanitize("coverage")))
#else
#if __GNUC__ >= 12
#define SIMT_UNTRACED __attribute__((no_sanitize("thread"), no_sanitize_coverage))
#else                    // builds without the calls at basic blocks: it cannot leave them out anywhere
#define SIMT_UNTRACED __attribute__((no_sanitize("thread")))
#endif
#endif
#define SIMT_MEETING SIMT_UNTRACED __attribute__((noinline))
#if defined(SIMT_TRACED)
#define SIMT_MET(place) met((place).name, __builtin_return_address(0))
#define SIMT_SKIPPED(block) skipped(block)
#else
#define SIMT_MET(place) (current->epoch++)
#define SIMT_SKIPPED(block) false
#endif
void met(const char* name, void* from);
bool skipped(uint64_t block);
// A compiler that looks into a meeting that is a function of its own sees no access to the kernel's static (shared)
// variables there, and would keep them in registers across it. Around each call stands one of these.
struct AllMemory {
  __attribute__((always_inline)) AllMemory() { asm volatile("" ::: "memory"); }
  __attribute__((always_inline)) ~AllMemory() { asm volatile("" ::: "memory"); }
};
#else
struct AllMemory { __attribute__((always_inline)) AllMemory() {} };   // wait_until_changed says it
#define SIMT_UNTRACED
#define SIMT_MEETING __attribute__((always_inline))
#define SIMT_MET(place) ((void)0)
#define SIMT_SKIPPED(block) false
#endif

// ---- failing: the first message wins, the block is abandoned ----

__attribute__((noinline, cold, noreturn)) inline void fail_now() {
  failed = true;
  switch_to(current, &scheduler);
  __builtin_unreachable();
}

__attribute__((noinline, cold, format(printf, 1, 2))) inline void say(const char* format, ...) {
  size_t used = strlen(launch->error);
  if (used + 1 >= launch->error_bytes) return;
  va_list list;
  va_start(list, format);
  vsnprintf(launch->error + used, launch->error_bytes - used, format, list);
  va_end(list);
}

inline const char* base_name(const char* path) {
  const char* slash = path ? strrchr(path, '/') : nullptr;
  return slash ? slash + 1 : path;
}

__attribute__((noinline, cold)) inline void say_place() {
  Fiber* f = current;
  say("block (%u,%u,%u), thread (%u,%u,%u), lane %u of warp %u: ", block().index.x, block().index.y,
      block().index.z, f->thread.x, f->thread.y, f->thread.z, f->lane, f->warp->index);
}

// ---- waiting ----

struct Place { const char* name; const char* file; int line; };

// What the sanitized build wants to know; defined in sanitize.cpp.
#if defined(SIMT_SANITIZED)
constexpr uint32_t kGuard = 4096;       // bytes before and behind dynamic shared memory that nobody may touch
void launch_begins(Launch* l);
void runtime_memory(void* start, size_t bytes);
void block_begins(Block& b, uint64_t linear, uint32_t threads, uint32_t dynamic_bytes);
void block_ends(Block& b);
void barrier_reached(Block& b, Place at);
void barrier_released(Block& b);
void grid_released();
void warp_met(Warp& w, uint32_t mask);  // in a __syncwarp; shuffles and votes order no memory
void fence_passed();
void block_fence_passed();
void thread_ends();
void misaligned(const char* file, int line, const char* type, uint64_t address, uint32_t alignment, uint32_t access);
void atomic_access(void* p, uint32_t size, void* place);
void message_access(const void* p, uint32_t size, bool writes, void* place);
void named_barrier_released(Block& b, uint32_t threads);
uint32_t arrival_made(void* a, void* place);   // its number
void arrival_asked(const void* a, uint32_t number, bool ended, void* place);
void bulk_begins(void* to, const void* from, uint32_t bytes, void* a, uint32_t number, void* place);
#define SIMT_SANITIZE(call) (call)
#else
constexpr uint32_t kGuard = 0;
#define SIMT_SANITIZE(call) ((void)0)
#endif

// Go to `next` at once, without asking whether it can run: nearly always it can. One that is resumed too early hands
// over to the scheduler, which looks for a fiber that can go on.
SIMT_UNTRACED __attribute__((noinline)) inline void give_way(const uint32_t* word, uint32_t value, Fiber* next, Place at, uint32_t mask) {
  Fiber* self = current;
  self->wait_word = word;
  self->wait_value = value;
  self->wait_name = at.name;
  self->wait_file = at.file;
  self->wait_line = at.line;
  self->wait_mask = mask;
  switch_to(self, next);
  while (__builtin_expect(*word == value, 0)) switch_to(self, &scheduler);
}

// Out of line, so that a loop that seldom waits keeps its registers. But a compiler that looks into give_way sees no
// access to a kernel's static (shared) variables there, and would keep them in registers across it: the two empty
// statements say that all memory may be read and written in between.
inline __attribute__((always_inline)) void wait_until_changed(const uint32_t* word, uint32_t value, Fiber* next,
                                                              Place at, uint32_t mask) {
  asm volatile("" ::: "memory");
  give_way(word, value, next, at, mask);
  asm volatile("" ::: "memory");
}

__attribute__((noinline, cold)) inline void bad_mask(Place at, uint32_t mask) {
  say_place();
  say("%s at %s:%d names the lanes of mask 0x%08x, which does not include the lane that calls it", at.name,
      base_name(at.file), at.line, mask);
  fail_now();
}

__attribute__((noinline, cold)) inline void different_places(Place first, Place at, uint32_t mask) {
  say_place();
  say("%s at %s:%d meets %s at line %d under the same mask 0x%08x: lanes of one warp that exchange values must "
      "do so in the same call, so move it out of the divergent branch",
      at.name, base_name(at.file), at.line, first.name, first.line, mask);
  fail_now();
}

__attribute__((noinline, cold, noreturn)) inline void trap(Place at) {
  say_place();
  say("%s at %s:%d ended the launch: a GPU reports an error, and its process can launch no more", at.name,
      base_name(at.file), at.line);
  fail_now();
}

// ---- the full warp ----

inline __attribute__((always_inline)) Exchange& arrive(Fiber* self, Warp& warp, Place at) {
  uint32_t generation = self->exchanges++;
  Exchange& x = warp.ahead[generation % kAhead];
  while (__builtin_expect(x.generation != generation, 0))   // a lane that is kAhead behind has yet to read
    wait_until_changed(&x.generation, x.generation, self->next_in_warp, at, kFull);
  if (x.arrived++ == 0) {
    x.line = at.line;
    x.name = at.name;
    x.file = at.file;
    x.votes = 0;
  } else if (__builtin_expect(x.line != at.line, 0)) {
    different_places({x.name, x.file, x.line}, at, kFull);
  }
  return x;
}

inline __attribute__((always_inline)) void leave(Warp& warp, Exchange& x) {
  if (++x.left == warp.lanes) {
    x.arrived = x.left = 0;
    x.generation += kAhead;
  }
}

// The value that lane `source` brings to this exchange.
inline SIMT_MEETING uint64_t exchange_full(uint64_t bits, uint32_t source, Place at) {
  SIMT_MET(at);
  Fiber* self = current;
  Warp& warp = *self->warp;
  Exchange& x = arrive(self, warp, at);
  const uint32_t mine = self->exchanges;
  uint64_t* value = warp.value[(mine - 1) % kAhead];
  value[self->lane] = bits;
  warp.deposited[self->lane] = mine;
  uint64_t result = kPoison;
  if (__builtin_expect(source < warp.lanes, 1)) {
    const uint32_t* theirs = &warp.deposited[source];
    while (__builtin_expect(*theirs < mine, 0)) wait_until_changed(theirs, *theirs, self->next_in_warp, at, kFull);
    result = value[source];
  }
  leave(warp, x);
  return result;
}

// Waits for every lane; returns the lanes that came with `vote` true.
inline SIMT_MEETING uint32_t meet_full(bool vote, Place at, bool orders_memory = false) {
  SIMT_MET(at);
  Fiber* self = current;
  Warp& warp = *self->warp;
  Exchange& x = arrive(self, warp, at);
  x.votes |= (uint32_t)vote << self->lane;
  warp.deposited[self->lane] = self->exchanges;
  if (x.arrived == warp.lanes) {
    x.whole++;
    if (orders_memory) SIMT_SANITIZE(warp_met(warp, kFull));
  } else wait_until_changed(&x.whole, x.whole, self->next_in_warp, at, kFull);
  uint32_t votes = x.votes;
  leave(warp, x);
  return votes;
}

// ---- some lanes of a warp ----

SIMT_UNTRACED inline void set_mask(Meeting& m, uint32_t mask, uint32_t present) {
  m.mask = mask;
  m.expected = m.missing = (uint32_t)__builtin_popcount(mask & present);
  m.unread = 0;
}

// A lane is in at most one meeting, waiting or not yet resumed, so of 32 places one is always free.
SIMT_UNTRACED __attribute__((noinline)) inline Meeting& partial_meeting(Warp& w, uint32_t mask) {
  Meeting* unused = nullptr;
  for (uint32_t i = 0; i < w.partial_used; i++) {
    Meeting& m = w.partial[i];
    if (m.mask == mask) return m;
    if (!unused && m.unread == 0 && m.missing == m.expected) unused = &m;
  }
  if (!unused) unused = &w.partial[w.partial_used++];
  set_mask(*unused, mask, w.present);
  return *unused;
}

// Bring `bits` (and its lowest bit as a vote) to the meeting of `mask`, wait for the others; which set to read.
struct Met { Meeting& meeting; uint32_t set; };

SIMT_UNTRACED __attribute__((noinline)) inline Met meet_some(uint32_t mask, uint64_t bits, Place at, bool orders_memory = false) {
  SIMT_MET(at);
  Fiber* self = current;
  if (!(mask >> self->lane & 1)) bad_mask(at, mask);
  Meeting& m = partial_meeting(*self->warp, mask);
  uint32_t generation = m.generation, set = generation & 1;
  if (m.missing == m.expected) {
    m.line = at.line;
    m.name = at.name;
    m.file = at.file;
    m.votes[set] = 0;
  } else if (m.line != at.line) {
    different_places({m.name, m.file, m.line}, at, mask);
  }
  m.slot[set][self->lane] = bits;
  m.votes[set] |= (uint32_t)(bits & 1) << self->lane;
  if (--m.missing == 0) {
    m.missing = m.unread = m.expected;
    m.generation = generation + 1;
    if (orders_memory) SIMT_SANITIZE(warp_met(*self->warp, mask));
  } else {
    wait_until_changed(&m.generation, generation, self->next_in_warp, at, mask);
  }
  m.unread--;
  return {m, set};
}

// ---- the block and the grid ----

SIMT_UNTRACED inline void release_barrier(Block& b) {
  b.arrived = 0;
  b.generation++;
  b.count[b.generation & 1] = 0;
  SIMT_SANITIZE(barrier_released(b));
}

// Returns how many threads of the block came with `vote` true. Threads that have exited are not waited for.
inline SIMT_MEETING uint32_t block_barrier(bool vote, Place at) {
  SIMT_MET(at);
  Block& b = *current->block;
  SIMT_SANITIZE(barrier_reached(b, at));
  uint32_t generation = b.generation, set = generation & 1;
  b.count[set] += vote;
  if (++b.arrived == b.live) release_barrier(b);
  else wait_until_changed(&b.generation, generation, current->next_in_block, at, 0);
  return b.count[set];
}

__attribute__((noinline, cold)) inline void bad_named_barrier(uint32_t threads, uint32_t thread, uint32_t all, Place at) {
  const uint32_t others = block().named_threads;
  say_place();
  say("%s at %s:%d names the first %u threads of the block: ", at.name, base_name(at.file), at.line, threads);
  if (!threads || threads % kWarp) say("that must be a multiple of 32");
  else if (threads > all) say("it has %u, so that a GPU would hang", all);
  else if (thread >= threads) say("thread %u, which comes there, is none of them", thread);
  else say("others wait there and name %u", others);
  fail_now();
}

// Of the block's first `threads` threads. Those that have exited are waited for, as on a GPU.
inline SIMT_MEETING void named_barrier(uint32_t threads, Place at) {
  SIMT_MET(at);
  Fiber* self = current;
  Block& b = *self->block;
  const uint32_t thread = (uint32_t)(self - b.fibers), all = launch->block.x * launch->block.y * launch->block.z;
  if (__builtin_expect(!threads || threads % kWarp || threads > all || thread >= threads ||
                       (b.named_arrived && b.named_threads != threads), 0))
    bad_named_barrier(threads, thread, all, at);
  b.named_threads = threads;
  if (++b.named_arrived == threads) {
    b.named_arrived = 0;
    b.named_generation++;
    SIMT_SANITIZE(named_barrier_released(b, threads));
  } else {
    wait_until_changed(&b.named_generation, b.named_generation, self->next_in_block, at, 0);
  }
}

// All other threads of the block run before this one goes on, and in a cooperative launch those of all other blocks.
inline SIMT_UNTRACED void yield(Place at) {
  if (asked_for) at.name = asked_for;
  asked_for = nullptr;
  yielded = true;
  SIMT_SANITIZE(current->epoch++);
  wait_until_changed(&round_number, round_number, current->next_in_block, at, 0);
}

SIMT_UNTRACED __attribute__((noinline)) inline void grid_barrier(Place at) {
  SIMT_MET(at);
  if (!cooperative) {
    say_place();
    say("grid sync at %s:%d in a launch that is not cooperative", base_name(at.file), at.line);
    fail_now();
  }
  uint32_t generation = grid_generation;
  if (++grid_arrived == grid_live) {
    grid_arrived = 0;
    grid_generation++;
    SIMT_SANITIZE(grid_released());
  } else {
    wait_until_changed(&grid_generation, generation, current->next_in_block, at, 0);
  }
}

}  // namespace simt

// From here on, what a sanitized kernel does not need itself is compiled once, in sanitize.cpp.
#if !defined(SIMT_SANITIZED) || defined(SIMT_SANITIZE_OBJECT)
namespace simt {

// ---- the life of a fiber ----

SIMT_UNTRACED inline void fiber_main() {
  kernel_body(launch->args);
  Fiber* self = current;
  Block& b = *self->block;
  SIMT_SANITIZE(thread_ends());
  self->exited = true;
  self->wait_word = &constant_one;
  self->wait_value = 1;
  b.live--;
  if (b.arrived && b.arrived == b.live) release_barrier(b);
  if (cooperative) {
    grid_live--;
    if (grid_arrived && grid_arrived == grid_live) {
      grid_arrived = 0;
      grid_generation++;
      SIMT_SANITIZE(grid_released());
    }
  }
  switch_to(self, self->next_in_block);
  for (;;) switch_to(self, &scheduler);   // resumed by a neighbour that did not ask
}

// A permutation of 0..n-1 for a lane-order seed (a small linear congruential generator and Fisher-Yates).
inline void lane_permutation(uint32_t* order, uint32_t n, uint32_t kind) {
  for (uint32_t i = 0; i < n; i++) order[i] = kind == 1 ? n - 1 - i : i;
  if (kind < 2) return;
  uint64_t state = kind;
  for (uint32_t i = n; i > 1; i--) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    uint32_t j = (uint32_t)(state >> 33) % i, t = order[i - 1];
    order[i - 1] = order[j];
    order[j] = t;
  }
}

// What does not change from block to block of a launch: rings, thread indices, warps. In a shuffled order
// warps are shuffled among themselves and lanes within each warp.
inline void set_up(Block& b, const Launch& l) {
  uint32_t threads = l.block.x * l.block.y * l.block.z, warps = (threads + kWarp - 1) / kWarp;
  uint32_t warp_order[kMaxThreads / kWarp], lane_order[kWarp];
  lane_permutation(warp_order, warps, l.lane_order);
  Fiber *first = nullptr, *previous = nullptr;
  for (uint32_t k = 0; k < warps; k++) {
    Warp& w = b.warps[warp_order[k]];
    w.index = warp_order[k];
    uint32_t start = w.index * kWarp, lanes = threads - start < kWarp ? threads - start : kWarp;
    w.lanes = lanes;
    w.present = lanes == kWarp ? kFull : (1u << lanes) - 1;
    lane_permutation(lane_order, lanes, l.lane_order < 2 ? l.lane_order : l.lane_order + w.index);
    for (uint32_t i = 0; i < lanes; i++) {
      Fiber& f = b.fibers[start + lane_order[i]];
      f.next_in_warp = &b.fibers[start + lane_order[(i + 1) % lanes]];
      if (previous) previous->next_in_block = &f;
      else first = &f;
      previous = &f;
    }
  }
  previous->next_in_block = first;
  b.first = first;
  for (uint32_t t = 0; t < threads; t++) {
    Fiber& f = b.fibers[t];
    f.lane = t % kWarp;
    f.warp = &b.warps[t / kWarp];
    f.block = &b;
    f.thread = {t % l.block.x, t / l.block.x % l.block.y, t / (l.block.x * l.block.y)};
  }
}

inline void begin(Block& b, const Launch& l, uint64_t linear, uint32_t first_fiber) {
  uint32_t threads = l.block.x * l.block.y * l.block.z;
  b.index = {(uint32_t)(linear % l.grid.x), (uint32_t)(linear / l.grid.x % l.grid.y),
             (uint32_t)(linear / l.grid.x / l.grid.y)};
  b.live = threads;
  b.arrived = 0;
  b.count[0] = b.count[1] = 0;
  b.named_arrived = 0;
  for (uint32_t t = 0; t < threads; t++) {
    Fiber& f = b.fibers[t];
    prepare(&f, l.stacks + (first_fiber + t + 1) * l.stack_stride, fiber_main);
    f.wait_word = &constant_one;
    f.wait_value = 0;
    f.exited = false;
    f.exchanges = f.epoch = 0;
  }
  for (uint32_t w = 0; w * kWarp < threads; w++) {
    Warp& warp = b.warps[w];
    warp.partial_used = 0;
    memset(warp.deposited, 0, sizeof(warp.deposited));
    for (uint32_t i = 0; i < kAhead; i++) {
      warp.ahead[i].generation = i;
      warp.ahead[i].arrived = warp.ahead[i].left = 0;
    }
  }
  memset(b.dynamic_shared, 0xff, l.dynamic_shared_bytes);   // reads of what nobody wrote show as NaN
}

inline size_t static_shared_bytes() { return (size_t)(__stop_simt_shared - __start_simt_shared); }

__attribute__((noinline, cold)) inline void say_lanes(uint32_t lanes) {
  const char* comma = "";
  for (uint32_t i = 0; i < kWarp; i++) {
    if (!(lanes >> i & 1)) continue;
    uint32_t end = i;
    while (end + 1 < kWarp && (lanes >> (end + 1) & 1)) end++;
    if (end > i) say("%s%u-%u", comma, i, end);
    else say("%s%u", comma, i);
    comma = ",";
    i = end;
  }
}

// Lanes that others wait for in an exchange of the full warp, and that did not come.
__attribute__((noinline, cold)) inline void say_absent(Block& b, Warp& w) {
  uint32_t most = 0, absent = 0;
  for (uint32_t i = 0; i < w.lanes; i++) {
    uint32_t n = b.fibers[w.index * kWarp + i].exchanges;
    if (n > most) most = n;
  }
  uint32_t least = most;
  for (uint32_t i = 0; i < w.lanes; i++) {
    uint32_t n = b.fibers[w.index * kWarp + i].exchanges;
    if (n < least) least = n;
  }
  for (uint32_t i = 0; i < w.lanes; i++) absent |= (uint32_t)(b.fibers[w.index * kWarp + i].exchanges == least) << i;
  const Exchange& x = w.ahead[least % kAhead];
  if (most == least || x.generation != least || !x.arrived) return;
  say("\n  warp %u, lanes ", w.index);
  say_lanes(absent);
  say(" never came to %s at %s:%d, which names all 32 lanes", x.name, base_name(x.file), x.line);
}

// Who waits where: lanes of a warp grouped by the place at which they wait.
__attribute__((noinline, cold)) inline void report_deadlock(Block& b, const Launch& l) {
  uint32_t threads = l.block.x * l.block.y * l.block.z;
  say("deadlock in block (%u,%u,%u): no thread can go on.", b.index.x, b.index.y, b.index.z);
  for (uint32_t start = 0; start < threads; start += kWarp) {
    Warp& w = b.warps[start / kWarp];
    uint32_t told = 0;
    for (uint32_t i = 0; i < w.lanes; i++) {
      if (told >> i & 1) continue;
      const Fiber& f = b.fibers[start + i];
      uint32_t same = 0;
      for (uint32_t j = i; j < w.lanes; j++) {
        const Fiber& g = b.fibers[start + j];
        bool alike = f.exited == g.exited && (f.exited || (f.wait_name == g.wait_name && f.wait_line == g.wait_line &&
                                                           f.wait_mask == g.wait_mask));
        same |= (uint32_t)alike << j;
      }
      told |= same;
      say("\n  warp %u, lanes ", w.index);
      say_lanes(same);
      if (f.exited) say(" have exited");
      else if (f.wait_word == &round_number && !strcmp(f.wait_name, "yield"))
        say(" wait for others, and yield at %s:%d", base_name(f.wait_file), f.wait_line);
      else say(" wait %s %s at %s:%d", f.wait_word == &round_number ? "for" : "in", f.wait_name, base_name(f.wait_file),
               f.wait_line);
      if (!f.exited && f.wait_mask) say(" for the lanes of mask 0x%08x", f.wait_mask);
    }
    say_absent(b, w);
  }
}

// Every lane of a warp has ended: each must have been in every exchange of the full warp. Where lanes did not have to
// wait for the one that never came, nothing was blocked; a GPU hangs all the same.
inline void check_exchanges(Block& b, const Launch& l) {
  uint32_t threads = l.block.x * l.block.y * l.block.z;
  for (uint32_t t = 1; t < threads; t++) {
    if (t % kWarp == 0 || b.fibers[t].exchanges == b.fibers[t - 1].exchanges) continue;
    say("lanes missing from an exchange in block (%u,%u,%u):", b.index.x, b.index.y, b.index.z);
    say_absent(b, b.warps[t / kWarp]);
    failed = true;
    return;
  }
}

// Run every fiber of the block that can run. True if any did.
inline bool run_ready(Block& b) {
  current_block = &b;
  Fiber* f = b.first;
  bool any = false;
  for (;;) {
    // Go once round the ring in search of a fiber that can run.
    Fiber* from = f;
    while (blocked(f)) {
      f = f->next_in_block;
      if (f == from) return any;
    }
    any = true;
    switch_to(&scheduler, f);
    if (failed) return any;
  }
}

// ---- whether those that yield wait for what will never come ----

// What threads do to one another, but for stores to global memory: of `blocks`, `shared` bytes each of static memory that
// is saved (in a launch that is not cooperative it is where it is).
inline uint64_t fingerprint(Block* all, uint64_t blocks, const Launch& l) {
  const uint32_t threads = l.block.x * l.block.y * l.block.z;
  const size_t shared = (size_t)(__stop_simt_shared - __start_simt_shared);
  uint64_t h = 1;
  auto mix = [&](uint64_t v) { h = (h ^ v) * 0x9e3779b97f4a7c15ull; h ^= h >> 29; };
  auto mix_memory = [&](const char* p, size_t bytes) {
    uint64_t v;
    for (; bytes >= 8; p += 8, bytes -= 8) memcpy(&v, p, 8), mix(v);
    for (; bytes; p++, bytes--) mix((unsigned char)*p);
  };
  mix(grid_generation);
  for (uint64_t i = 0; i < blocks; i++) {
    const Block& b = all[i];
    mix((uint64_t)b.live << 32 | b.generation);
    mix(b.named_generation);
    for (uint32_t t = 0; t < threads; t++) mix(b.fibers[t].exchanges);
    for (uint32_t w = 0; w * kWarp < threads; w++)
      for (uint32_t k = 0; k < b.warps[w].partial_used; k++) mix(b.warps[w].partial[k].generation);
    mix_memory(b.dynamic_shared, l.dynamic_shared_bytes);
    if (shared) mix_memory(b.saved_shared ? b.saved_shared : __start_simt_shared, shared);
  }
  return h;
}

// Rounds in which nothing happened but yielding. After as many as take a moment, and as many again, it is a deadlock.
struct Silence {
  uint64_t activity, fingerprint;
  uint32_t rounds, limit;
  Silence(uint64_t threads) : activity(0), fingerprint(0), rounds(0) {
    const uint64_t most = (2u << 20) / threads;
    limit = most < 127 ? 127 : most > 2039 ? 2039 : (uint32_t)most;   // odd: what goes to and fro is to show
  }
  bool lasts(Block* all, uint64_t blocks, const Launch& l) {
    if (activity != simt::activity) {
      activity = simt::activity;
      rounds = 0;
    }
    if (++rounds % limit) return false;
    const uint64_t now = simt::fingerprint(all, blocks, l);
    if (rounds > limit && now == fingerprint) return true;
    fingerprint = now;
    rounds = limit;
    return false;
  }
};

static Fiber block_fibers[kMaxThreads];
static Warp block_warps[kMaxThreads / kWarp];

inline size_t round_up(size_t bytes) { return (bytes + 127) / 128 * 128; }

// Dynamic shared memory, with a guard before and behind it in the sanitized build.
inline size_t dynamic_room(const Launch& l) { return round_up(l.dynamic_shared_bytes + 128) + 2 * kGuard; }

inline int run_blocks(Launch& l, uint64_t first, uint64_t last) {
  static Block b;
  b.fibers = block_fibers;
  b.warps = block_warps;
  char* room = (char*)aligned_alloc(128, dynamic_room(l));
  b.dynamic_shared = room + kGuard;
  set_up(b, l);
  for (uint64_t k = first; k < last && !failed; k++) {
    // Sanitized, all blocks are one range, and what depends on the blocks' order is to show as well.
    uint64_t i = kGuard && l.lane_order == 1 ? last - 1 - (k - first) : k;
    if (SIMT_SKIPPED(i)) continue;
    begin(b, l, i, 0);
    if (static_shared_bytes()) memset(__start_simt_shared, 0xff, static_shared_bytes());
    SIMT_SANITIZE(block_begins(b, i, l.block.x * l.block.y * l.block.z, l.dynamic_shared_bytes));
    Silence silence(b.live);
    for (;;) {
      yielded = false;
      run_ready(b);
      if (failed || !yielded || silence.lasts(&b, 1, l)) break;
      round_number++;
    }
    if (b.live && !failed) {
      report_deadlock(b, l);
      failed = true;
    }
    if (!failed) check_exchanges(b, l);
  }
  SIMT_SANITIZE(block_ends(b));
  free(room);
  return failed;
}

// Every block stays resident; they take turns on this one OS thread, and static shared memory is swapped.
inline int run_cooperative(Launch& l) {
  uint64_t blocks = (uint64_t)l.grid.x * l.grid.y * l.grid.z;
  uint32_t threads = l.block.x * l.block.y * l.block.z, warps = (threads + kWarp - 1) / kWarp;
  size_t shared = static_shared_bytes();
  size_t head_bytes = round_up(blocks * sizeof(Block)), fiber_bytes = round_up(threads * sizeof(Fiber));
  size_t warp_bytes = round_up(warps * sizeof(Warp)), dynamic_bytes = dynamic_room(l);
  size_t block_bytes = fiber_bytes + warp_bytes + dynamic_bytes + round_up(shared + 1);
  size_t all_bytes = head_bytes + blocks * block_bytes;
  char* memory = (char*)aligned_alloc(128, all_bytes);
  if (!memory) {
    say("not enough memory for a cooperative launch of this size");
    return 1;
  }
  memset(memory, 0, all_bytes);
  SIMT_SANITIZE(runtime_memory(memory, all_bytes));
  Block* all = (Block*)memory;
  grid_arrived = 0;
  grid_live = (uint32_t)(blocks * threads);
  for (uint64_t i = 0; i < blocks; i++) {
    Block& b = all[i];
    char* mine = memory + head_bytes + i * block_bytes;
    b.fibers = (Fiber*)mine;
    b.warps = (Warp*)(mine + fiber_bytes);
    b.dynamic_shared = mine + fiber_bytes + warp_bytes + kGuard;
    b.saved_shared = mine + fiber_bytes + warp_bytes + dynamic_bytes;
    memset(b.saved_shared, 0xff, shared);
    set_up(b, l);
    begin(b, l, i, (uint32_t)(i * threads));
    SIMT_SANITIZE(block_begins(b, i, threads, l.dynamic_shared_bytes));
  }
  Silence silence(grid_live);
  for (bool progress = true; progress && grid_live && !failed;) {
    progress = yielded = false;
    for (uint64_t i = 0; i < blocks && !failed; i++) {
      if (shared) memcpy(__start_simt_shared, all[i].saved_shared, shared);
      progress |= run_ready(all[i]);
      if (shared) memcpy(all[i].saved_shared, __start_simt_shared, shared);
    }
    if (yielded && !failed && silence.lasts(all, blocks, l)) break;
    round_number++;
  }
  for (uint64_t i = 0, told = 0; i < blocks && (!failed || (told && yielded && told < 4)); i++) {
    if (all[i].live) {
      if (told++) say("\n");
      report_deadlock(all[i], l);   // of several blocks, where each may wait for another's message
      failed = true;
    } else if (!failed) {
      check_exchanges(all[i], l);
    }
  }
  for (uint64_t i = 0; i < blocks; i++) SIMT_SANITIZE(block_ends(all[i]));
  free(memory);
  return failed;
}

}  // namespace simt

// Called by the pool on the worker that owns this copy: blocks [first, last) of the launch.
extern "C" __attribute__((visibility("default"))) int simt_run(simt::Launch* l, uint64_t first, uint64_t last,
                                                               int as_cooperative) {
  simt::launch = l;
  simt::failed = false;
  simt::cooperative = as_cooperative;
  SIMT_SANITIZE(simt::launch_begins(l));
  return as_cooperative ? simt::run_cooperative(*l) : simt::run_blocks(*l, first, last);
}

extern "C" __attribute__((visibility("default"))) uint64_t simt_static_shared_bytes() {
  return simt::static_shared_bytes();
}
#endif
