// <mma.h> for the SIMT device: CUDA's warp matrices, as far as the lab's kernels use them, 16 x 16 x 16 halves summed in
// float. CUDA leaves open which lane holds which element; here it is as in two mma.m16n8k16 side by side.
#pragma once

namespace nvcuda {
namespace wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int m, int n, int k, class T, class Layout = void> struct fragment;
template <class Layout> struct fragment<matrix_a, 16, 16, 16, half, Layout> { static constexpr int num_elements = 8; half x[8]; };
template <class Layout> struct fragment<matrix_b, 16, 16, 16, half, Layout> { static constexpr int num_elements = 8; half x[8]; };
template <> struct fragment<accumulator, 16, 16, 16, float, void> { static constexpr int num_elements = 8; float x[8]; };

// Where a lane's element i lies: of a (row, depth), of b (column, depth), of an accumulator (row, column).
SIMT_INLINE int across_a(int i) { return (int)SIMT_LANE / 4 + i / 2 % 2 * 8; }
SIMT_INLINE int along_a(int i) { return (int)SIMT_LANE % 4 * 2 + i % 2 + i / 4 * 8; }
SIMT_INLINE int across_b(int i) { return (int)SIMT_LANE / 4 + i / 4 * 8; }
SIMT_INLINE int along_b(int i) { return (int)SIMT_LANE % 4 * 2 + i % 2 + i / 2 % 2 * 8; }

// What CUDA asks of a matrix in memory: 32 bytes for its start, 16 for the step from row to row.
template <class T> SIMT_INLINE void check(const T* start, unsigned step, const char* name, const char* file, int line) {
  if ((uintptr_t)start % 32 == 0 && step * sizeof(T) % 16 == 0) return;
#if defined(SIMT_SANITIZED)
  if ((uintptr_t)start % 32) simt::misaligned(file, line, name, (uintptr_t)start, 32, 0);
#endif
  simt::say_place();
  simt::say("%s at %s:%d: a matrix starts at a multiple of 32 bytes, and from row to row it is a multiple of 16; "
            "this one is at 0x%zx, with %u bytes from row to row",
            name, simt::base_name(file), line, (size_t)start, (unsigned)(step * sizeof(T)));
  simt::fail_now();
}

template <class F, class T> SIMT_INLINE void fill_fragment(F& f, T value) {
  for (auto& element : f.x) element = value;
}

template <class Use, class Layout>
SIMT_INLINE void load_matrix_sync(fragment<Use, 16, 16, 16, half, Layout>& f, const half* start, unsigned step, SIMT_HERE) {
  check(start, step, "load_matrix_sync", file, line);
  simt::AllMemory around;
  simt::meet_full(false, SIMT_PLACE_OF("load_matrix_sync"));
  constexpr bool is_a = std::is_same<Use, matrix_a>::value, by_rows = std::is_same<Layout, row_major>::value;
  for (int i = 0; i < 8; i++) {
    int across = is_a ? across_a(i) : across_b(i), along = is_a ? along_a(i) : along_b(i);
    // rows of a lie along the depth, and columns of b
    f.x[i] = is_a == by_rows ? start[across * step + along] : start[along * step + across];
  }
}

template <class A, class B>
SIMT_INLINE void mma_sync(fragment<accumulator, 16, 16, 16, float>& d, const A& a, const B& b,
                          const fragment<accumulator, 16, 16, 16, float>& c, SIMT_HERE) {
  uint32_t left[4], right[2][2];
  memcpy(left, a.x, sizeof(left));
  memcpy(right, b.x, sizeof(right));
  for (int j = 0; j < 2; j++) {
    float sums[4];
    for (int e = 0; e < 4; e++) sums[e] = c.x[4 * j + e];
    simt::AllMemory around;
    simt::tensor_core(sums, left, right[j], SIMT_PLACE_OF("mma_sync"));
    for (int e = 0; e < 4; e++) d.x[4 * j + e] = sums[e];
  }
}

SIMT_INLINE void store_matrix_sync(float* start, const fragment<accumulator, 16, 16, 16, float>& f, unsigned step,
                                   layout_t layout, SIMT_HERE) {
  check(start, step, "store_matrix_sync", file, line);
  for (int i = 0; i < 8; i++) {
    int row = (int)SIMT_LANE / 4 + i / 2 % 2 * 8, column = (int)SIMT_LANE % 4 * 2 + i % 2 + i / 4 * 8;
    start[layout == mem_row_major ? row * step + column : column * step + row] = f.x[i];
  }
  simt::AllMemory around;
  simt::meet_full(false, SIMT_PLACE_OF("store_matrix_sync"));
}

}  // namespace wmma
}  // namespace nvcuda
