// Tensor Cores and their loads for the SIMT device: every lane of a warp brings its registers, and the last to arrive
// computes for all. kernels/include/mma.cuh has the same functions for a GPU, and says how fragments lie in registers.
#pragma once

namespace simt {

// d += a b, of the whole warp: 16 x 16 halves by 16 x 8. What the imitation does meanwhile is no part of the kernel.
SIMT_UNTRACED inline void multiply(Fragments& f) {
#if defined(SIMT_TRACED)
  const Mode mode = trace_mode;
  trace_mode = kOff;
#endif
  float a[16][16], b[16][8];
  for (uint32_t lane = 0; lane < kWarp; lane++) {
    uint32_t group = lane / 4, pair = lane % 4 * 2;
    for (uint32_t i = 0; i < 8; i++)
      a[group + i / 2 % 2 * 8][pair + i % 2 + i / 4 * 8] = __half::widen((uint16_t)(f.a[lane][i / 2] >> i % 2 * 16));
    for (uint32_t i = 0; i < 4; i++)
      b[pair + i % 2 + i / 2 * 8][group] = __half::widen((uint16_t)(f.b[lane][i / 2] >> i % 2 * 16));
  }
  for (uint32_t row = 0; row < 16; row++) {
    float sum[8] = {};
    for (uint32_t k = 0; k < 16; k++)
      for (uint32_t column = 0; column < 8; column++) sum[column] += a[row][k] * b[k][column];
    for (uint32_t column = 0; column < 8; column++)
      f.d[row % 8 * 4 + column / 2][row / 8 * 2 + column % 2] += sum[column];
  }
#if defined(SIMT_TRACED)
  trace_mode = mode;
#endif
}

// Two in turn: a lane can be at most one operation ahead of one that has yet to take its result.
SIMT_UNTRACED inline Fragments& fragments(Fiber* self) { return self->warp->fragments[self->exchanges & 1]; }

__attribute__((noinline, cold, noreturn)) inline void part_of_a_warp(uint32_t lanes, Place at) {
  say_place();
  say("%s at %s:%d takes all 32 lanes of a warp, and this warp has %u; launch a multiple of 32 threads a block", at.name,
      base_name(at.file), at.line, lanes);
  fail_now();
}

// Every lane waits for the last, which computes `then`.
template <class F> SIMT_UNTRACED inline void arrive_all(Fiber* self, Place at, F then) {
  Warp& warp = *self->warp;
  if (warp.lanes < kWarp) part_of_a_warp(warp.lanes, at);
  Exchange& x = arrive(self, warp, at);
  warp.deposited[self->lane] = self->exchanges;
  if (x.arrived == warp.lanes) {
    then();
    x.whole++;
  } else {
    wait_until_changed(&x.whole, x.whole, self->next_in_warp, at, kFull);
  }
  leave(warp, x);
}

inline SIMT_MEETING void tensor_core(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place at) {
  SIMT_MET(at);
  Fragments& f = fragments(current);
  uint32_t lane = current->lane;
  memcpy(f.a[lane], a, sizeof(a));
  memcpy(f.b[lane], b, sizeof(b));
  memcpy(f.d[lane], d, sizeof(d));
  arrive_all(current, at, [&]() SIMT_UNTRACED { multiply(f); });
  memcpy(d, f.d[lane], sizeof(d));
}

// Lane l brings row l % 8 of matrix l / 8 in `row`, and gets its two elements of each matrix.
inline SIMT_MEETING void deal_matrices(uint32_t (&r)[4], const uint32_t (&row)[4], bool transposed, Place at) {
  SIMT_MET(at);
  Fragments& f = fragments(current);
  uint32_t lane = current->lane, group = lane / 4, pair = lane % 4 * 2;
  memcpy(f.a[lane], row, sizeof(row));
  arrive_all(current, at, []() SIMT_UNTRACED {});
  for (uint32_t matrix = 0; matrix < 4; matrix++) {
    const uint32_t(*rows)[4] = f.a + 8 * matrix;
    auto element = [&](uint32_t i, uint32_t j) { return rows[i][j / 2] >> j % 2 * 16 & 0xffff; };
    r[matrix] = transposed ? element(pair, group) | element(pair + 1, group) << 16 : rows[group][pair / 2];
  }
}

}  // namespace simt

SIMT_INLINE void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], SIMT_HERE) {
  simt::AllMemory around;
  simt::tensor_core(d, a, b, SIMT_PLACE_OF("mma_16x8x16"));
}
SIMT_INLINE void load_matrices(unsigned (&r)[4], const void* row, SIMT_HERE) {
  uint4 mine = *(const uint4*)row;   // one request of 16 bytes a lane, with the alignment that ldmatrix insists on
  simt::AllMemory around;
  simt::deal_matrices(r, {mine.x, mine.y, mine.z, mine.w}, false, SIMT_PLACE_OF("load_matrices"));
}
SIMT_INLINE void load_matrices_transposed(unsigned (&r)[4], const void* row, SIMT_HERE) {
  uint4 mine = *(const uint4*)row;
  simt::AllMemory around;
  simt::deal_matrices(r, {mine.x, mine.y, mine.z, mine.w}, true, SIMT_PLACE_OF("load_matrices_transposed"));
}

// An asynchronous copy happens at once here: whoever forgets to wait for it is not found out.
SIMT_INLINE void copy_16(void* shared, const void* global, bool there) {
  *(uint4*)shared = there ? *(const uint4*)global : uint4{0, 0, 0, 0};
}
inline void copies_end() {}
template <int pending> inline void copies_wait() {}
