// A stackful fiber: one CUDA thread of the SIMT device, and the hand-written switch between two of them.
//
// The switch is inline assembly that declares every register clobbered, so the compiler saves at each
// call site only what is live there (a handful of values), and the indirect jump at each site has its own
// branch-predictor entry. A `ret` would mispredict every time: the return stack knows nothing of fibers.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace simt {

// One OS thread runs one copy of this library, so plain statics are enough. The sanitized build has a second object
// (sanitize.cpp) that shares them.
#if defined(SIMT_SANITIZED)
#define SIMT_STATIC inline
#else
#define SIMT_STATIC static
#endif

struct Block;
struct Warp;

struct dim { uint32_t x, y, z; };

// A fiber is blocked while *wait_word == wait_value. A finished one waits for `constant_one` to change.
struct alignas(64) Fiber {
  void* stack_pointer;
  void* program_counter;
  const uint32_t* wait_word;
  uint32_t wait_value;
  uint32_t lane;            // within its warp
  Fiber* next_in_warp;      // the ring of this warp's lanes, in the launch's lane order
  Fiber* next_in_block;     // the ring of all the block's threads
  Warp* warp;
  Block* block;
  dim thread;               // threadIdx
  uint32_t exchanges;       // with the full warp, so far
  uint32_t epoch;           // traced and sanitized builds: exchanges and barriers of any kind, so far
  bool exited;
  int wait_line;            // where it waits, for the report of a deadlock
  const char* wait_file;
  const char* wait_name;
  uint32_t wait_mask;       // 0 for a barrier of the block or the grid
#if defined(SIMT_SANITIZED)
  uint32_t id;              // within the launch
  bool fenced;              // has passed a __threadfence
  bool fenced_block;        // or a __threadfence_block
  uint32_t lane_since[32];  // what each lane of the warp did before this time happened before what this one does now
  uint32_t warp_since[32];  // as lane_since, for the lanes of each warp of the block: by arrivals of bulk copies
#endif
};

static uint32_t constant_one = 1;
SIMT_STATIC Fiber* current;

inline bool blocked(const Fiber* f) { return *f->wait_word == f->wait_value; }

#if defined(__x86_64__)
// A compiler may keep any value in any of these, an integer in a mask register too.
#if defined(__AVX512F__)
#define SIMT_CLOBBER_AVX512 , "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", \
    "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", \
    "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#else
#define SIMT_CLOBBER_AVX512
#endif
// rbp may be the frame pointer and cannot be declared clobbered, so it is pushed.
inline __attribute__((always_inline)) void switch_to(Fiber* from, Fiber* to) {
  current = to;
  asm volatile(
      "pushq %%rbp\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "movq %%rsp, 0(%%rdi)\n\t"
      "movq %%rax, 8(%%rdi)\n\t"
      "movq 0(%%rsi), %%rsp\n\t"
      "jmpq *8(%%rsi)\n"
      "1:\n\t"
      "popq %%rbp\n\t"
      : "+D"(from), "+S"(to)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc",
        "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
        "xmm12", "xmm13", "xmm14", "xmm15" SIMT_CLOBBER_AVX512);
}
#elif defined(__aarch64__)
// x29 may be the frame pointer and x30 is the link register, so they are pushed. Apple keeps x18 for itself;
// elsewhere it is a register like any other.
#if defined(__APPLE__)
#define SIMT_CLOBBER_X18
#else
#define SIMT_CLOBBER_X18 , "x18"
#endif
inline __attribute__((always_inline)) void switch_to(Fiber* from_fiber, Fiber* to_fiber) {
  current = to_fiber;
  register Fiber* from asm("x0") = from_fiber;
  register Fiber* to asm("x1") = to_fiber;
  asm volatile(
      "stp x29, x30, [sp, #-16]!\n\t"
      "adr x9, 1f\n\t"
      "mov x10, sp\n\t"
      "stp x10, x9, [x0]\n\t"
      "ldp x10, x9, [x1]\n\t"
      "mov sp, x10\n\t"
      "br x9\n"
      "1:\n\t"
      "ldp x29, x30, [sp], #16\n\t"
      : "+r"(from), "+r"(to)
      :
      : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
        "x17" SIMT_CLOBBER_X18, "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "memory", "cc",
        "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
        "v29", "v30", "v31");
}
#else
#error "The SIMT device switches fibers on x86-64 and aarch64; this machine is neither."
#endif

// A fresh fiber starts in `entry` as if called: x86-64 expects the stack pointer 8 below a multiple of 16 there.
inline void prepare(Fiber* f, char* stack_top, void (*entry)()) {
  uintptr_t top = (uintptr_t)stack_top & ~(uintptr_t)63;
#if defined(__x86_64__)
  top -= 8;
#endif
  f->stack_pointer = (void*)top;
  f->program_counter = (void*)entry;
}

}  // namespace simt
