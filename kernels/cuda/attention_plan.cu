// Cuts the rows of a step into work items, on the device: a captured graph stays valid while lengths change. One block.
// Rows of at most FEW new tokens become decode items, DECODE_TOKENS of them over SPLIT keys each; longer ones prefill items of PREFILL_TOKENS over
// all keys that they see. A row's items depend on its own lengths alone. A dead row (fewer tokens of context than fed) gets items with no keys.
// -D: FEW, DECODE_TOKENS, SPLIT (a multiple of 16), PREFILL_TOKENS, WINDOW, THREADS
#include "common.cuh"

// Every thread's sum of `v` over the threads before it; `total` the sum over all. space [THREADS] of shared memory.
DEV int sums_before(int v, int *space, int &total) {
  const int me = threadIdx.x;
  __syncthreads();
  space[me] = v;
  __syncthreads();
  for (int step = 1; step < THREADS; step <<= 1) {
    const int other = me >= step ? space[me - step] : 0;
    __syncthreads();
    space[me] += other;
    __syncthreads();
  }
  total = space[THREADS - 1];
  return space[me] - v;
}
// The first key that a query at `position` sees, at the beginning of its block.
DEV int first_key(int position) { return WINDOW && position >= WINDOW ? (position - WINDOW + 1) & ~15 : 0; }

// query_start [rows + 1], context_len [rows]; decode_items, prefill_items {row, first token, first key, key behind the last}; item_slot beside
// decode_items (-1: the whole of its rows); num_items {decode, prefill}; row_slots [rows] {first slot, parts}.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_plan(const int *query_start, const int *context_len, int4 *decode_items, int *item_slot, int4 *prefill_items, int *num_items,
               int2 *row_slots, int num_rows) {
  __shared__ int space[THREADS];
  int decodes = 0, prefills = 0, slots = 0;
  for (int base = 0; base < num_rows; base += THREADS) {
    const int row = base + threadIdx.x;
    const bool here = row < num_rows;
    const int fed = here ? query_start[row + 1] - query_start[row] : 0, context = here ? context_len[row] : 0;
    const bool dead = context < fed, few = fed <= FEW;
    const int start = dead ? 0 : first_key(context - fed), keys = dead ? 0 : context - start;
    const int parts = fed && few ? max(1, (keys + SPLIT - 1) / SPLIT) : 0, tiles = few ? (fed + DECODE_TOKENS - 1) / DECODE_TOKENS : 0;
    const int chunks = few ? 0 : (fed + PREFILL_TOKENS - 1) / PREFILL_TOKENS, parked = parts > 1 ? parts * tiles : 0;
    int all_decodes, all_prefills, all_slots;
    int decode = decodes + sums_before(parts * tiles, space, all_decodes);
    int prefill = prefills + sums_before(chunks, space, all_prefills);
    int slot = slots + sums_before(parked, space, all_slots);
    if (here) vstore(row_slots + row, make_int2(slot, parts));
    for (int tile = 0; tile < tiles; tile++)
      for (int part = 0; part < parts; part++, decode++) {
        const int from = start + part * SPLIT;
        vstore(decode_items + decode, make_int4(row, tile * DECODE_TOKENS, dead ? 0 : from, dead ? 0 : min(context, from + SPLIT)));
        item_slot[decode] = parts > 1 ? slot++ : -1;
      }
    for (int chunk = 0; chunk < chunks; chunk++, prefill++) {
      const int token = chunk * PREFILL_TOKENS, position = context - fed + token;
      const int stop = dead ? 0 : min(context, position + PREFILL_TOKENS);
      vstore(prefill_items + prefill, make_int4(row, token, dead ? 0 : first_key(position), stop));
    }
    decodes += all_decodes; prefills += all_prefills; slots += all_slots;
  }
  if (threadIdx.x == 0) { num_items[0] = decodes; num_items[1] = prefills; }
}
