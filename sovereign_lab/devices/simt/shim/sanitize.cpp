// The sanitized build's second object: what a kernel must not do to memory, checked at every access.
//
// The kernel's object is compiled with the calls of the compiler's thread sanitiser, and of its coverage at every
// basic block; the calls end here, in an object compiled without them, once for all kernels. Each byte of an array
// and of shared memory has a byte that says whether it exists and was ever written, each element a cell that says who
// wrote it last and who has read it since.
//
// Two accesses race if they touch the same bytes, one of them writes, they are not both atomic (or volatile), and
// nothing orders them. What orders: a thread's own program; __syncthreads for a block; __syncwarp for the lanes that
// it names; the grid's sync; and, from block to block, a __threadfence before an atomic whose location the other block
// then reads by an atomic, or say and peek (messages.h) in place of atomics; barrier_of for the warps that it names; and
// an arrival of a bulk copy that was waited for, for what the copying warp did before; and so within a block a fence
// before an atomic or volatile write, for those who read that. Shuffles and votes order no memory (CUDA C++ Programming Guide, warp functions). Writes of
// equal values by the same line are no race: at least one of them takes place.
#include <dlfcn.h>
#include <sys/mman.h>
#include <time.h>

#define SIMT_SANITIZE_OBJECT
#include "runtime.h"

#if defined(__APPLE__)
#include <mach-o/getsect.h>
#include <mach-o/ldsyms.h>
#else
extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));
#endif

#define SIMT_CALLBACK extern "C" __attribute__((visibility("default")))
#define SIMT_CALLER __builtin_return_address(0)
#define SIMT_FAST inline __attribute__((always_inline))

namespace simt {

// ---- what measure/sanitizer_run.py reads: keep in step with it ----

enum Kind : uint32_t { kOutOfBounds, kUninitialised, kRace, kBarrier, kMisaligned, kSpin, kTimeout, kIndex };
enum How : uint32_t { kRead = 0, kWrite = 1, kAtomic = 2, kVolatile = 4 };   // bits

struct Finding {
  uint64_t count, address, place, other_place;    // places: return addresses less the library's start
  const char *file, *other_file, *name, *other_name;
  uint32_t kind, how, other_how, size, line, other_line;
  uint32_t thread, other_thread;                  // within the launch
  uint32_t space, padding;                        // 0 global, 1 static, 2 dynamic shared (its first byte is 0), 3 none
};
constexpr uint32_t kMaxFindings = 1024;
static Finding findings[kMaxFindings];
static uint32_t finding_count;
static bool stopped;                              // the launch was given up because of a finding

// ---- what is known of memory ----

constexpr uint8_t kExists = 1, kUnwritten = kExists, kWritten = 3;

struct Record { uint32_t who, time, what; };      // what: 25 bits of place, 4 of bytes within the cell, 3 of How
struct Cell { Record write, read[2]; };
struct Page { Cell* cells; uint64_t shift; };    // of 256 bytes; no cells: nobody writes there, or it belongs to none

struct Space {                                    // one kind of a block's shared memory
  uint64_t start, bytes;
  uint8_t* valid;
  Cell* cells;
};
// What happened before an arrival's last phase ended, or before a flag was written behind a fence: what the lanes of
// each warp did before these times.
struct Arrived { uint64_t address; uint32_t since[kMaxThreads / kWarp]; };
constexpr uint32_t kMaxArrivals = 65536, kMaxBlockFlags = 256;   // an arrival's number has 16 bits
struct Shadow {
  Space fixed, dynamic;
  Arrived* arrivals;
  uint32_t arrival_count, arrival_room, flag_count;
};

static bool active;
static uint64_t arena_start, arena_bytes;
static uint8_t* arena_valid;
static Page* pages;
static uint64_t library_start, library_bytes, slab_start, slab_bytes;
static uint8_t* fixed_valid;                      // static shared memory at the start of a block
static uint32_t shared_shift;
static uint32_t block_threads, now = 1, grid_since;
static Launch own_launch;
static double deadline, time_limit;

static void* pages_of_zeros(size_t bytes) {
  void* m = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) abort();
  return m;
}

static double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- findings ----

static uint64_t place_of(void* caller) { return (uint64_t)caller - library_start; }

__attribute__((noinline, cold)) static void found(const Finding& f) {
  for (uint32_t i = 0; i < finding_count; i++) {
    Finding& g = findings[i];
    if (g.kind == f.kind && g.place == f.place && g.other_place == f.other_place && g.how == f.how &&
        g.line == f.line && g.other_line == f.other_line && g.space == f.space) {
      // Of all the threads that do it, the lowest is told of.
      const uint64_t count = g.count + 1;
      if (f.thread < g.thread) g = f;
      g.count = count;
      return;
    }
  }
  if (finding_count == kMaxFindings) return;
  findings[finding_count] = f;
  findings[finding_count++].count = 1;
}

