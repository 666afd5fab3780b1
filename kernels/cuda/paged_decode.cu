// Paged attention of rows with few new tokens (decode, verify) on the tensor cores: bandwidth is all. The GROUP heads of a kv head times the
// row's tokens fill a tile of 16 query rows. Each of 4 warps streams keys through a ring of its own, with no block barrier in the loop; then
// the warps merge. A long context is cut into items, whose parts `paged_decode_merge` puts together.
// -D: HEAD_DIM, GROUP (at most 16), WINDOW, STAGES
#include "attention_tile.cuh"
#define WARPS 4
#define THREADS (WARPS * 32)
#define TILE 16                                               // keys of a warp's step: one block of the cache
#define TOKENS (16 / GROUP)                                   // query tokens of a tile
#define HALF_BYTES (TILE * HEAD_DIM * 2)
#define STAGE_BYTES (2 * HALF_BYTES)                          // keys, then values
#define RING_BYTES (STAGES * STAGE_BYTES)
#define PITCH (HEAD_DIM + 8)                                  // floats of a parked row

// A tile is one block of the cache, one contiguous run: one look-up, constant offsets. Items begin at multiples of TILE.
DEV void load_tile(u8 *stage, const bf16 *k, const bf16 *v, const int *blocks, int kv_head, int kv_heads, int t, int stop, int lane) {
  const u64 base = ((u64)blocks[t / PAGE] * kv_heads + kv_head) * PAGE * HEAD_DIM + lane * 8;
  const int live = (stop - t) * CHUNKS;
#pragma unroll
  for (int i = 0; i < TILE * CHUNKS / 32; i++) {
    const int chunk = i * 32 + lane;
    u8 *to = cell(stage, chunk / CHUNKS, chunk % CHUNKS);
    cp_async16(to, k + base + i * 256, chunk < live);
    cp_async16(to + HALF_BYTES, v + base + i * 256, chunk < live);
  }
}

