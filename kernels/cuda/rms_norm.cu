// out = RMSNorm(x) * weight, or residual += x and out = RMSNorm(residual) * weight. One block a row, the row in registers.
// -D: ELEMENT_F32, HIDDEN (a multiple of 8), THREADS
#include "reduce.cuh"
#define VECTORS ((HIDDEN / 8 + THREADS - 1) / THREADS)        // of 8 elements, for each thread

// x, residual, out [rows][HIDDEN]; weight f32 [HIDDEN]; residual may be null. A sum is rounded as it is stored before it is normed.
extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm(const element *x, element *residual, const float *weight, element *out, float eps) {
  __shared__ float space[THREADS / 32];
  const u64 row = (u64)blockIdx.x * HIDDEN;
  float value[VECTORS][8], squares = 0.f;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const int at = (i * THREADS + threadIdx.x) * 8;
    if (at >= HIDDEN) continue;
    load8(value[i], x + row + at);
    if (residual) {
      float before[8];
      load8(before, residual + row + at);
#pragma unroll
      for (int j = 0; j < 8; j++) value[i][j] = to_float(from_float<element>(value[i][j] + before[j]));
      store8(residual + row + at, value[i]);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) squares += value[i][j] * value[i][j];
  }
  const float scale = rsqrtf(block_sum<THREADS>(squares, space) / HIDDEN + eps);
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const int at = (i * THREADS + threadIdx.x) * 8;
    if (at >= HIDDEN) continue;
    float w[8];
    load8(w, weight + at);
#pragma unroll
    for (int j = 0; j < 8; j++) value[i][j] = value[i][j] * scale * w[j];
    store8(out + row + at, value[i]);
  }
}