// A finding about one access; the caller adds what only its kind has.
static Finding fault(Kind kind, const Fiber* f, uint64_t a, uint32_t n, uint32_t how, uint64_t place, uint32_t space) {
  Finding g = {};
  g.kind = kind;
  g.address = space == 2 ? a - (f->block->shadow->dynamic.start + kGuard) : a;
  g.place = place;
  g.how = how;
  g.size = n;
  g.thread = f->id;
  g.space = space;
  return g;
}

__attribute__((noinline, cold)) static void give_up() {
  stopped = true;
  say("stopped by a finding of the sanitizer");
  fail_now();
}

// ---- order ----

// Whose writes a block may read because of fences and atomics: lists of blocks, by the atomic's address. An atomic
// behind a fence publishes what its block has done and seen; an atomic on the same address takes it over.
constexpr uint32_t kMaxFlags = 256;
static struct { uint64_t address; uint64_t* blocks; } flags[kMaxFlags];
static uint32_t flag_count;
static uint64_t block_words;                      // of a list of blocks

static uint64_t* merge(uint64_t* into, const uint64_t* from) {
  if (!into) into = (uint64_t*)calloc(block_words, 8);
  if (from)
    for (uint64_t i = 0; i < block_words; i++) into[i] |= from[i];
  return into;
}

static void publish_and_take_over(Fiber* f, uint64_t address, bool publish = true, bool take_over = true) {
  Block& b = *f->block;
  uint32_t i = 0;
  while (i < flag_count && flags[i].address != address) i++;
  if (i < flag_count && take_over) b.acquired = merge(b.acquired, flags[i].blocks);
  if (!f->fenced || !publish || i == kMaxFlags) return;
  if (i == flag_count) flags[flag_count++] = {address, nullptr};
  uint64_t block = b.first_id / block_threads;
  flags[i].blocks = merge(flags[i].blocks, b.acquired);
  flags[i].blocks[block / 64] |= 1ull << block % 64;
}

// Whether what the record tells of happened before whatever this thread does now.
template <bool kShared> SIMT_FAST bool ordered(const Record& r, const Fiber* f) {
  if (!r.time || r.who == f->id) return true;
  const Block& b = *f->block;
  uint32_t thread = r.who - b.first_id;
  if (thread < block_threads) {
    if (r.time < b.since || r.time < grid_since) return true;
    const uint32_t theirs = thread / kWarp, mine = (f->id - b.first_id) / kWarp;
    if (theirs == mine && (r.time < f->warp->since || r.time < f->lane_since[thread % kWarp])) return true;
    return r.time < b.named_since[theirs > mine ? theirs : mine] || r.time < f->warp_since[theirs];
  }
  if (kShared) return true;                       // of the block that ran here before
  if (r.time < grid_since) return true;
  uint64_t block = r.who / block_threads;
  return b.acquired && b.acquired[block / 64] >> block % 64 & 1;
}

// A second write to the same bytes, by the line of the first: no race if it does not change them, which shows only when
// it has been made.
static struct { bool open; Finding finding; const void* address; unsigned char before[16]; } doubt;

__attribute__((noinline)) static void settle() {
  doubt.open = false;
  if (memcmp(doubt.before, doubt.address, doubt.finding.size)) found(doubt.finding);
}

static uint32_t new_arrival(Shadow& s, uint64_t address) {
  if (s.arrival_count == kMaxArrivals) abort();
  if (s.arrival_count == s.arrival_room) {
    s.arrival_room = s.arrival_room ? 2 * s.arrival_room : 64;
    s.arrivals = (Arrived*)realloc(s.arrivals, s.arrival_room * sizeof(Arrived));
    if (!s.arrivals) abort();
  }
  s.arrivals[s.arrival_count] = {address, {}};
  return s.arrival_count++;
}

// Whoever learns of it has behind it what this thread has done, and what it knows of.
static void tell(Arrived& arrived, const Fiber* f) {
  now++;
  const uint32_t mine = f->warp->index;
  for (uint32_t w = 0; w < kMaxThreads / kWarp; w++) {
    const uint32_t both = f->block->named_since[w > mine ? w : mine];
    if (f->warp_since[w] > arrived.since[w]) arrived.since[w] = f->warp_since[w];
    if (both > arrived.since[w]) arrived.since[w] = both;
  }
  arrived.since[mine] = now;
}

static void learn(const Arrived& arrived, Fiber* f) {
  for (uint32_t w = 0; w < kMaxThreads / kWarp; w++)
    if (arrived.since[w] > f->warp_since[w]) f->warp_since[w] = arrived.since[w];
}

// A flag within a block: written behind a fence, it tells; read, it is learnt from.
static void flag_passed(Fiber* f, uint64_t address, bool writes, bool reads) {
  Shadow& s = *f->block->shadow;
  writes &= f->fenced_block;
  if (!writes && !s.flag_count) return;
  uint32_t i = 0;
  while (i < s.arrival_count && s.arrivals[i].address != address) i++;
  if (i == s.arrival_count) {
    if (!writes || s.flag_count == kMaxBlockFlags) return;
    s.flag_count++;
    new_arrival(s, address);
  }
  if (reads) learn(s.arrivals[i], f);
  if (writes) tell(s.arrivals[i], f);
}

