// Sums and maxima over a warp and over a block of whole warps.
#pragma once
#include "common.cuh"

DEV float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(FULL_WARP, v, step);
  return v;
}
DEV float warp_max(float v) {
#pragma unroll
  for (int step = 16; step; step >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, step));
  return v;
}
// Every thread gets the sum. `space` [warps] is shared memory that nobody else uses until the next block barrier.
template <int N> DEV float block_sum(float v, float *space) {
  v = warp_sum(v);
  if (N == 32) return v;
  if ((threadIdx.x & 31) == 0) space[threadIdx.x >> 5] = v;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int w = 0; w < N / 32; w++) total += space[w];
  return total;
}