// Grid (any, kv heads): block x takes items x, x + gridDim.x, ... of num_items[0]. item = {row, first token, first key, key behind the last};
// item_slot < 0: it is the whole of its rows and goes to `out`, else to part `item_slot` of part_o [slots][kv heads][16][HEAD_DIM] and
// part_ml [slots][kv heads][16][2]. q, out [tokens][heads][HEAD_DIM].
// Two blocks of a multiprocessor: shared memory allows no more, so the registers may as well be used.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
paged_decode(const bf16 *q, const bf16 *k, const bf16 *v, const int *tables, const int4 *items, const int *item_slot, const int *num_items,
             const int *query_start, const int *context_len, bf16 *out, float *part_o, float *part_ml, int table_pitch, float scale_log2) {
  DYNAMIC_SHARED(shared);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, gid = lane >> 2, tig = lane & 3;
  const int kv_head = blockIdx.y, kv_heads = gridDim.y, heads = kv_heads * GROUP, step = WARPS * TILE;
  u8 *ring = shared + warp * RING_BYTES;
  float *parked = (float *)shared;                            // [WARPS][16][PITCH], when the rings are idle
  float *parked_ml = parked + WARPS * 16 * PITCH;             // [WARPS][16][2]
  for (int index = blockIdx.x; index < num_items[0]; index += gridDim.x) {
    const int4 item = vload<int4>(items + index);
    const int row = item.x, first = item.z + warp * TILE, stop = item.w, slot = item_slot[index];
    const int start = query_start[row], fed = query_start[row + 1] - start, count = min(TOKENS, fed - item.y) * GROUP;
    const int *blocks = tables + (u64)row * table_pitch;
    int loading = first;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
      if (loading < stop) load_tile(ring + s * STAGE_BYTES, k, v, blocks, kv_head, kv_heads, loading, stop, lane);
      cp_async_commit();
      loading += step;
    }
    Rows rows;
    load_queries(rows, q, start + item.y, 0, count, kv_head, heads, lane);
    int stage = 0;
    for (int t = first; t < stop; t += step) {
      cp_async_wait<STAGES - 2>();
      __syncwarp();                                           // other lanes' copies are visible, the oldest slot is free
      const int next = stage == 0 ? STAGES - 1 : stage - 1;
      if (loading < stop) load_tile(ring + next * STAGE_BYTES, k, v, blocks, kv_head, kv_heads, loading, stop, lane);
      cp_async_commit();
      loading += step;
      u8 *tile = ring + stage * STAGE_BYTES;
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      attend_keys<TILE>(rows, tile, tile + HALF_BYTES, t, stop, context_len[row] - fed + item.y, 0, scale_log2, lane);
      __syncwarp();                                           // everyone has read before the slot is filled again
    }
    cp_async_wait<0>();
    __syncthreads();                                          // all rings are idle
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float sum = whole_sum(rows.l[h]);
      const int r = warp * 16 + h * 8 + gid;
      if (tig == 0) { parked_ml[r * 2] = rows.m[h]; parked_ml[r * 2 + 1] = sum; }
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 8; d++) vstore(parked + r * PITCH + d * 8 + tig * 2, make_float2(rows.o[d][h * 2], rows.o[d][h * 2 + 1]));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * HEAD_DIM / 2; i += THREADS) {
      const int r = i / (HEAD_DIM / 2), d = i % (HEAD_DIM / 2) * 2;
      float most = MINUS_INFINITY, sum = 0.f, x = 0.f, y = 0.f;
#pragma unroll
      for (int w = 0; w < WARPS; w++) most = fmaxf(most, parked_ml[(w * 16 + r) * 2]);
      const float base = most == MINUS_INFINITY ? 0.f : most;
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        const float f = fast_exp2(parked_ml[(w * 16 + r) * 2] - base);
        const float2 o = vload<float2>(parked + (w * 16 + r) * PITCH + d);
        sum += parked_ml[(w * 16 + r) * 2 + 1] * f; x += o.x * f; y += o.y * f;
      }
      if (slot < 0) {
        const float inverse = sum > 0.f ? 1.f / sum : 0.f;    // a dead row has no keys: 0
        const u64 to = ((u64)(start + item.y + r / GROUP) * heads + kv_head * GROUP + r % GROUP) * HEAD_DIM + d;
        *(u32 *)(out + to) = pack_bf16(x * inverse, y * inverse);
      } else {
        const u64 to = ((u64)slot * kv_heads + kv_head) * 16 + r;
        vstore(part_o + to * HEAD_DIM + d, make_float2(x, y));
        if (d == 0) vstore(part_ml + to * 2, make_float2(most, sum));
      }
    }
    __syncthreads();                                          // parked sums are read before the next item's keys come
  }
}

// Grid (rows, heads), HEAD_DIM / 2 threads. row_slots[row] = {first slot, parts}; 1 part or none: nothing to do.
extern "C" __global__ void __launch_bounds__(HEAD_DIM / 2)
paged_decode_merge(const float *part_o, const float *part_ml, const int2 *row_slots, const int *query_start, bf16 *out) {
  const int row = blockIdx.x, head = blockIdx.y, heads = gridDim.y, kv_heads = heads / GROUP, d = threadIdx.x * 2;
  const int2 slots = vload<int2>(row_slots + row);
  if (slots.y < 2) return;
  const int start = query_start[row], fed = query_start[row + 1] - start;
  for (int token = 0; token < fed; token++) {
    const int r = token % TOKENS * GROUP + head % GROUP, first = slots.x + token / TOKENS * slots.y;
    float most = MINUS_INFINITY, sum = 0.f, x = 0.f, y = 0.f;
    for (int part = 0; part < slots.y; part++) {
      const u64 from = ((u64)(first + part) * kv_heads + head / GROUP) * 16 + r;
      const float2 ml = vload<float2>(part_ml + from * 2), o = vload<float2>(part_o + from * HEAD_DIM + d);
      const float now = fmaxf(most, ml.x), base = now == MINUS_INFINITY ? 0.f : now;
      const float a = fast_exp2(most - base), b = fast_exp2(ml.x - base);
      most = now; sum = sum * a + ml.y * b; x = x * a + o.x * b; y = y * a + o.y * b;
    }
    const float inverse = sum > 0.f ? 1.f / sum : 0.f;
    *(u32 *)(out + ((u64)(start + token) * heads + head) * HEAD_DIM + d) = pack_bf16(x * inverse, y * inverse);
  }
}
