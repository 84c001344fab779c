// The CUDA C++ language as plain C++: what a kernel file of this lab may use, for a host compiler.
// Included before the kernel's own source; <cuda_fp16.h> and its kin are empty beside this.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "runtime.h"
#if defined(SIMT_TRACED)
#include "trace.h"
#endif

#define SOVEREIGN_SIMT 1      // for the few helpers that need another body here (inline PTX)

// ---- qualifiers ----
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __constant__ static
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#if defined(__APPLE__)
#define SIMT_SHARED_SECTION "__DATA,simt_shared"
#else
#define SIMT_SHARED_SECTION "simt_shared"
#endif
#if defined(SIMT_SANITIZED)   // far apart, so that an index past the end of one array does not lie in the next
#define __shared__ static __attribute__((section(SIMT_SHARED_SECTION), aligned(4096)))
#define SIMT_SHARED_GUARD(name) static __attribute__((section(SIMT_SHARED_SECTION), aligned(4096), used)) char name[4096];
SIMT_SHARED_GUARD(simt_guard_first)
#else
#define __shared__ static __attribute__((section(SIMT_SHARED_SECTION)))
#endif

// ---- vector types: the alignment is the one a GPU insists on ----
// Copied as a whole: the compiler would copy a plain struct member by member, and the traced build would count four
// requests where a GPU makes one. One of 32 bytes is two accesses of 16, as there.
#define SIMT_COPIED_WHOLE(name, T, bytes)                                     \
  name() = default;                                                           \
  name(const name& o) : whole(o.whole) {}                                     \
  name& operator=(const name& o) { whole = o.whole; return *this; }           \
  typedef T Part __attribute__((vector_size(bytes < 16 ? bytes : 16)));       \
  struct Two {                                                                \
    Part low, high;                                                           \
    Two() = default;                                                          \
    Two(const Two& o) : low(o.low), high(o.high) {}                           \
    Two& operator=(const Two& o) { low = o.low; high = o.high; return *this; } \
  };                                                                          \
  typedef typename std::conditional<(bytes > 16), Two, Part>::type Whole;
#define SIMT_VECTOR(T, name, align2, align4)                                  \
  struct __align__(align2) name##2 {                                          \
    SIMT_COPIED_WHOLE(name##2, T, 2 * sizeof(T))                              \
    name##2(T x, T y) : x(x), y(y) {}                                         \
    union { struct { T x, y; }; Whole whole; };                               \
  };                                                                          \
  struct name##3 { T x, y, z; };                                              \
  struct __align__(align4) name##4 {                                          \
    SIMT_COPIED_WHOLE(name##4, T, 4 * sizeof(T))                              \
    name##4(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}                   \
    union { struct { T x, y, z, w; }; Whole whole; };                         \
  };                                                                          \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                  \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }          \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIMT_VECTOR(signed char, char, 2, 4)
SIMT_VECTOR(unsigned char, uchar, 2, 4)
SIMT_VECTOR(short, short, 4, 8)
SIMT_VECTOR(unsigned short, ushort, 4, 8)
SIMT_VECTOR(int, int, 8, 16)
SIMT_VECTOR(unsigned, uint, 8, 16)
SIMT_VECTOR(float, float, 8, 16)
SIMT_VECTOR(double, double, 16, 16)
#undef SIMT_VECTOR
#undef SIMT_COPIED_WHOLE