template <bool kShared>
__attribute__((noinline)) static void race(const Record& r, Fiber* f, uint64_t a, uint32_t n, uint32_t how, uint64_t place,
                                           uint32_t space) {
  Finding g = fault(kRace, f, a, n, how, place, space);
  g.other_place = r.what >> 7;
  g.other_how = r.what & 7;
  g.other_thread = r.who;
  if (place == g.other_place && (how & g.other_how & kWrite) && !((how | g.other_how) & kAtomic) && n <= 16) {
    if (doubt.open) settle();
    doubt.open = true;
    doubt.finding = g;
    doubt.address = (const void*)a;
    memcpy(doubt.before, (const void*)a, n);
  } else {
    found(g);
  }
}

SIMT_FAST bool both_atomic(uint32_t a, uint32_t b) { return (a & 6) && (b & 6); }

template <bool kShared>
SIMT_FAST void order(Cell* cells, uint32_t shift, uint64_t offset, uint64_t a, uint32_t n, uint32_t how, uint64_t place,
                     Fiber* f, uint32_t space) {
  const uint64_t first = offset >> shift, last = (offset + n - 1) >> shift;
  const uint32_t whole = (1u << shift) - 1;
  for (uint64_t c = first; c <= last; c++) {
    Cell& cell = cells[c];
    const uint32_t low = c == first ? offset & whole : 0, high = c == last ? (offset + n - 1) & whole : whole;
    const uint32_t bytes = ((2u << high) - (1u << low)) << 3;
    const Record mine = {f->id, now, (uint32_t)place << 7 | bytes | how};
#define SIMT_RACES(r) (((r).what & bytes) && !ordered<kShared>(r, f) && !both_atomic((r).what, how))
    if (__builtin_expect(SIMT_RACES(cell.write), 0)) race<kShared>(cell.write, f, a, n, how, place, space);
    if (how & kWrite) {
      if (cell.read[0].time) {
        if (__builtin_expect(SIMT_RACES(cell.read[0]), 0)) race<kShared>(cell.read[0], f, a, n, how, place, space);
        else if (__builtin_expect(SIMT_RACES(cell.read[1]), 0)) race<kShared>(cell.read[1], f, a, n, how, place, space);
        cell.read[0].time = cell.read[1].time = 0;
      }
      cell.write = mine;
    } else {
      // Of readers that nothing orders, two are kept, of different warps where there are such.
      Record *r = cell.read, *s = r + 1;
      if (ordered<kShared>(*r, f)) *r = mine;
      else if (ordered<kShared>(*s, f)) *s = mine;
      else if (r->who / kWarp == s->who / kWarp && f->id / kWarp != r->who / kWarp) *s = mine;
    }
#undef SIMT_RACES
  }
}

// ---- one access ----

// Whether a byte of it does not exist; such an access is not looked at further.
__attribute__((noinline, cold)) static bool invalid(const uint8_t* valid, Fiber* f, uint64_t a, uint32_t n, uint32_t how,
                                                    uint64_t place, uint32_t space) {
  bool exists = true;
  for (uint32_t i = 0; i < n; i++) exists &= valid[i] != 0;
  found(fault(exists ? kUninitialised : kOutOfBounds, f, a, n, how, place, space));
  return !exists;
}

template <class T> SIMT_FAST bool all_bytes(uint8_t* valid, bool must_be_written, bool writes) {
  constexpr T ones = (T)0x0101010101010101ull, written = (T)(ones * kWritten), exists = (T)(ones * kExists);
  T v;
  memcpy(&v, valid, sizeof(T));
  if (must_be_written ? v != written : (v & exists) != exists) return false;
  if (writes && v != written) memcpy(valid, &written, sizeof(T));
  return true;
}

// Whether all bytes exist, and were written if this reads them; marks them written if this writes.
SIMT_FAST bool check_valid(uint8_t* valid, uint32_t n, uint32_t how) {
  const bool reads = !(how & kWrite) || (how & kAtomic), writes = how & kWrite;
  switch (n) {
    case 1: return all_bytes<uint8_t>(valid, reads, writes);
    case 2: return all_bytes<uint16_t>(valid, reads, writes);
    case 4: return all_bytes<uint32_t>(valid, reads, writes);
    case 8: return all_bytes<uint64_t>(valid, reads, writes);
    case 16: return all_bytes<uint64_t>(valid, reads, writes) && all_bytes<uint64_t>(valid + 8, reads, writes);
  }
  bool good = true;
  for (uint32_t i = 0; i < n; i++) good &= all_bytes<uint8_t>(valid + i, reads, writes);
  return good;
}

static void out_of_bounds(uint64_t a, uint32_t n, uint32_t how, uint64_t place, Fiber* f);

