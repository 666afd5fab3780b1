// Between the q, k, v projection and attention: per-head norms, rotary positions, keys and values into their blocks. One block a token;
// the token's row lies in shared memory, a warp takes a head at a time, a lane 4 neighbours of each 128: no two meet in a bank.
// -D: ELEMENT_F32, HEADS, KV_HEADS, HEAD_DIM (a multiple of 4), ROTARY (pairs, a multiple of 4), THREADS
#include "reduce.cuh"
#define COLUMNS ((HEADS + 2 * KV_HEADS) * HEAD_DIM)
#define BLOCK 16

DEV float4 load4(const float *p) { return vload<float4>(p); }
DEV float4 load4(const bf16 *p) {
  const uint2 v = vload<uint2>(p);
  return float4{bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y)};
}
DEV void store4(float *p, float4 v) { vstore(p, v); }
DEV void store4(bf16 *p, float4 v) { vstore(p, uint2{pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)}); }

// What a head's norm multiplies by, besides its weights.
DEV float inverse_rms(const float *head, float eps, int lane) {
  float squares = 0.f;
#pragma unroll
  for (int d = lane * 4; d < HEAD_DIM; d += 128) {
    const float4 v = load4(head + d);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  return rsqrtf(warp_sum(squares) / HEAD_DIM + eps);
}
DEV float4 normed(const float *head, const float *weight, float scale, int d) {
  float4 v = load4(head + d);
  if (!weight) return v;
  const float4 w = load4(weight + d);
  v.x *= scale * w.x; v.y *= scale * w.y; v.z *= scale * w.z; v.w *= scale * w.w;
  return v;
}
// a cos + sign b sin
DEV float4 turned(float4 a, float4 b, float4 cos, float4 sin, float sign) {
  return float4{a.x * cos.x + sign * b.x * sin.x, a.y * cos.y + sign * b.y * sin.y, a.z * cos.z + sign * b.z * sin.z,
                a.w * cos.w + sign * b.w * sin.w};
}
// Four neighbours under their norm (weight may be null) and rotated. They lie on one side of their pairs, or behind all of them.
DEV float4 rotated(const float *head, const float *weight, float scale, const float *cos, const float *sin, int d) {
  const float4 v = normed(head, weight, scale, d);
  if (d >= 2 * ROTARY) return v;
  const bool low = d < ROTARY;
  const int pair = low ? d : d - ROTARY;
  const float4 partner = normed(head, weight, scale, low ? d + ROTARY : pair);
  return turned(v, partner, load4(cos + pair), load4(sin + pair), low ? -1.f : 1.f);
}

// qkv [T][COLUMNS]; cos, sin f32 [positions][ROTARY]; position, slot [T]; k, v [blocks][KV_HEADS][BLOCK][HEAD_DIM]; q [T][HEADS][HEAD_DIM].
// A position outside the table or a slot behind the cache makes the token's query NaN and writes nothing else; slot -1 writes nothing.
extern "C" __global__ void __launch_bounds__(THREADS)
rope_kv_write(const element *qkv, const float *cos, const float *sin, const int *position, const int *slot, const float *q_norm,
              const float *k_norm, element *k, element *v, element *q, int num_positions, int num_blocks, float eps) {
  DYNAMIC_SHARED(bytes);
  float *row = (float *)bytes;
  const u64 token = blockIdx.x;
  for (int at = threadIdx.x * 4; at < COLUMNS; at += THREADS * 4) store4(row + at, load4(qkv + token * COLUMNS + at));
  __syncthreads();
  const int lane = threadIdx.x & 31, where = position[token], to = slot[token];
  const bool bad = where < 0 || where >= num_positions || to >= num_blocks * BLOCK;
  const float *c = cos + (u64)(bad ? 0 : where) * ROTARY, *s = sin + (u64)(bad ? 0 : where) * ROTARY;
  for (int head = threadIdx.x >> 5; head < HEADS + 2 * KV_HEADS; head += THREADS / 32) {
    const float *source = row + head * HEAD_DIM;
    const bool query = head < HEADS, value = head >= HEADS + KV_HEADS;
    if (bad || (!query && to < 0)) {
      for (int d = lane * 4; query && d < HEAD_DIM; d += 128)
        store4(q + (token * HEADS + head) * HEAD_DIM + d, float4{NAN_F, NAN_F, NAN_F, NAN_F});
      continue;
    }
    const int kv_head = value ? head - HEADS - KV_HEADS : head - HEADS;
    const u64 place = query ? token * HEADS + head : ((u64)(to / BLOCK) * KV_HEADS + kv_head) * BLOCK + to % BLOCK;
    element *out = (query ? q : value ? v : k) + place * HEAD_DIM;
    const float *weight = query ? q_norm : k_norm;
    const float scale = weight && !value ? inverse_rms(source, eps, lane) : 1.f;
#pragma unroll
    for (int d = lane * 4; d < HEAD_DIM; d += 128)
      store4(out + d, value ? load4(source + d) : rotated(source, weight, scale, c, s, d));
  }
}
