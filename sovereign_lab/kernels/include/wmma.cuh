// CUDA's warp matrices (nvcuda::wmma of <mma.h>) under the same names, as far as the lab uses them: 16 x 16 x 16 halves,
// summed in float. <mma.h> needs headers of the CUDA toolkit that CuPy does not bring; these are its instructions.
// Which lane holds which element is not told: a fragment is filled, loaded, multiplied and stored as a whole.
#pragma once
#include <cuda_fp16.h>

#if defined(SOVEREIGN_SIMT)
#include <mma.h>
namespace wmma = nvcuda::wmma;
#else

namespace wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  unsigned x[8];  // 16 halves
};
template <>
struct fragment<accumulator, 16, 16, 16, float, void> {
  float x[8];
};
typedef fragment<matrix_a, 16, 16, 16, half, row_major> FragmentA;
typedef fragment<matrix_b, 16, 16, 16, half, col_major> FragmentB;
typedef fragment<accumulator, 16, 16, 16, float> Sums;

__device__ __forceinline__ void fill_fragment(Sums& f, float value) {
  for (float& element : f.x) element = value;
}

// From rows that start `step` halves apart. A matrix starts at a multiple of 32 bytes; step is a multiple of 8.
__device__ __forceinline__ void load_matrix_sync(FragmentA& f, const half* start, unsigned step) {
  asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
               : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3]), "=r"(f.x[4]), "=r"(f.x[5]), "=r"(f.x[6]), "=r"(f.x[7])
               : "l"(start), "r"(step) : "memory");
}
// From columns that start `step` halves apart.
__device__ __forceinline__ void load_matrix_sync(FragmentB& f, const half* start, unsigned step) {
  asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
               : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3]), "=r"(f.x[4]), "=r"(f.x[5]), "=r"(f.x[6]), "=r"(f.x[7])
               : "l"(start), "r"(step) : "memory");
}

// d = a b + c
__device__ __forceinline__ void mma_sync(Sums& d, const FragmentA& a, const FragmentB& b, const Sums& c) {
  asm volatile("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
               "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, "
               "{%24, %25, %26, %27, %28, %29, %30, %31};"
               : "=f"(d.x[0]), "=f"(d.x[1]), "=f"(d.x[2]), "=f"(d.x[3]), "=f"(d.x[4]), "=f"(d.x[5]), "=f"(d.x[6]), "=f"(d.x[7])
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(a.x[4]), "r"(a.x[5]), "r"(a.x[6]), "r"(a.x[7]),
                 "r"(b.x[0]), "r"(b.x[1]), "r"(b.x[2]), "r"(b.x[3]), "r"(b.x[4]), "r"(b.x[5]), "r"(b.x[6]), "r"(b.x[7]),
                 "f"(c.x[0]), "f"(c.x[1]), "f"(c.x[2]), "f"(c.x[3]), "f"(c.x[4]), "f"(c.x[5]), "f"(c.x[6]), "f"(c.x[7]));
}

// To rows (or columns) that start `step` floats apart.
__device__ __forceinline__ void store_matrix_sync(float* start, const Sums& f, unsigned step, layout_t layout) {
  if (layout == mem_row_major)
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;"
                 :: "l"(start), "f"(f.x[0]), "f"(f.x[1]), "f"(f.x[2]), "f"(f.x[3]), "f"(f.x[4]), "f"(f.x[5]), "f"(f.x[6]),
                    "f"(f.x[7]), "r"(step) : "memory");
  else
    asm volatile("wmma.store.d.sync.aligned.col.m16n16k16.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;"
                 :: "l"(start), "f"(f.x[0]), "f"(f.x[1]), "f"(f.x[2]), "f"(f.x[3]), "f"(f.x[4]), "f"(f.x[5]), "f"(f.x[6]),
                    "f"(f.x[7]), "r"(step) : "memory");
}

}  // namespace wmma
#endif
