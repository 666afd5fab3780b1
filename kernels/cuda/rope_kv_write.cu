// Between the q, k, v projection and attention: per-head norms, rotary positions, keys and values into their blocks. One block a token;
// the token's row lies in shared memory, a warp takes a head at a time, a lane 8 neighbours of it.
// -D: ELEMENT_F32, HEADS, KV_HEADS, HEAD_DIM (a multiple of 8, at most 256), ROTARY (pairs), THREADS
#include "reduce.cuh"
#define COLUMNS ((HEADS + 2 * KV_HEADS) * HEAD_DIM)
#define BLOCK 16

// One lane's 8 elements of a head under its norm (weight may be null) and, where cos is given, rotated.
DEV void head_part(float (&out)[8], const float *head, const float *weight, float eps, const float *cos, const float *sin, int lane) {
  const int at = lane * 8;
  float squares = 0.f;
  if (weight && at < HEAD_DIM)
#pragma unroll
    for (int j = 0; j < 8; j++) squares += head[at + j] * head[at + j];
  const float scale = weight ? rsqrtf(warp_sum(squares) / HEAD_DIM + eps) : 1.f;
  if (at >= HEAD_DIM) return;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const int d = at + j;
    const float own = head[d] * (weight ? scale * weight[d] : 1.f);
    if (d >= 2 * ROTARY) { out[j] = own; continue; }
    const bool low = d < ROTARY;
    const int pair = low ? d : d - ROTARY, other = low ? d + ROTARY : pair;
    const float partner = head[other] * (weight ? scale * weight[other] : 1.f);
    out[j] = own * cos[pair] + (low ? -partner : partner) * sin[pair];
  }
}

// qkv [T][COLUMNS]; cos, sin f32 [positions][ROTARY]; position, slot [T]; k, v [blocks][KV_HEADS][BLOCK][HEAD_DIM]; q [T][HEADS][HEAD_DIM].
// A position outside the table or a slot behind the cache makes the token's query NaN and writes nothing else; slot -1 writes nothing.
extern "C" __global__ void __launch_bounds__(THREADS)
rope_kv_write(const element *qkv, const float *cos, const float *sin, const int *position, const int *slot, const float *q_norm,
              const float *k_norm, element *k, element *v, element *q, int num_positions, int num_blocks, float eps) {
  DYNAMIC_SHARED(bytes);
  float *row = (float *)bytes;
  const u64 token = blockIdx.x;
  for (int at = threadIdx.x * 8; at < COLUMNS; at += THREADS * 8) {
    float part[8];
    load8(part, qkv + token * COLUMNS + at);
#pragma unroll
    for (int j = 0; j < 8; j++) row[at + j] = part[j];
  }
  __syncthreads();
  const int lane = threadIdx.x & 31, where = position[token], to = slot[token];
  const bool bad = where < 0 || where >= num_positions || to >= num_blocks * BLOCK;
  const float *c = cos + (u64)(bad ? 0 : where) * ROTARY, *s = sin + (u64)(bad ? 0 : where) * ROTARY;
  const bool kept = to >= 0 && !bad;
  for (int head = threadIdx.x >> 5; head < HEADS + 2 * KV_HEADS; head += THREADS / 32) {
    const float *source = row + head * HEAD_DIM;
    const bool query = head < HEADS, value = head >= HEADS + KV_HEADS;
    float part[8];
    if (!value) head_part(part, source, query ? q_norm : k_norm, eps, c, s, lane);
    if (lane * 8 >= HEAD_DIM) continue;
    if (query) {
      if (bad)
#pragma unroll
        for (int j = 0; j < 8; j++) part[j] = NAN_F;
      store8(q + (token * HEADS + head) * HEAD_DIM + lane * 8, part);
    } else if (kept) {
      if (value)
#pragma unroll
        for (int j = 0; j < 8; j++) part[j] = source[lane * 8 + j];
      const int kv_head = value ? head - HEADS - KV_HEADS : head - HEADS;
      const u64 start = (((u64)(to / BLOCK) * KV_HEADS + kv_head) * BLOCK + to % BLOCK) * HEAD_DIM;
      store8((value ? v : k) + start + lane * 8, part);
    }
  }
}