// ---- half: stored in 16 bits, computed in float, rounded to nearest even ----
// By the CPU's own instructions where the compiler offers them, else (or with SIMT_PORTABLE_HALF) by integers.
#if defined(SIMT_PORTABLE_HALF)
#elif defined(__aarch64__)
#define SIMT_HARDWARE_HALF __fp16
#elif defined(__F16C__) && defined(__FLT16_MANT_DIG__)
#define SIMT_HARDWARE_HALF _Float16
#endif
struct __half {
  uint16_t bits;
  __half() = default;
  __half(float v) : bits(round(v)) {}
  __half(double v) : bits(round((float)v)) {}
  __half(int v) : bits(round((float)v)) {}
  operator float() const { return widen(bits); }

#if defined(SIMT_HARDWARE_HALF)
  static uint16_t round(float v) { SIMT_HARDWARE_HALF h = (SIMT_HARDWARE_HALF)v; uint16_t b; memcpy(&b, &h, 2); return b; }
  static float widen(uint16_t b) { SIMT_HARDWARE_HALF h; memcpy(&h, &b, 2); return (float)h; }
#else
  static uint16_t round(float v) {
    uint32_t f;
    memcpy(&f, &v, 4);
    uint32_t sign = f >> 16 & 0x8000, magnitude = f & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) {               // subnormal in half: let float addition do the rounding
      float scaled;
      memcpy(&scaled, &magnitude, 4);
      scaled += 0.5f;
      uint32_t r;
      memcpy(&r, &scaled, 4);
      return (uint16_t)(sign | (r - 0x3f000000));
    }
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
  }
  static float widen(uint16_t b) {
    uint32_t sign = (uint32_t)(b & 0x8000) << 16, rest = (uint32_t)(b & 0x7fff) << 13;
    float v;
    if (rest >= 0x0f800000) rest |= 0x7f800000, memcpy(&v, &rest, 4);   // infinity and NaN
    else memcpy(&v, &rest, 4), v *= 0x1p112f;
    uint32_t f;
    memcpy(&f, &v, 4);
    f |= sign;
    memcpy(&v, &f, 4);
    return v;
  }
#endif
};
typedef __half half;
struct __align__(4) __half2 {
  __half x, y;
  typedef uint32_t Whole __attribute__((may_alias));
  __half2() = default;
  __half2(__half x, __half y) : x(x), y(y) {}
  __half2(const __half2& o) { *(Whole*)this = *(const Whole*)&o; }
  __half2& operator=(const __half2& o) { *(Whole*)this = *(const Whole*)&o; return *this; }
};
typedef __half2 half2;

inline float __half2float(__half h) { return (float)h; }
inline __half __float2half(float v) { return __half(v); }
inline __half __float2half_rn(float v) { return __half(v); }
inline __half __ushort_as_half(unsigned short b) { __half h; h.bits = b; return h; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline float2 __half22float2(__half2 h) { return {(float)h.x, (float)h.y}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __float2half2_rn(float v) { return {__half(v), __half(v)}; }
inline __half2 __half2half2(__half v) { return {v, v}; }
// A product or a difference of two halves is rounded once: it fits a float exactly, or nearly so for a difference.
inline __half2 __hmul2(__half2 a, __half2 b) { return {__half((float)a.x * (float)b.x), __half((float)a.y * (float)b.y)}; }
inline __half2 __hsub2(__half2 a, __half2 b) { return {__half((float)a.x - (float)b.x), __half((float)a.y - (float)b.y)}; }
inline __half2 __hadd2(__half2 a, __half2 b) { return {__half((float)a.x + (float)b.x), __half((float)a.y + (float)b.y)}; }
inline float __low2float(__half2 h) { return h.x; }
inline float __high2float(__half2 h) { return h.y; }

// ---- where am I ----
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
#define threadIdx (simt::current->thread)
#define blockIdx (simt::current_block->index)
#define blockDim (simt::launch->block)
#define gridDim (simt::launch->grid)
static constexpr int warpSize = 32;

// The place of the call, for reports: evaluated where a default argument is used.
#define SIMT_HERE const char* file = __builtin_FILE(), int line = __builtin_LINE()

// ---- barriers ----
#define SIMT_PLACE_OF(name) simt::Place{name, file, line}
[[noreturn]] inline void __trap(SIMT_HERE) { simt::trap(SIMT_PLACE_OF("__trap")); }
inline __attribute__((always_inline)) void __syncthreads(SIMT_HERE) {
  simt::AllMemory around;
  simt::block_barrier(false, SIMT_PLACE_OF("__syncthreads"));
}
inline __attribute__((always_inline)) int __syncthreads_count(int p, SIMT_HERE) {
  simt::AllMemory around;
  return (int)simt::block_barrier(p != 0, SIMT_PLACE_OF("__syncthreads_count"));
}
inline __attribute__((always_inline)) int __syncthreads_or(int p, SIMT_HERE) {
  simt::AllMemory around;
  return simt::block_barrier(p != 0, SIMT_PLACE_OF("__syncthreads_or")) != 0;
}
inline __attribute__((always_inline)) int __syncthreads_and(int p, SIMT_HERE) {
  simt::AllMemory around;
  return simt::block_barrier(p == 0, SIMT_PLACE_OF("__syncthreads_and")) == 0;
}
inline __attribute__((always_inline)) void __syncwarp(unsigned mask = simt::kFull, SIMT_HERE) {
  simt::AllMemory around;
  if (mask == simt::kFull) simt::meet_full(false, SIMT_PLACE_OF("__syncwarp"), true);
  else simt::meet_some(mask, 0, SIMT_PLACE_OF("__syncwarp"), true);
}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  SIMT_SANITIZE(simt::fence_passed());
}
inline void __threadfence_block() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  SIMT_SANITIZE(simt::block_fence_passed());
}

