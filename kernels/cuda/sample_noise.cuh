// A token's uniform number: a hash of (seed, output position, token id) and of nothing else, as kernels/cpu/noise.py has it, bit for bit.
#pragma once
#include "common.cuh"
#define GOLDEN 0x9E3779B97F4A7C15ull

DEV u64 mix64(u64 x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}
DEV u32 mix32(u32 x) {
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}
// Of a row's noise at one output position.
DEV u64 noise_key(u64 seed, int position) { return mix64(mix64(seed + (u64)(position + 1ll) * GOLDEN) + GOLDEN); }
// In (0, 1): at least 2^-33, at most 1 - 2^-24.
DEV float uniform(u64 key, u32 id) {
  const u32 bits = mix32(mix32(id ^ (u32)key) + (u32)(key >> 32));
  return fminf(fmaf((float)bits, 0x1p-32f, 0x1p-33f), 0x1.fffffep-1f);
}
