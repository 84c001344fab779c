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

// The bounds of the section that holds every __shared__ variable of the kernel (absent when it has none).
extern "C" char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));

namespace simt {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kFull = 0xffffffffu;
constexpr uint64_t kPoison = ~0ull;     // NaN as a float, -1 as an int: an undefined value that shows

// The threads of one warp that named the same mask meet here. Values are exchanged through two sets of
// slots used in turn: a lane can be at most one meeting ahead of a lane that has not read the last one.
struct Meeting {
  uint32_t mask;          // 0: free
  uint32_t expected;      // lanes of the mask that exist
  uint32_t missing;       // of those, not yet here
  uint32_t unread;        // partial masks only: lanes that have not resumed from the last meeting
  uint32_t generation;
  int line;               // where, as the first to arrive said; the others must come to the same place
  const char* name;
  const char* file;
  uint32_t votes[2];
  uint64_t slot[2][kWarp];
};

struct Warp {
  uint32_t present;       // lanes that exist (the last warp of a block may be short)
  uint32_t index;
  Meeting full;
  Meeting partial[kWarp];
};

struct Block {
  dim index;              // blockIdx
  uint32_t live, arrived, generation;   // __syncthreads
  uint32_t votes[2], count[2];
  Fiber* fibers;
  Fiber* first;           // to run, in the launch's lane order
  Warp* warps;
  char* dynamic_shared;
  char* saved_shared;     // cooperative launches only: this block's static shared memory while another runs
};

// Filled in by the pool (pool.cpp), read by one worker. Keep in step with pool.cpp.
struct Launch {
  dim grid, block;
  void** args;
  uint32_t dynamic_shared_bytes;
  uint32_t lane_order;    // 0 forward, 1 reverse, else the seed of a shuffled order
  char* stacks;           // max_fibers stacks, stack_stride bytes apart
  size_t stack_stride;
  uint32_t max_fibers;
  char* error;
  uint32_t error_bytes;
};

static Launch* launch;
static Fiber scheduler;       // the OS thread's own stack
static Block* current_block;
static bool failed;

// Grid-wide barrier of cooperative launches.
static bool cooperative;
static uint32_t grid_generation, grid_arrived, grid_live;

void kernel_body(void** args);   // generated behind the kernel's source

inline Block& block() { return *current_block; }

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

#if defined(SIMT_TRACED)
#define SIMT_NEW_EPOCH() (current->epoch++)
#if defined(__clang__)   // its no_sanitize leaves atomics instrumented
#define SIMT_UNTRACED __attribute__((disable_sanitizer_instrumentation))
#else
#define SIMT_UNTRACED __attribute__((no_sanitize("thread")))
#endif
#else
#define SIMT_NEW_EPOCH() ((void)0)
#endif

// ---- waiting ----

// Go to `next` at once, without asking whether it can run: nearly always it can. One that is resumed too early
// hands over to the scheduler, which looks for a fiber that can go on.
inline __attribute__((always_inline)) void wait_until_changed(const uint32_t* word, uint32_t value, Fiber* next) {
  Fiber* self = current;
  self->wait_word = word;
  self->wait_value = value;
  switch_to(self, next);
  while (__builtin_expect(*word == value, 0)) switch_to(self, &scheduler);
}

__attribute__((noinline, cold)) inline void bad_mask(const char* name, uint32_t mask, const char* file, int line) {
  say_place();
  say("%s at %s:%d names the lanes of mask 0x%08x, which does not include the lane that calls it", name,
      base_name(file), line, mask);
  fail_now();
}

__attribute__((noinline, cold)) inline void different_places(const Meeting& m, const char* name, const char* file,
                                                             int line) {
  say_place();
  say("%s at %s:%d meets %s at line %d under the same mask 0x%08x: lanes of one warp that exchange values must "
      "do so in the same call, so move it out of the divergent branch",
      name, base_name(file), line, m.name, m.line, m.mask);
  fail_now();
}

inline void set_mask(Meeting& m, uint32_t mask, uint32_t present) {
  m.mask = mask;
  m.expected = m.missing = (uint32_t)__builtin_popcount(mask & present);
  m.unread = 0;
}

// A lane is in at most one meeting, waiting or not yet resumed, so of 32 places one is always free.
__attribute__((noinline)) inline Meeting& partial_meeting(Warp& w, uint32_t mask) {
  Meeting* unused = nullptr;
  for (Meeting& m : w.partial) {
    if (m.mask == mask) return m;
    if (!unused && m.unread == 0 && m.missing == m.expected) unused = &m;
  }
  set_mask(*unused, mask, w.present);
  return *unused;
}

// Bring `bits` to the meeting of `mask`, wait for the others; returns the meeting and which set to read.
struct Met { Meeting& meeting; uint32_t set; };

template <bool kVote>
inline __attribute__((always_inline)) Met meet(uint32_t mask, uint64_t bits, const char* name, const char* file,
                                               int line) {
  SIMT_NEW_EPOCH();
  Fiber* self = current;
  Warp& warp = *self->warp;
  Meeting& m = mask == kFull ? warp.full : partial_meeting(warp, mask);
  if (__builtin_expect(mask != kFull && !(mask >> self->lane & 1), 0)) bad_mask(name, mask, file, line);
  uint32_t generation = m.generation, set = generation & 1, missing = m.missing;
  if (missing == m.expected) {
    m.line = line;
    m.name = name;
    m.file = file;
    if (kVote) m.votes[set] = 0;
  } else if (__builtin_expect(m.line != line, 0)) {
    different_places(m, name, file, line);
  }
  m.slot[set][self->lane] = bits;
  if (kVote) m.votes[set] |= (uint32_t)(bits & 1) << self->lane;
  m.missing = --missing;
  if (missing == 0) {
    m.missing = m.expected;
    m.generation = generation + 1;
    if (mask != kFull) m.unread = m.expected;
  } else {
    wait_until_changed(&m.generation, generation, self->next_in_warp);
  }
  if (mask != kFull) m.unread--;
  return {m, set};
}

inline void release_barrier(Block& b) {
  b.arrived = 0;
  b.generation++;
  b.count[b.generation & 1] = 0;
}

// Threads may come to one barrier from several places, so each remembers its own, for the report of a deadlock.
inline __attribute__((always_inline)) void wait_at_barrier(const uint32_t* word, uint32_t generation, const char* name,
                                                           const char* file, int line) {
  Fiber* self = current;
  self->barrier_name = name;
  self->barrier_file = file;
  self->barrier_line = line;
  wait_until_changed(word, generation, self->next_in_block);
}

// Returns how many threads of the block came with `vote` true. Threads that have exited are not waited for.
inline __attribute__((always_inline)) uint32_t block_barrier(bool vote, const char* name, const char* file, int line) {
  SIMT_NEW_EPOCH();
  Block& b = *current->block;
  uint32_t generation = b.generation, set = generation & 1;
  b.count[set] += vote;
  if (++b.arrived == b.live) release_barrier(b);
  else wait_at_barrier(&b.generation, generation, name, file, line);
  return b.count[set];
}

inline void grid_barrier(const char* file, int line) {
  SIMT_NEW_EPOCH();
  if (!cooperative) {
    say_place();
    say("grid sync at %s:%d in a launch that is not cooperative", base_name(file), line);
    fail_now();
  }
  uint32_t generation = grid_generation;
  if (++grid_arrived == grid_live) {
    grid_arrived = 0;
    grid_generation++;
  } else {
    wait_at_barrier(&grid_generation, generation, "grid sync", file, line);
  }
}

// ---- the life of a fiber ----

inline void fiber_main() {
  kernel_body(launch->args);
  Fiber* self = current;
  Block& b = *self->block;
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
    w.present = lanes == kWarp ? kFull : (1u << lanes) - 1;
    set_mask(w.full, kFull, w.present);
    memset(w.full.slot, 0xff, sizeof(w.full.slot));   // what a lane that does not exist would say
    for (Meeting& m : w.partial) set_mask(m, 0, 0);
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
  for (uint32_t t = 0; t < threads; t++) {
    Fiber& f = b.fibers[t];
    prepare(&f, l.stacks + (first_fiber + t + 1) * l.stack_stride, fiber_main);
    f.wait_word = &constant_one;
    f.wait_value = 0;
    f.exited = false;
    f.epoch = 0;
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

// Where a fiber waits: at the meeting or the barrier whose generation it watches.
struct Place { const char* name; const char* file; int line; uint32_t mask; };

inline Place waits_at(const Fiber& f) {
  if (f.wait_word == &f.warp->full.generation) return {f.warp->full.name, f.warp->full.file, f.warp->full.line, kFull};
  for (const Meeting& m : f.warp->partial)
    if (f.wait_word == &m.generation) return {m.name, m.file, m.line, m.mask};
  return {f.barrier_name, f.barrier_file, f.barrier_line, 0};
}

// Who waits where: lanes of a warp grouped by the place at which they wait.
__attribute__((noinline, cold)) inline void report_deadlock(Block& b, const Launch& l) {
  uint32_t threads = l.block.x * l.block.y * l.block.z;
  say("deadlock in block (%u,%u,%u): no thread can go on.", b.index.x, b.index.y, b.index.z);
  for (uint32_t start = 0; start < threads; start += kWarp) {
    uint32_t lanes = threads - start < kWarp ? threads - start : kWarp, told = 0;
    for (uint32_t i = 0; i < lanes; i++) {
      if (told >> i & 1) continue;
      const Fiber& f = b.fibers[start + i];
      const Place place = f.exited ? Place{} : waits_at(f);
      uint32_t same = 0;
      for (uint32_t j = i; j < lanes; j++) {
        const Fiber& g = b.fibers[start + j];
        const Place other = g.exited ? Place{} : waits_at(g);
        if (other.name == place.name && other.line == place.line && other.mask == place.mask) same |= 1u << j;
      }
      told |= same;
      say("\n  warp %u, lanes ", start / kWarp);
      say_lanes(same);
      if (f.exited) say(" have exited");
      else say(" wait in %s at %s:%d", place.name, base_name(place.file), place.line);
      if (place.mask) say(" for the lanes of mask 0x%08x", place.mask);
    }
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

static Fiber block_fibers[kMaxThreads];
static Warp block_warps[kMaxThreads / kWarp];

inline int run_blocks(Launch& l, uint64_t first, uint64_t last) {
  static Block b;
  b.fibers = block_fibers;
  b.warps = block_warps;
  b.dynamic_shared = (char*)aligned_alloc(128, (l.dynamic_shared_bytes + 255) / 128 * 128);
  set_up(b, l);
  for (uint64_t i = first; i < last && !failed; i++) {
    begin(b, l, i, 0);
    if (static_shared_bytes()) memset(__start_simt_shared, 0xff, static_shared_bytes());
    run_ready(b);
    if (b.live && !failed) {
      report_deadlock(b, l);
      failed = true;
    }
  }
  free(b.dynamic_shared);
  return failed;
}

// Every block stays resident; they take turns on this one OS thread, and static shared memory is swapped.
inline int run_cooperative(Launch& l) {
  uint64_t blocks = (uint64_t)l.grid.x * l.grid.y * l.grid.z;
  uint32_t threads = l.block.x * l.block.y * l.block.z, warps = (threads + kWarp - 1) / kWarp;
  size_t shared = static_shared_bytes(), dynamic = (l.dynamic_shared_bytes + 255) / 128 * 128;
  Block* all = (Block*)calloc(blocks, sizeof(Block));
  grid_arrived = 0;
  grid_live = (uint32_t)(blocks * threads);
  for (uint64_t i = 0; i < blocks; i++) {
    Block& b = all[i];
    b.fibers = (Fiber*)aligned_alloc(64, threads * sizeof(Fiber));
    b.warps = (Warp*)calloc(warps, sizeof(Warp));
    b.dynamic_shared = (char*)aligned_alloc(128, dynamic);
    b.saved_shared = (char*)malloc(shared + 1);
    memset(b.saved_shared, 0xff, shared);
    set_up(b, l);
    begin(b, l, i, (uint32_t)(i * threads));
  }
  for (bool progress = true; progress && grid_live && !failed;) {
    progress = false;
    for (uint64_t i = 0; i < blocks && !failed; i++) {
      if (shared) memcpy(__start_simt_shared, all[i].saved_shared, shared);
      progress |= run_ready(all[i]);
      if (shared) memcpy(all[i].saved_shared, __start_simt_shared, shared);
    }
  }
  for (uint64_t i = 0; i < blocks && grid_live && !failed; i++) {
    if (!all[i].live) continue;
    report_deadlock(all[i], l);
    failed = true;
  }
  for (uint64_t i = 0; i < blocks; i++) {
    free(all[i].fibers);
    free(all[i].warps);
    free(all[i].dynamic_shared);
    free(all[i].saved_shared);
  }
  free(all);
  return failed;
}

}  // namespace simt

// Called by the pool on the worker that owns this copy: blocks [first, last) of the launch.
extern "C" __attribute__((visibility("default"))) int simt_run(simt::Launch* l, uint64_t first, uint64_t last,
                                                               int as_cooperative) {
  simt::launch = l;
  simt::failed = false;
  simt::cooperative = as_cooperative;
  return as_cooperative ? simt::run_cooperative(*l) : simt::run_blocks(*l, first, last);
}

extern "C" __attribute__((visibility("default"))) uint64_t simt_static_shared_bytes() {
  return simt::static_shared_bytes();
}
