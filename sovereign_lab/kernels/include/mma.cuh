// Tensor Cores, a warp at a time: every lane of the warp must call these together. Fragments lie in registers as the
// PTX ISA has them for mma.m16n8k16 and ldmatrix; two halves a register, the first in the low bits. From sm_75 on.
#pragma once
#include <cuda_fp16.h>

#if !defined(SOVEREIGN_SIMT)  // which has its own of these: devices/simt/shim/tensor_core.h

// d = a b + d for a of 16 x 16 halves, b of 16 x 8, and d in float. Lane l holds of a and d rows l / 4 and l / 4 + 8, of
// b column l / 4; along the other side elements 2 (l % 4) and the next, and those 8 further on.
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  // sm_75 multiplies 16 x 8 by 8 x 8: the same lanes hold the same elements, so each half of the registers is a product
#pragma unroll
  for (int k = 0; k < 2; k++)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
#endif
}

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Four matrices of 8 x 8 halves from shared memory. Lane l names row l % 8 of matrix l / 8: 16 bytes, at a multiple of
// 16. It gets of each matrix the elements 2 (l % 4) and the next of row l / 4.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)));
}

// The same, with each matrix transposed on the way: elements 2 (l % 4) and the next of column l / 4.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)));
}

// 16 bytes from global to shared memory, which no register and no thread waits for; zeros where `there` is false. sm_75
// has no such copy: there it is a load and a store, through registers, and nothing is left to wait for. Either way the
// other threads see the bytes only behind a barrier.
__device__ __forceinline__ void copy_16(void* shared, const void* global, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(there ? 16 : 0));
#else
  *(uint4*)shared = there ? *(const uint4*)global : make_uint4(0, 0, 0, 0);
#endif
}
// Ends a group of copies.
__device__ __forceinline__ void copies_end() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;");
#endif
}
// Waits for this thread's copies, except for the last `pending` groups.
template <int pending>
__device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(pending));
#endif
}

#endif

// Two floats as a register of a fragment.
__device__ __forceinline__ unsigned pack_halves(float low, float high) {
  return (unsigned)__half_as_ushort(__float2half(low)) | (unsigned)__half_as_ushort(__float2half(high)) << 16;
}
