// Paged attention of rows with many new tokens on the tensor cores. 4 warps of 16 query rows (token, head of the group) each go over the same
// tiles of keys, which all load together, one tile ahead.
// -D: HEAD_DIM, GROUP (at most 64), WINDOW, KEYS (of a tile: 16, 32 or 64)
#include "attention_tile.cuh"
#define WARPS 4
#define THREADS (WARPS * 32)
#define TOKENS (64 / GROUP)                                   // query tokens of an item
#define HALF_BYTES (KEYS * HEAD_DIM * 2)
#define STAGE_BYTES (2 * HALF_BYTES)

DEV void load_keys(u8 *stage, const bf16 *k, const bf16 *v, const int *blocks, int kv_head, int kv_heads, int t, int stop) {
#pragma unroll
  for (int i = 0; i < KEYS * CHUNKS / THREADS; i++) {
    const int chunk = i * THREADS + threadIdx.x, line = chunk / CHUNKS, column = chunk % CHUNKS, token = t + line;
    const bool live = token < stop;
    const u64 from = live ? (((u64)blocks[token / PAGE] * kv_heads + kv_head) * PAGE + token % PAGE) * HEAD_DIM + column * 8 : 0;
    u8 *to = cell(stage, line, column);
    cp_async16(to, k + from, live);
    cp_async16(to + HALF_BYTES, v + from, live);
  }
}

// Grid (any, kv heads), items as in paged_decode, each the whole of its rows. q, out [tokens][heads][HEAD_DIM].
extern "C" __global__ void __launch_bounds__(THREADS)
paged_prefill(const bf16 *q, const bf16 *k, const bf16 *v, const int *tables, const int4 *items, const int *num_items,
              const int *query_start, const int *context_len, bf16 *out, int table_pitch, float scale_log2) {
  DYNAMIC_SHARED(shared);
  const int lane = threadIdx.x & 31, first_row = (threadIdx.x >> 5) * 16, gid = lane >> 2, tig = lane & 3;
  const int kv_head = blockIdx.y, kv_heads = gridDim.y, heads = kv_heads * GROUP;
  for (int index = blockIdx.x; index < num_items[0]; index += gridDim.x) {
    const int4 item = vload<int4>(items + index);
    const int row = item.x, stop = item.w, start = query_start[row], fed = query_start[row + 1] - start;
    const int count = min(TOKENS, fed - item.y) * GROUP, position = context_len[row] - fed + item.y;
    const int *blocks = tables + (u64)row * table_pitch;
    if (item.z < stop) load_keys(shared, k, v, blocks, kv_head, kv_heads, item.z, stop);
    cp_async_commit();
    Rows rows;
    load_queries(rows, q, start + item.y, first_row, count, kv_head, heads, lane);
    int stage = 0;
    for (int t = item.z; t < stop; t += KEYS) {
      cp_async_wait<0>();
      __syncthreads();                                        // this tile is there, and everyone is done with the other one
      u8 *tile = shared + stage * STAGE_BYTES;
      stage ^= 1;
      if (t + KEYS < stop) load_keys(shared + stage * STAGE_BYTES, k, v, blocks, kv_head, kv_heads, t + KEYS, stop);
      cp_async_commit();
      attend_keys<KEYS>(rows, tile, tile + HALF_BYTES, t, stop, position, first_row, scale_log2, lane);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float sum = whole_sum(rows.l[h]), inverse = sum > 0.f ? 1.f / sum : 0.f;
      const int r = first_row + h * 8 + gid;
      if (r >= count) continue;
      bf16 *to = out + ((u64)(start + item.y + r / GROUP) * heads + kv_head * GROUP + r % GROUP) * HEAD_DIM + tig * 2;
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 8; d++) *(u32 *)(to + d * 8) = pack_bf16(rows.o[d][h * 2] * inverse, rows.o[d][h * 2 + 1] * inverse);
    }
    cp_async_wait<0>();
    __syncthreads();                                          // everyone has read the last tile before the next item's comes
  }
}