SIMT_FAST void in_space(const Space& s, uint64_t offset, uint64_t a, uint32_t n, uint32_t how, uint64_t place, Fiber* f,
                        uint32_t space) {
  if (__builtin_expect(offset + n > s.bytes, 0)) return out_of_bounds(a, n, how, place, f);
  if (__builtin_expect(!check_valid(s.valid + offset, n, how), 0) &&
      invalid(s.valid + offset, f, a, n, how, place, space))
    return;
  order<true>(s.cells, shared_shift, offset, a, n, how, place, f, space);
}

// An address at which there may be no memory: the launch ends before the access.
__attribute__((noinline, cold)) static void out_of_bounds(uint64_t a, uint32_t n, uint32_t how, uint64_t place, Fiber* f) {
  found(fault(kOutOfBounds, f, a, n, how, place, 3));
  give_up();
}

static bool out_of_time;                          // the next access ends the launch

__attribute__((noinline, cold)) static void ran_out(uint64_t a, uint32_t n, uint32_t how, uint64_t place, uint32_t space);

// Neither an array nor the library: shared memory that the launch asked for, the thread's own stack, or a fault.
__attribute__((noinline)) static void elsewhere(uint64_t a, uint32_t n, uint32_t how, uint64_t place, Fiber* f) {
  if (!active || !f || !f->block) return;
  Space& s = f->block->shadow->dynamic;
  if (a - s.start < s.bytes) return in_space(s, a - s.start, a, n, how, place, f, 2);
  uint64_t stack = cooperative ? f->id : f->id - f->block->first_id;
  uint64_t lowest = (uint64_t)launch->stacks + stack * launch->stack_stride;
  if (a - lowest < launch->stack_stride || a - slab_start < slab_bytes) return;
  out_of_bounds(a, n, how, place, f);
}

SIMT_FAST void access(uint64_t a, uint32_t n, uint32_t how, void* caller) {
  if (__builtin_expect(doubt.open, 0)) settle();
  Fiber* f = current;
  uint64_t offset = a - arena_start;
  const uint64_t place = place_of(caller);
  if (__builtin_expect(offset < arena_bytes, 1)) {
    if (__builtin_expect(offset + n > arena_bytes, 0)) return out_of_bounds(a, n, how, place, f);
    const Page& page = pages[offset >> 8];
    if (__builtin_expect(!check_valid(arena_valid + offset, n, how), 0) &&
        invalid(arena_valid + offset, f, a, n, how, place, 0))
      return;
    if (page.cells) order<false>(page.cells, (uint32_t)page.shift, offset, a, n, how, place, f, 0);
    if (__builtin_expect(out_of_time, 0)) ran_out(a, n, how, place, 0);
    return;
  }
  if (a - library_start < library_bytes) {
    offset = a - (uint64_t)__start_simt_shared;
    if (offset < (uint64_t)(__stop_simt_shared - __start_simt_shared) && active && f->block) {
      in_space(f->block->shadow->fixed, offset, a, n, how, place, f, 1);
      if (__builtin_expect(out_of_time, 0)) ran_out(a, n, how, place, 1);
    }
    return;
  }
  elsewhere(a, n, how, place, f);
}

__attribute__((noinline)) static void seldom(uint64_t a, uint64_t n, uint32_t how, void* caller) {
  if (n) access(a, n < 0xffffffff ? (uint32_t)n : 0xffffffff, how, caller);
}

// ---- time ----

static uint32_t budget = 1;                       // basic blocks until the clock is looked at
constexpr uint32_t kBudget = 1 << 16;
static const Fiber* running;                      // as the clock was looked at last
static uint32_t running_epoch;
static double running_since;

__attribute__((noinline, cold)) static void ran_out(uint64_t a, uint32_t n, uint32_t how, uint64_t place, uint32_t space) {
  Kind kind = seconds() - running_since >= time_limit / 2 ? kSpin : kTimeout;
  out_of_time = false;
  found(fault(kind, current, a, n, how, place, space));
  give_up();
}

__attribute__((noinline, cold)) static void look_at_the_clock(uint64_t place) {
  budget = kBudget;
  Fiber* f = current;
  if (!active || !f || !f->block) return;
  double time = seconds();
  if (f != running || f->epoch != running_epoch) {
    running = f;
    running_epoch = f->epoch;
    running_since = time;
  }
  // Half as long again, to be sure that it is one lane that does not end, and not the launch as a whole.
  if (time < deadline || (time - running_since < time_limit / 2 && time < deadline + time_limit / 2)) return;
  if (out_of_time) ran_out(0, 0, 0, place, 3);    // no access since the last look
  out_of_time = true;
}

// ---- what runtime.h tells ----

