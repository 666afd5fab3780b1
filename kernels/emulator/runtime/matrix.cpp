// The tensor cores: fragments as the PTX manual lays them out. Lane t = 4 g + q holds rows g and g + 8, columns from 2 q on.
#include "checker.h"
#include "state.h"

namespace cuemu {
static float from_bf16(unsigned bits) {
  bits <<= 16;
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

void resolve_mma_bf16(Lane *lanes, unsigned mask) {
  if (mask != ~0u) fail("mma needs the full warp");
  float a[16][16], b[16][8];
  for (int t = 0; t < 32; t++) {
    const Fragments &own = *(const Fragments *)lanes[t].in;
    const int g = t >> 2, q = t & 3;
    for (int half = 0; half < 2; half++) {
      for (int r = 0; r < 4; r++) a[g + 8 * (r & 1)][q * 2 + 8 * (r >> 1) + half] = from_bf16(own.a[r] >> (16 * half) & 0xffff);
      for (int r = 0; r < 2; r++) b[q * 2 + 8 * r + half][g] = from_bf16(own.b[r] >> (16 * half) & 0xffff);
    }
  }
  for (int t = 0; t < 32; t++) {
    const Fragments &own = *(const Fragments *)lanes[t].in;
    for (int i = 0; i < 4; i++) {
      const int row = (t >> 2) + 8 * (i >> 1), column = (t & 3) * 2 + (i & 1);
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
      ((float *)lanes[t].out)[i] = own.c[i] + sum;
    }
  }
}

// Four matrices of 8 rows of 16 bytes; lane t gives the address of row t % 8 of matrix t / 8 and gets two neighbours of each.
static void load_matrices(Lane *lanes, unsigned mask, bool transposed) {
  if (mask != ~0u) fail("ldmatrix needs the full warp");
  unsigned short matrix[4][8][8];
  Thread *const last = current;
  for (int t = 0; t < 32; t++) {
    const void *row = *(void *const *)lanes[t].in;
    if ((uintptr_t)row & 15) fail("ldmatrix: lane %d address not 16-byte aligned", t);
    current = &threads[first_of_warp(last->number) + t];  // it is this lane that reads
    check_access(row, 16, READ, current->caller);
    memcpy(matrix[t >> 3][t & 7], row, 16);
  }
  current = last;
  for (int t = 0; t < 32; t++)
    for (int m = 0; m < 4; m++) {
      const int i = t >> 2, j = (t & 3) * 2;
      const unsigned low = transposed ? matrix[m][j][i] : matrix[m][i][j];
      const unsigned high = transposed ? matrix[m][j + 1][i] : matrix[m][i][j + 1];
      ((unsigned *)lanes[t].out)[m] = low | high << 16;
    }
}
void resolve_ldmatrix_x4(Lane *lanes, unsigned mask) { load_matrices(lanes, mask, false); }
void resolve_ldmatrix_x4_transposed(Lane *lanes, unsigned mask) { load_matrices(lanes, mask, true); }
}  // namespace cuemu