// ---- warp exchange ----
namespace simt {
template <class T> inline uint64_t to_bits(T v) { uint64_t b = 0; static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes"); memcpy(&b, &v, sizeof(T)); return b; }
template <class T> inline T from_bits(uint64_t b) { T v; memcpy(&v, &b, sizeof(T)); return v; }

// A lane outside the mask gives an undefined value on a GPU, so it gives poison here.
template <class T> inline __attribute__((always_inline)) T exchange(unsigned mask, T value, uint32_t source, Place at) {
  AllMemory around;
  if (__builtin_expect(mask == kFull, 1)) return from_bits<T>(exchange_full(to_bits(value), source, at));
  Met met = meet_some(mask, to_bits(value), at);
  bool defined = mask & current->warp->present & 1u << source;
  return from_bits<T>(defined ? met.meeting.slot[met.set][source] : kPoison);
}
inline __attribute__((always_inline)) uint32_t votes(unsigned mask, bool p, Place at) {
  AllMemory around;
  if (mask == kFull) return meet_full(p, at);
  Met met = meet_some(mask, p, at);
  return met.meeting.votes[met.set];
}
}  // namespace simt

#define SIMT_LANE (simt::current->lane)
template <class T> inline __attribute__((always_inline)) T __shfl_sync(unsigned mask, T v, int source, int width = 32, SIMT_HERE) {
  return simt::exchange(mask, v, (SIMT_LANE & ~(width - 1)) | (source & (width - 1)), SIMT_PLACE_OF("__shfl_sync"));
}
template <class T> inline __attribute__((always_inline)) T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, SIMT_HERE) {
  int source = (int)SIMT_LANE - (int)delta;
  if (source < (int)(SIMT_LANE & ~(width - 1))) source = SIMT_LANE;
  return simt::exchange(mask, v, source, SIMT_PLACE_OF("__shfl_up_sync"));
}
template <class T> inline __attribute__((always_inline)) T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, SIMT_HERE) {
  uint32_t source = SIMT_LANE + delta;
  if (source > (SIMT_LANE | (width - 1))) source = SIMT_LANE;
  return simt::exchange(mask, v, source, SIMT_PLACE_OF("__shfl_down_sync"));
}
template <class T> inline __attribute__((always_inline)) T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, SIMT_HERE) {
  uint32_t source = SIMT_LANE ^ bits;
  if (source > (SIMT_LANE | (width - 1))) source = SIMT_LANE;
  return simt::exchange(mask, v, source, SIMT_PLACE_OF("__shfl_xor_sync"));
}
inline __attribute__((always_inline)) unsigned __ballot_sync(unsigned mask, int p, SIMT_HERE) { return simt::votes(mask, p != 0, SIMT_PLACE_OF("__ballot_sync")); }
inline __attribute__((always_inline)) int __any_sync(unsigned mask, int p, SIMT_HERE) { return simt::votes(mask, p != 0, SIMT_PLACE_OF("__any_sync")) != 0; }
inline __attribute__((always_inline)) int __all_sync(unsigned mask, int p, SIMT_HERE) { return simt::votes(mask, p == 0, SIMT_PLACE_OF("__all_sync")) == 0; }