void launch_begins(Launch* l) {
  own_launch = *l;
  launch = &own_launch;
  current = &scheduler;
  block_threads = l->block.x * l->block.y * l->block.z;
  block_words = ((uint64_t)l->grid.x * l->grid.y * l->grid.z + 63) / 64;
  now++;
  grid_since = 0;
  slab_bytes = 0;
  doubt.open = out_of_time = stopped = false;
  running = nullptr;
  deadline = seconds() + time_limit;
#if defined(__APPLE__)
  unsigned long size;
  library_start = (uint64_t)&_mh_dylib_header;
  library_bytes = (uint64_t)getsegmentdata(&_mh_dylib_header, "__DATA", &size) - library_start;
  library_bytes += size;
#else
  library_start = (uint64_t)__ehdr_start;
  library_bytes = (uint64_t)(_end - __ehdr_start);
#endif
}

void runtime_memory(void* start, size_t bytes) {
  slab_start = (uint64_t)start;
  slab_bytes = bytes;
}

static Space make_space(char* start, uint64_t bytes) {
  uint64_t cells = (bytes >> shared_shift) + 1;
  return {(uint64_t)start, bytes, (uint8_t*)pages_of_zeros(bytes + 16), (Cell*)pages_of_zeros(cells * sizeof(Cell))};
}

static void free_space(Space& s) {
  munmap(s.valid, s.bytes + 16);
  munmap(s.cells, ((s.bytes >> shared_shift) + 1) * sizeof(Cell));
}

void block_begins(Block& b, uint64_t linear, uint32_t threads, uint32_t dynamic_bytes) {
  if (!active) return;
  uint64_t fixed = static_shared_bytes();
  if (!b.shadow) {
    b.shadow = (Shadow*)calloc(1, sizeof(Shadow));
    b.shadow->fixed = make_space(__start_simt_shared, fixed);
    b.shadow->dynamic = make_space(b.dynamic_shared - kGuard, dynamic_bytes + 2 * kGuard);
    memset(b.shadow->dynamic.valid + kGuard, kExists, dynamic_bytes);
  } else {
    memset(b.shadow->dynamic.valid + kGuard, kExists, dynamic_bytes);
  }
  memcpy(b.shadow->fixed.valid, fixed_valid, fixed);
  b.shadow->arrival_count = b.shadow->flag_count = 0;
  memset(b.named_since, 0, sizeof(b.named_since));
  b.first_id = (uint32_t)linear * threads;
  for (uint32_t t = 0; t < threads; t++) {
    b.fibers[t].id = b.first_id + t;
    b.fibers[t].fenced = b.fibers[t].fenced_block = false;
    memset(b.fibers[t].warp_since, 0, sizeof(b.fibers[t].warp_since));
  }
  free(b.acquired);
  b.acquired = nullptr;
  b.since = ++now;
}

void block_ends(Block& b) {
  if (doubt.open && !failed) settle();
  doubt.open = false;
  if (!b.shadow) return;
  free_space(b.shadow->fixed);
  free_space(b.shadow->dynamic);
  free(b.shadow->arrivals);
  free(b.shadow);
  free(b.acquired);
  b.shadow = nullptr;
  b.acquired = nullptr;
}

void barrier_reached(Block& b, Place at) {
  if (!active) return;
  if (!b.arrived) {
    b.barrier_line = at.line;
    b.barrier_name = at.name;
    b.barrier_file = at.file;
  } else if (b.barrier_line != at.line || strcmp(b.barrier_file, at.file)) {
    Finding g = fault(kBarrier, current, 0, 0, 0, 0, 3);
    g.line = (uint32_t)at.line;
    g.file = at.file;
    g.name = at.name;
    g.other_line = (uint32_t)b.barrier_line;
    g.other_file = b.barrier_file;
    g.other_name = b.barrier_name;
    found(g);
  }
}

void barrier_released(Block& b) { b.since = ++now; }
void grid_released() { grid_since = ++now; }
void fence_passed() { current->fenced = current->fenced_block = true; }
void block_fence_passed() { current->fenced_block = true; }

// What one of some threads knows by arrivals, all know when they have met.
static void share_arrivals(Fiber* fibers, uint32_t count, uint32_t mask = kFull) {
  if (!active || !current->block->shadow->arrival_count) return;
  constexpr uint32_t warps = kMaxThreads / kWarp;
  uint32_t known[warps] = {};
  for (uint32_t t = 0; t < count; t++)
    for (uint32_t w = 0; (mask >> t % kWarp & 1) && w < warps; w++)
      if (fibers[t].warp_since[w] > known[w]) known[w] = fibers[t].warp_since[w];
  for (uint32_t t = 0; t < count; t++)
    if (mask >> t % kWarp & 1) memcpy(fibers[t].warp_since, known, sizeof(known));
}

void named_barrier_released(Block& b, uint32_t threads) {
  now++;
  for (uint32_t w = 0; w < threads / kWarp; w++) b.named_since[w] = now;
  share_arrivals(b.fibers, threads);
}
void thread_ends() {
  if (doubt.open) settle();
}

