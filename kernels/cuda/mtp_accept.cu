// Which drafts equal what the target chose, and the tokens that rows emit for it, one after another. One block.
// -D: COHORT (all rows emit as many as the row that emits fewest), THREADS
#include "common.cuh"
#define WARPS (THREADS / 32)

// Position j of a row is chosen after the row's token j was fed; token 0 is known, those behind it are drafts. chosen, fed i32 [positions],
// failed u8 [positions]: nothing could be chosen there. starts [rows + 1], a row of no positions is padding. num_accepted [rows]:
// drafts that were right; num_emitted [rows]: 0 where even the first choice failed; emitted [positions]: -1 behind the last.
DEV int accepted(const int *chosen, const int *fed, const u8 *failed, int start, int stop) {
  int at = start;
  while (at + 1 < stop && !failed[at] && chosen[at] == fed[at + 1]) at++;
  return at - start;
}
DEV int warp_min(int v) {
#pragma unroll
  for (int step = 16; step; step >>= 1) {
    const int other = __shfl_xor_sync(FULL_WARP, v, step);
    v = other < v ? other : v;
  }
  return v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
mtp_accept(const int *chosen, const int *fed, const u8 *failed, const int *starts, int *num_accepted, int *num_emitted, int *emitted_starts,
           int *emitted, int rows, int positions) {
  __shared__ int space[WARPS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int fewest = 0x7fffffff;
  for (int row = threadIdx.x; row < rows; row += THREADS) {
    const int start = starts[row], stop = starts[row + 1];
    const int right = start < stop ? accepted(chosen, fed, failed, start, stop) : 0;
    const int own = start < stop ? right + !failed[start + right] : 0;
    num_accepted[row] = right, num_emitted[row] = own;
    if (own && own < fewest) fewest = own;                    // a row that fails holds nobody back
  }
  fewest = warp_min(fewest);
  if (lane == 0) space[warp] = fewest;
  __syncthreads();
  for (int w = 0; w < WARPS; w++) fewest = space[w] < fewest ? space[w] : fewest;

  int before = 0;                                             // emitted by rows of earlier rounds
  for (int base = 0; base < rows; base += THREADS) {
    const int row = base + threadIdx.x;
    int own = row < rows ? num_emitted[row] : 0;
    if (COHORT && own > fewest) own = num_emitted[row] = fewest;
    int upto = own;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const int lower = __shfl_up_sync(FULL_WARP, upto, step);
      if (lane >= step) upto += lower;
    }
    __syncthreads();
    if (lane == 31) space[warp] = upto;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < WARPS; w++) {
      if (w < warp) upto += space[w];
      total += space[w];
    }
    if (row < rows) {
      emitted_starts[row] = before + upto - own;
      for (int i = 0; i < own; i++) emitted[before + upto - own + i] = chosen[starts[row] + i];
    }
    before += total;
  }
  if (threadIdx.x == 0) emitted_starts[rows] = before;
  for (int at = before + threadIdx.x; at < positions; at += THREADS) emitted[at] = -1;
}
