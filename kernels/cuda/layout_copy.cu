// Rows into members of a dense cohort, each at its lead, from a dense cohort or from blocks: one kernel with two maps of positions to
// places. A thread takes STEPS vectors of 16 bytes, loads all of them and stores them; neighbours lie beside each other on both sides.
// -D: VECTORS (of 16 bytes, in one column of one head), THREADS
#include "common.cuh"
#define STEPS 4
#define BLOCK 16

// Fills one head's columns of a member: zeros but for [lead, lead + length). place(position) is where a position's vectors lie, null
// if outside of everything. All ones are NaN in any type; a run that does not fit is NaN throughout.
template <class Place> DEV void fill(uint4 *to, int columns, int lead, int length, Place place) {
  const bool fits = lead >= 0 && length >= 0 && (long long)lead + length <= columns;
  const int first = blockIdx.x * STEPS * THREADS + threadIdx.x, total = columns * VECTORS;
  uint4 held[STEPS];
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const int at = first + i * THREADS, position = at / VECTORS - lead;
    held[i] = uint4{0u, 0u, 0u, 0u};
    if (at >= total || (fits && (position < 0 || position >= length))) continue;
    const uint4 *from = fits ? place(position) : nullptr;
    held[i] = from ? vload<uint4>(from + at % VECTORS) : uint4{~0u, ~0u, ~0u, ~0u};
  }
#pragma unroll
  for (int i = 0; i < STEPS; i++)
    if (first + i * THREADS < total) vstore(to + first + i * THREADS, held[i]);
}

// Grid (parts of columns, 2 kv heads, rows): y is a head of the keys, then one of the values. A member outside the cohort (-1: padding)
// writes nothing; no two rows have the same.
#define ROW_AND_HEAD \
  const int row = blockIdx.z, heads = gridDim.y / 2, head = blockIdx.y % heads, to = member[row]; \
  const bool is_value = blockIdx.y >= heads; \
  if (to < 0 || to >= members) return; \
  uint4 *out = (is_value ? v : k) + ((u64)to * heads + head) * columns * VECTORS

// source_k, source_v [source_members][heads][source_columns][VECTORS]; k, v [members][heads][columns][VECTORS]; the others [rows].
extern "C" __global__ void __launch_bounds__(THREADS)
layout_copy_dense(const uint4 *source_k, const uint4 *source_v, const int *source_member, const int *source_start, uint4 *k, uint4 *v,
                  const int *member, const int *lead, const int *length, int source_members, int source_columns, int members,
                  int columns) {
  ROW_AND_HEAD;
  const int from = source_member[row], start = source_start[row];
  const bool known = from >= 0 && from < source_members && start >= 0;
  const uint4 *in = (is_value ? source_v : source_k) + (known ? ((u64)from * heads + head) * source_columns * VECTORS : 0);
  fill(out, columns, lead[row], length[row], [=](int position) -> const uint4 * {
    return known && (long long)start + position < source_columns ? in + ((u64)start + position) * VECTORS : nullptr;
  });
}

// source_k, source_v [blocks][heads][BLOCK][VECTORS]; table [rows][width] blocks of the row's positions.
extern "C" __global__ void __launch_bounds__(THREADS)
layout_copy_paged(const uint4 *source_k, const uint4 *source_v, const int *table, uint4 *k, uint4 *v, const int *member,
                  const int *lead, const int *length, int blocks, int width, int members, int columns) {
  ROW_AND_HEAD;
  const int *own = table + (u64)row * width;
  const uint4 *in = is_value ? source_v : source_k;
  fill(out, columns, lead[row], length[row], [=](int position) -> const uint4 * {
    const int block = position / BLOCK < width ? own[position / BLOCK] : -1;
    if (block < 0 || block >= blocks) return nullptr;
    return in + (((u64)block * heads + head) * BLOCK + position % BLOCK) * VECTORS;
  });
}