// All lanes of the mask are here: what any of them has done, and what any of them knew of, happened before what any of
// them does next.
void warp_met(Warp& w, uint32_t mask) {
  now++;
  share_arrivals(current->block->fibers + w.index * kWarp, w.lanes, mask);
  if (mask == kFull) {
    w.since = now;
    return;
  }
  Fiber* fibers = current->block->fibers + w.index * kWarp;
  uint32_t known[kWarp] = {};
  mask &= w.present;
  for (uint32_t i = 0; i < w.lanes; i++)
    for (uint32_t j = 0; (mask >> i & 1) && j < kWarp; j++)
      if (fibers[i].lane_since[j] > known[j]) known[j] = fibers[i].lane_since[j];
  for (uint32_t i = 0; i < w.lanes; i++)
    for (uint32_t j = 0; (mask >> i & 1) && j < kWarp; j++) fibers[i].lane_since[j] = mask >> j & 1 ? now : known[j];
}

void misaligned(const char* file, int line, const char* type, uint64_t address, uint32_t alignment, uint32_t access) {
  // The shim's own copying of a vector was told at the line that asked for it.
  if (!active || !current->block || !strcmp(base_name(file), "cuda_shim.h")) return;
  // UBSan counts a load as 0 and a store as 1. The compiler may use an instruction that faults, as a GPU's does, so the
  // launch ends before the access.
  Finding g = fault(kMisaligned, current, address, alignment, access == 1 ? kWrite : kRead, 0, 3);
  g.file = file;
  g.line = (uint32_t)line;
  g.name = type;
  found(g);
  give_up();
}

// An index outside of an array whose size the compiler knows: a thread's own, or a shared one. A write there would hit
// the stack, so the launch ends.
__attribute__((cold)) static void bad_index(const char* file, uint32_t line, const char* type, uint64_t index) {
  if (!active || !current->block) return;
  Finding g = fault(kIndex, current, index, 0, 0, 0, 3);
  g.file = file;
  g.line = line;
  g.name = type;
  found(g);
  give_up();
}

void atomic_access(void* p, uint32_t size, void* caller) {
  seldom((uint64_t)p, size, kWrite | kAtomic, caller);
  if (!active || !current->block) return;
  publish_and_take_over(current, (uint64_t)p);
  flag_passed(current, (uint64_t)p, true, true);
}

static void volatile_access(uint64_t a, uint32_t n, uint32_t how, void* caller) {
  seldom(a, n, how, caller);
  if (active && current->block) flag_passed(current, a, how & kWrite, !(how & kWrite));
}

void message_access(const void* p, uint32_t size, bool writes, void* caller) {
  seldom((uint64_t)p, size, writes ? kWrite | kVolatile : kVolatile, caller);
  if (!active || !current->block) return;
  for (uint32_t word = 0; word < size; word += 4) {
    publish_and_take_over(current, (uint64_t)p + word, writes, !writes);
    flag_passed(current, (uint64_t)p + word, writes, !writes);
  }
}

// ---- arrivals of bulk copies ----

// An arrival is written by one thread before others name it, which a barrier must order.
uint32_t arrival_made(void* a, void* caller) {
  seldom((uint64_t)a, 8, kWrite, caller);
  if (!active) return 0;
  Shadow& s = *current->block->shadow;
  for (uint32_t i = 0; i < s.arrival_count; i++)
    if (s.arrivals[i].address == (uint64_t)a) return i;
  return new_arrival(s, (uint64_t)a);
}

void arrival_asked(const void* a, uint32_t number, bool ended, void* caller) {
  seldom((uint64_t)a, 8, kVolatile, caller);
  if (!active || !ended) return;
  learn(current->block->shadow->arrivals[number], current);
}

// The copy's own writes race with nothing that came before, only with what is not ordered behind them.
static void bulk_written(const Space& s, uint64_t offset, uint32_t bytes, uint64_t place, Fiber* f) {
  for (uint32_t i = 0; i < bytes; i++)
    if (!s.valid[offset + i]) {                      // the room behind a variable
      found(fault(kOutOfBounds, f, s.start + offset, bytes, kWrite, place, &s == &f->block->shadow->fixed ? 1 : 2));
      give_up();
    }
  memset(s.valid + offset, kWritten, bytes);
  const uint32_t whole = (1u << shared_shift) - 1;   // a multiple of 16 bytes: whole cells
  for (uint64_t c = offset >> shared_shift; c <= (offset + bytes - 1) >> shared_shift; c++)
    s.cells[c] = {{f->id, now, (uint32_t)place << 7 | ((2u << whole) - 1) << 3 | kWrite}, {}};
}

void bulk_begins(void* to, const void* from, uint32_t bytes, void* a, uint32_t number, void* caller) {
  seldom((uint64_t)from, bytes, 0, caller);
  seldom((uint64_t)a, 8, kWrite | kVolatile, caller);
  if (!active || !bytes) return;
  Fiber* f = current;
  Shadow& s = *f->block->shadow;
  const uint64_t place = place_of(caller), in_fixed = (uint64_t)to - s.fixed.start;
  if (in_fixed < s.fixed.bytes) bulk_written(s.fixed, in_fixed, bytes, place, f);
  else bulk_written(s.dynamic, (uint64_t)to - s.dynamic.start, bytes, place, f);
  tell(s.arrivals[number], f);
}

}  // namespace simt

