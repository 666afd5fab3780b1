// out = activation(gate) * up, where a row is gate then up. A thread takes 8 neighbours.
// -D: ELEMENT_F32, INNER (a multiple of 8), GELU (0: SiLU, 1: GELU in its tanh form), THREADS
#include "common.cuh"

// Both are logistic curves, as in the CPU twin: 0.5 x (1 + tanh) would subtract near numbers where x is negative.
DEV float activated(float x) {
#if GELU
  const float slope = -1.5957691216057308f - 0.07135481627260025f * x * x;  // -2 sqrt(2 / pi), and that times 0.044715
#else
  const float slope = -1.f;
#endif
  return x / (1.f + expf(slope * x));
}

// gate_up [rows][2 INNER], out [rows][INNER]
extern "C" __global__ void __launch_bounds__(THREADS) gated_mul(const element *gate_up, element *out, int num_rows) {
  const int at = (blockIdx.x * THREADS + threadIdx.x) * 8, row = blockIdx.y;
  if (at >= INNER || row >= num_rows) return;
  float gate[8], up[8];
  load8(gate, gate_up + (u64)row * 2 * INNER + at);
  load8(up, gate_up + (u64)row * 2 * INNER + INNER + at);
#pragma unroll
  for (int j = 0; j < 8; j++) gate[j] = activated(gate[j]) * up[j];
  store8(out + (u64)row * INNER + at, gate);
}
