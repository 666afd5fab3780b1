// What both tensor-core kernels of paged attention share: tiles of keys in shared memory, and one warp's 16 query rows over 16 keys.
// -D: HEAD_DIM (64, 128, 192 or 256), GROUP (query heads of a kv head), WINDOW (keys a query sees, itself included; 0: all)
#pragma once
#include "tensor_core.cuh"
#define PAGE 16                                 // token positions of a block
#define CHUNKS (HEAD_DIM / 8)                   // of 16 bytes, in a token's row
#define MINUS_INFINITY (-INFINITY_F)

// Chunks of a row are stored where the row's low bits say, so that ldmatrix meets every bank once.
DEV u8 *cell(u8 *tile, int row, int chunk) { return tile + (row * CHUNKS + (chunk ^ (row & 7))) * 16; }

// Queries of one warp: 16 rows of (token, head of the group), and the sums over the keys so far.
struct Rows {
  u32 q[HEAD_DIM / 16][4];
  float o[HEAD_DIM / 8][4];
  float m[2], l[2];                             // running maximum (of scores in powers of two) and this lane's share of the sum
};

// Row `r` of the tile is token r / GROUP of it; rows behind `count` are zero.
DEV void load_queries(Rows &rows, const bf16 *q, int first_token, int first_row, int count, int kv_head, int heads, int lane) {
  const int gid = lane >> 2, tig = lane & 3;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int r = first_row + h * 8 + gid;
    const bool live = r < count;
    const u32 *source = (const u32 *)(q + ((u64)(first_token + (live ? r / GROUP : 0)) * heads + kv_head * GROUP + r % GROUP) * HEAD_DIM);
#pragma unroll
    for (int ks = 0; ks < HEAD_DIM / 16; ks++) {
      rows.q[ks][h] = live ? source[ks * 8 + tig] : 0u;
      rows.q[ks][h + 2] = live ? source[ks * 8 + 4 + tig] : 0u;
    }
    rows.m[h] = MINUS_INFINITY;
    rows.l[h] = 0.f;
  }
#pragma unroll
  for (int d = 0; d < HEAD_DIM / 8; d++) rows.o[d][0] = rows.o[d][1] = rows.o[d][2] = rows.o[d][3] = 0.f;
}

// Adds N keys that lie in shared memory, of which the first stands at position t of the context; `stop` is the first one not to see,
// `position` that of the tile's first token.
template <int N>
DEV void attend_keys(Rows &rows, u8 *k_tile, u8 *v_tile, int t, int stop, int position, int first_row, float scale_log2, int lane) {
  const int gid = lane >> 2, tig = lane & 3, matrix = lane >> 3, line = lane & 7;
  float s[N / 8][4];
#pragma unroll
  for (int n = 0; n < N / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
#pragma unroll
  for (int ks = 0; ks < HEAD_DIM / 16; ks++)
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
      u32 b[4];
      ldmatrix_x4(b, cell(k_tile, n * 16 + line + (matrix >> 1) * 8, 2 * ks + (matrix & 1)));
      mma_bf16(s[2 * n], rows.q[ks], b[0], b[1]);
      mma_bf16(s[2 * n + 1], rows.q[ks], b[2], b[3]);
    }
  u32 p[N / 16][4];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int own = position + (first_row + h * 8 + gid) / GROUP, end = min(stop, own + 1);
    const int begin = WINDOW ? own - WINDOW + 1 : 0;
    float most = MINUS_INFINITY;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int token = t + n * 8 + tig * 2 + e;
        float &score = s[n][h * 2 + e];
        score = token < end && token >= begin ? score * scale_log2 : MINUS_INFINITY;
        most = fmaxf(most, score);
      }
    most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 1));
    most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 2));
    const float now = fmaxf(rows.m[h], most), base = now == MINUS_INFINITY ? 0.f : now, kept = fast_exp2(rows.m[h] - base);
    rows.m[h] = now;
    float sum = 0.f;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
      const float a = fast_exp2(s[n][h * 2] - base), b = fast_exp2(s[n][h * 2 + 1] - base);
      sum += a + b;
      p[n / 2][h + (n & 1) * 2] = pack_bf16(a, b);
    }
    rows.l[h] = rows.l[h] * kept + sum;
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 8; d++) { rows.o[d][h * 2] *= kept; rows.o[d][h * 2 + 1] *= kept; }
  }
#pragma unroll
  for (int n = 0; n < N / 16; n++)
#pragma unroll
    for (int dp = 0; dp < HEAD_DIM / 16; dp++) {
      u32 b[4];
      ldmatrix_x4_transposed(b, cell(v_tile, n * 16 + line + (matrix & 1) * 8, 2 * dp + (matrix >> 1)));
      mma_bf16(rows.o[2 * dp], p[n], b[0], b[1]);
      mma_bf16(rows.o[2 * dp + 1], p[n], b[2], b[3]);
    }
}

// The row's whole sum, in every lane that has a part of it.
DEV float whole_sum(float part) {
  part += __shfl_xor_sync(FULL_WARP, part, 1);
  return part + __shfl_xor_sync(FULL_WARP, part, 2);
}