// ---- memory ----
// A misaligned vector access is a fault on a GPU and nothing on x86, so the build adds a check before every
// access through a pointer (-fsanitize=alignment) and these are its callbacks.
namespace simt {
struct SourceLocation { const char* file; uint32_t line, column; };
struct TypeDescriptor { uint16_t kind, info; char name[1]; };
struct MismatchData { SourceLocation location; TypeDescriptor* type; unsigned char log_alignment, access; };
}  // namespace simt
extern "C" __attribute__((noinline, cold, visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(simt::MismatchData* d, uintptr_t address) {
#if defined(SIMT_SANITIZED)
  simt::misaligned(d->location.file, (int)d->location.line, d->type->name, address, 1u << d->log_alignment, d->access);
#else
  simt::say_place();
  simt::say("%s:%u accesses %s at address 0x%zx, which is not a multiple of %u bytes: a GPU faults on this",
            simt::base_name(d->location.file), d->location.line, d->type->name, (size_t)address, 1u << d->log_alignment);
  simt::fail_now();
#endif
}

// Always inline, as the atomics: an access counts at the line of the call.
#define SIMT_INLINE inline __attribute__((always_inline))
template <class T> SIMT_INLINE T __ldg(const T* p) { return *p; }
template <class T> SIMT_INLINE T __ldcg(const T* p) { return *p; }
template <class T> SIMT_INLINE T __ldcs(const T* p) { return *p; }

// Blocks run on several OS threads, so atomics are real ones, by compare-and-swap. In the traced build one counts as
// one atomic, at the place of the call.
#if defined(SIMT_TRACED)
#define SIMT_ATOMIC SIMT_UNTRACED __attribute__((noinline))
#define SIMT_RECORD_ATOMIC(p) record((uint64_t)(p), sizeof(*(p)), kAtomic, __builtin_return_address(0))
#elif defined(SIMT_SANITIZED)
#define SIMT_ATOMIC SIMT_UNTRACED __attribute__((noinline))
#define SIMT_RECORD_ATOMIC(p) atomic_access(p, sizeof(*(p)), __builtin_return_address(0))
#else
#define SIMT_ATOMIC inline
#define SIMT_RECORD_ATOMIC(p) ((void)0)
#endif
namespace simt {
template <class T, class F> SIMT_ATOMIC T atomic_update(T* p, F f) {
  SIMT_RECORD_ATOMIC(p);
  typedef typename std::conditional<sizeof(T) == 4, uint32_t, uint64_t>::type Bits;
  Bits old = __atomic_load_n((Bits*)p, __ATOMIC_RELAXED);
  for (;;) {
    T before;
    memcpy(&before, &old, sizeof(T));
    T after = f(before);
    Bits desired;
    memcpy(&desired, &after, sizeof(T));
    if (__atomic_compare_exchange_n((Bits*)p, &old, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
      activity += desired != old;
      return before;
    }
  }
}
}  // namespace simt
template <class T> SIMT_INLINE T atomicAdd(T* p, T v) { return simt::atomic_update(p, [=](T a) { return (T)(a + v); }); }
template <class T> SIMT_INLINE T atomicSub(T* p, T v) { return simt::atomic_update(p, [=](T a) { return (T)(a - v); }); }
template <class T> SIMT_INLINE T atomicMax(T* p, T v) { return simt::atomic_update(p, [=](T a) { return a > v ? a : v; }); }
template <class T> SIMT_INLINE T atomicMin(T* p, T v) { return simt::atomic_update(p, [=](T a) { return a < v ? a : v; }); }
template <class T> SIMT_INLINE T atomicAnd(T* p, T v) { return simt::atomic_update(p, [=](T a) { return (T)(a & v); }); }
template <class T> SIMT_INLINE T atomicOr(T* p, T v) { return simt::atomic_update(p, [=](T a) { return (T)(a | v); }); }
template <class T> SIMT_INLINE T atomicExch(T* p, T v) { return simt::atomic_update(p, [=](T) { return v; }); }
template <class T> SIMT_INLINE T atomicCAS(T* p, T expected, T v) { return simt::atomic_update(p, [=](T a) { return a == expected ? v : a; }); }

// ---- arithmetic ----
#define SIMT_MIN_MAX(T) \
  inline T min(T a, T b) { return a < b ? a : b; } \
  inline T max(T a, T b) { return a > b ? a : b; }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(float)
SIMT_MIN_MAX(double)
#undef SIMT_MIN_MAX
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline float __expf(float v) { return expf(v); }
inline float __logf(float v) { return logf(v); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline int __float2int_rn(float v) { return (int)nearbyintf(v); }
inline float __int2float_rn(int v) { return (float)v; }
inline int __float_as_int(float v) { return simt::from_bits<int>(simt::to_bits(v)); }
inline float __int_as_float(int v) { return simt::from_bits<float>(simt::to_bits(v)); }
inline unsigned __float_as_uint(float v) { return simt::from_bits<unsigned>(simt::to_bits(v)); }
inline float __uint_as_float(unsigned v) { return simt::from_bits<float>(simt::to_bits(v)); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t bytes = (uint64_t)b << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {   // the fourth bit of a digit asks for the sign alone
    unsigned digit = selector >> 4 * i, byte = (unsigned)(bytes >> 8 * (digit & 7)) & 0xff;
    result |= (digit & 8 ? byte >> 7 ? 0xffu : 0u : byte) << 8 * i;
  }
  return result;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
  return c;
}

// ---- Tensor Cores ----
#include "tensor_core.h"

// ---- messages and bulk copies ----
#include "messages.h"
#include "pipeline.h"

// ---- cooperative groups: the grid, as far as kernels here use it ----
namespace cooperative_groups {
struct grid_group {
  __attribute__((always_inline)) void sync(SIMT_HERE) const {
    simt::AllMemory around;
    simt::grid_barrier(SIMT_PLACE_OF("grid sync"));
  }
  unsigned thread_rank() const {
    unsigned b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    return b * (blockDim.x * blockDim.y * blockDim.z) + t;
  }
  unsigned size() const { return gridDim.x * gridDim.y * gridDim.z * blockDim.x * blockDim.y * blockDim.z; }
};
inline grid_group this_grid() { return {}; }
}  // namespace cooperative_groups

// ---- from an array of argument pointers, as a launch passes them, to the kernel's parameters ----
namespace simt {
#if defined(SIMT_SANITIZED)   // the arguments lie in memory of the host, which a kernel may not touch
template <class T> SIMT_UNTRACED __attribute__((noinline)) T argument(void** a, size_t i) { return *(T*)a[i]; }
#else
template <class T> SIMT_INLINE T argument(void** a, size_t i) { return *(T*)a[i]; }
#endif
template <class... A, size_t... I> inline void call(void (*f)(A...), void** a, std::index_sequence<I...>) {
  f(argument<typename std::remove_cv<A>::type>(a, I)...);
}
template <class... A> inline __attribute__((always_inline)) void call(void (*f)(A...), void** a) {
  call(f, a, std::index_sequence_for<A...>());
}
}  // namespace simt