// ---- the calls that the compiler puts in ----

struct OutOfBoundsData {                          // as UBSan's runtime has it
  struct { const char* file; uint32_t line, column; } location;
  struct { uint16_t kind, info; char name[1]; } *array, *index;
};
SIMT_CALLBACK void __ubsan_handle_out_of_bounds(OutOfBoundsData* d, uint64_t index) {
  // An index of less than 64 bits comes as it is, its sign in bit 0 of `info`.
  uint32_t bits = 1u << (d->index->info >> 1);
  if (bits < 64 && d->index->info & 1) index = (uint64_t)((int64_t)(index << (64 - bits)) >> (64 - bits));
  simt::bad_index(d->location.file, d->location.line, d->array->name, index);
}

SIMT_CALLBACK void __sanitizer_cov_trace_pc() {
  if (__builtin_expect(--simt::budget == 0, 0)) simt::look_at_the_clock(simt::place_of(SIMT_CALLER));
}

#define SIMT_ACCESS(check, name, bytes, how)                                                                             \
  SIMT_CALLBACK void __tsan_##name##read##bytes(void* p) { simt::check((uint64_t)p, bytes, how, SIMT_CALLER); }         \
  SIMT_CALLBACK void __tsan_##name##write##bytes(void* p) { simt::check((uint64_t)p, bytes, simt::kWrite | how, SIMT_CALLER); }
SIMT_ACCESS(access, , 1, 0)
SIMT_ACCESS(access, , 2, 0)
SIMT_ACCESS(access, , 4, 0)
SIMT_ACCESS(access, , 8, 0)
SIMT_ACCESS(access, , 16, 0)
SIMT_ACCESS(seldom, unaligned_, 2, 0)
SIMT_ACCESS(seldom, unaligned_, 4, 0)
SIMT_ACCESS(seldom, unaligned_, 8, 0)
SIMT_ACCESS(seldom, unaligned_, 16, 0)
SIMT_ACCESS(volatile_access, volatile_, 1, simt::kVolatile)
SIMT_ACCESS(volatile_access, volatile_, 2, simt::kVolatile)
SIMT_ACCESS(volatile_access, volatile_, 4, simt::kVolatile)
SIMT_ACCESS(volatile_access, volatile_, 8, simt::kVolatile)
SIMT_ACCESS(volatile_access, volatile_, 16, simt::kVolatile)
SIMT_ACCESS(volatile_access, unaligned_volatile_, 2, simt::kVolatile)
SIMT_ACCESS(volatile_access, unaligned_volatile_, 4, simt::kVolatile)
SIMT_ACCESS(volatile_access, unaligned_volatile_, 8, simt::kVolatile)
SIMT_ACCESS(volatile_access, unaligned_volatile_, 16, simt::kVolatile)
#undef SIMT_ACCESS
SIMT_CALLBACK void __tsan_read_range(void* p, long n) { simt::seldom((uint64_t)p, (uint64_t)n, 0, SIMT_CALLER); }
SIMT_CALLBACK void __tsan_write_range(void* p, long n) {
  simt::seldom((uint64_t)p, (uint64_t)n, simt::kWrite, SIMT_CALLER);
}
SIMT_CALLBACK void* __tsan_memcpy(void* to, const void* from, size_t n) {
  simt::seldom((uint64_t)from, n, 0, SIMT_CALLER);
  simt::seldom((uint64_t)to, n, simt::kWrite, SIMT_CALLER);
  return memcpy(to, from, n);
}
SIMT_CALLBACK void* __tsan_memmove(void* to, const void* from, size_t n) {
  simt::seldom((uint64_t)from, n, 0, SIMT_CALLER);
  simt::seldom((uint64_t)to, n, simt::kWrite, SIMT_CALLER);
  return memmove(to, from, n);
}
SIMT_CALLBACK void* __tsan_memset(void* to, int value, size_t n) {
  simt::seldom((uint64_t)to, n, simt::kWrite, SIMT_CALLER);
  return memset(to, value, n);
}
SIMT_CALLBACK void __tsan_init() {}
SIMT_CALLBACK void __tsan_func_entry(void*) {}
SIMT_CALLBACK void __tsan_func_exit() {}

// An atomic of the compiler's own, which a kernel may use beside CUDA's: the call must do the operation, too.
#define SIMT_ATOMIC_UPDATE(bits, name, operation)                                                                      \
  SIMT_CALLBACK uint##bits##_t __tsan_atomic##bits##_##name(uint##bits##_t* p, uint##bits##_t v, int) {                \
    simt::atomic_access(p, bits / 8, SIMT_CALLER);                                                                     \
    return operation(p, v, __ATOMIC_SEQ_CST);                                                                          \
  }
