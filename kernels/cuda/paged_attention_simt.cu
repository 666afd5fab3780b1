// Paged attention on plain cores, for float32 and for head sizes that the tensor-core kernels do not take. One block a token and head; 4
// warps go over the keys in turn, LANES lanes a key, 8 elements a lane.
// -D: ELEMENT_F32, HEAD_DIM (a multiple of 8, at most 256), LANES (a power of two, at least HEAD_DIM / 8), GROUP, WINDOW
#include "reduce.cuh"
#define WARPS 4
#define PAGE 16
#define KEYS (32 / LANES)                                     // a warp looks at once at so many

// The row of a token: query_start [rows + 1] rises. -1 behind the last row.
DEV int row_of(const int *query_start, int num_rows, int token) {
  if (token >= query_start[num_rows]) return -1;
  int low = 0, high = num_rows - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (query_start[middle + 1] > token) high = middle; else low = middle + 1;
  }
  return low;
}

// Grid (tokens, heads). q, out [tokens][heads][HEAD_DIM]; k, v [blocks][kv heads][PAGE][HEAD_DIM]; tokens behind the last row are left alone.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 8)
paged_attention_simt(const element *q, const element *k, const element *v, const int *tables, const int *query_start, const int *context_len,
                     element *out, int num_rows, int table_pitch, float scale) {
  __shared__ float parked[WARPS][HEAD_DIM], parked_m[WARPS], parked_l[WARPS];
  const int token = blockIdx.x, head = blockIdx.y, heads = gridDim.y, kv_heads = heads / GROUP, kv_head = head / GROUP;
  const int row = row_of(query_start, num_rows, token);
  if (row < 0) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, at = lane % LANES * 8;
  const bool inside = at < HEAD_DIM;
  const int fed = query_start[row + 1] - query_start[row], context = context_len[row];
  const int position = context - fed + token - query_start[row], stop = context < fed ? 0 : position + 1;
  const int begin = WINDOW ? max(0, position - WINDOW + 1) : 0;
  float own[8] = {}, o[8] = {}, m = -INFINITY_F, l = 0.f;
  if (inside) load8(own, q + ((u64)token * heads + head) * HEAD_DIM + at);
  for (int base = begin + warp * KEYS; base < stop; base += WARPS * KEYS) {
    const int t = base + lane / LANES;
    const bool live = t < stop && inside;
    u64 from = 0;
    float score = 0.f, part[8];
    if (live) {
      from = (((u64)tables[(u64)row * table_pitch + t / PAGE] * kv_heads + kv_head) * PAGE + t % PAGE) * HEAD_DIM + at;
      load8(part, k + from);
#pragma unroll
      for (int j = 0; j < 8; j++) score += own[j] * part[j];
    }
#pragma unroll
    for (int step = 1; step < LANES; step <<= 1) score += __shfl_xor_sync(FULL_WARP, score, step);
    if (t >= stop) continue;                                  // the shuffles are behind us; a group of lanes leaves as a whole
    score *= scale;
    const float now = fmaxf(m, score), kept = expf(m - now), weight = expf(score - now);
    m = now; l = l * kept + weight;
    if (live) {
      load8(part, v + from);
#pragma unroll
      for (int j = 0; j < 8; j++) o[j] = o[j] * kept + weight * part[j];
    }
  }
#pragma unroll
  for (int step = LANES; step < 32; step <<= 1) {             // the warp's groups of lanes
    const float other = __shfl_xor_sync(FULL_WARP, m, step), sum = __shfl_xor_sync(FULL_WARP, l, step);
    const float now = fmaxf(m, other), base = now == -INFINITY_F ? 0.f : now, a = expf(m - base), b = expf(other - base);
    m = now; l = l * a + sum * b;
#pragma unroll
    for (int j = 0; j < 8; j++) o[j] = o[j] * a + __shfl_xor_sync(FULL_WARP, o[j], step) * b;
  }
  if (lane < LANES && inside)
#pragma unroll
    for (int j = 0; j < 8; j++) parked[warp][at + j] = o[j];
  if (lane == 0) { parked_m[warp] = m; parked_l[warp] = l; }
  __syncthreads();
  float most = -INFINITY_F, sum = 0.f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) most = fmaxf(most, parked_m[w]);
  const float base = most == -INFINITY_F ? 0.f : most;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += parked_l[w] * expf(parked_m[w] - base);
  const float inverse = sum > 0.f ? 1.f / sum : 0.f;          // a dead row has no keys: 0
  for (int d = threadIdx.x; d < HEAD_DIM; d += WARPS * 32) {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) total += parked[w][d] * expf(parked_m[w] - base);
    out[((u64)token * heads + head) * HEAD_DIM + d] = from_float<element>(total * inverse);
  }
}