#define SIMT_ATOMIC_COMPARE(bits, name)                                                                                \
  SIMT_CALLBACK int __tsan_atomic##bits##_compare_exchange_##name(uint##bits##_t* p, uint##bits##_t* expected,         \
                                                                  uint##bits##_t v, int, int) {                        \
    simt::atomic_access(p, bits / 8, SIMT_CALLER);                                                                     \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                     \
  }
#define SIMT_ATOMIC_CALLS(bits)                                                                                        \
  SIMT_CALLBACK uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t* p, int) {                              \
    simt::seldom((uint64_t)p, bits / 8, simt::kVolatile, SIMT_CALLER);                                                 \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                       \
  }                                                                                                                    \
  SIMT_CALLBACK void __tsan_atomic##bits##_store(uint##bits##_t* p, uint##bits##_t v, int) {                           \
    simt::seldom((uint64_t)p, bits / 8, simt::kWrite | simt::kVolatile, SIMT_CALLER);                                  \
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
  SIMT_CALLBACK uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(uint##bits##_t* p, uint##bits##_t expected,  \
                                                                          uint##bits##_t v, int, int) {                \
    simt::atomic_access(p, bits / 8, SIMT_CALLER);                                                                     \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
    return expected;                                                                                                   \
  }
SIMT_ATOMIC_CALLS(8)
SIMT_ATOMIC_CALLS(16)
SIMT_ATOMIC_CALLS(32)
SIMT_ATOMIC_CALLS(64)
#undef SIMT_ATOMIC_CALLS
#undef SIMT_ATOMIC_UPDATE
#undef SIMT_ATOMIC_COMPARE
SIMT_CALLBACK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMT_CALLBACK void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

// ---- what measure/sanitizer_run.py calls ----

// All arrays of a launch lie in the arena, with room between them that belongs to none.
SIMT_CALLBACK void simt_sanitize_begin(uint64_t start, uint64_t bytes, uint32_t shared_shift, double time_limit) {
  using namespace simt;
  arena_start = start;
  arena_bytes = bytes;
  arena_valid = (uint8_t*)pages_of_zeros(bytes + 256);
  pages = (Page*)pages_of_zeros((bytes / 256 + 1) * sizeof(Page));
  fixed_valid = (uint8_t*)calloc(static_shared_bytes() + 1, 1);
  simt::shared_shift = shared_shift;
  simt::time_limit = time_limit;
  finding_count = flag_count = 0;
  active = true;
}

// An array at `offset` of the arena. `written`: a byte for each of its bytes, 0 for those that nobody has written.
// `writable`: whether the kernel may write to it, in elements of 2^shift bytes.
SIMT_CALLBACK void simt_sanitize_array(uint64_t offset, uint64_t bytes, uint32_t shift, int writable,
                                       const uint8_t* written) {
  using namespace simt;
  for (uint64_t i = 0; i < bytes; i++) arena_valid[offset + i] = written[i] ? kWritten : kUnwritten;
  uint64_t first = offset / 256, last = (offset + bytes + 255) / 256, cells = ((last - first) * 256 >> shift) + 16;
  Cell* memory = writable ? (Cell*)pages_of_zeros(cells * sizeof(Cell)) - (offset >> shift) : nullptr;
  for (uint64_t p = first; p < last; p++) pages[p] = {memory, shift};
}

SIMT_CALLBACK void simt_sanitize_shared(uint64_t offset, uint64_t bytes) {
  memset(simt::fixed_valid + offset, simt::kExists, bytes);
}

// What is known of the bytes of the arena: 1 for one never written, 3 for one written.
SIMT_CALLBACK const uint8_t* simt_sanitize_valid() { return simt::arena_valid; }

SIMT_CALLBACK const simt::Finding* simt_sanitize_findings(uint32_t* count, uint32_t* stopped) {
  *count = simt::finding_count;
  *stopped = simt::stopped;
  return simt::findings;
}

SIMT_CALLBACK uint64_t simt_sanitize_base() { return simt::library_start; }
SIMT_CALLBACK uint64_t simt_sanitize_shared_base() { return (uint64_t)__start_simt_shared; }

SIMT_CALLBACK void simt_sanitize_end() {
  using namespace simt;
  active = false;
  Cell* freed = nullptr;
  for (uint64_t p = 0; p < arena_bytes / 256; p++) {
    if (!pages[p].cells || pages[p].cells == freed) continue;
    freed = pages[p].cells;
    uint64_t last = p;
    while (last < arena_bytes / 256 && pages[last].cells == freed) last++;
    munmap(freed + (p * 256 >> pages[p].shift), (((last - p) * 256 >> pages[p].shift) + 16) * sizeof(Cell));
  }
  munmap(arena_valid, arena_bytes + 256);
  munmap(pages, (arena_bytes / 256 + 1) * sizeof(Page));
  free(fixed_valid);
  for (uint32_t i = 0; i < flag_count; i++) free(flags[i].blocks);
  arena_bytes = flag_count = 0;
}
