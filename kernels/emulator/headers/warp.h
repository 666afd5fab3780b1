// Barriers of a block, and what the lanes of a warp do together.
#pragma once
#include "runtime_calls.h"
#define CUEMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CUEMU_HERE) { cuemu::block_barrier(cuemu::NONE, 0, file, line); }
inline int __syncthreads_or(int p, CUEMU_HERE) { return cuemu::block_barrier(cuemu::ANY, p, file, line); }
inline int __syncthreads_and(int p, CUEMU_HERE) { return cuemu::block_barrier(cuemu::ALL, p, file, line); }
inline int __syncthreads_count(int p, CUEMU_HERE) { return cuemu::block_barrier(cuemu::COUNT, p, file, line); }
inline void __syncwarp(unsigned mask = ~0u, CUEMU_HERE) { cuemu::warp_barrier(mask, file, line); }
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace cuemu {
inline int lane() { return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31); }

template <class T> T shuffle(unsigned mask, T value, int source, const char *file, int line) {
  static_assert(sizeof(T) <= 8, "a shuffle takes at most 8 bytes");
  Shuffle in{0, source};
  uint64_t bits = 0;
  std::memcpy(&in.value, &value, sizeof(T));
  collective(resolve_shuffle, mask, &in, &bits, file, line);
  T out;
  std::memcpy(&out, &bits, sizeof(T));
  return out;
}
inline unsigned together(Resolve resolve, unsigned mask, unsigned in, const char *file, int line) {
  unsigned out;
  collective(resolve, mask, &in, &out, file, line);
  return out;
}
}  // namespace cuemu

// Lanes beyond their group of `width` keep their own value.
template <class T> T __shfl_sync(unsigned mask, T v, int source, int width = 32, CUEMU_HERE) {
  return cuemu::shuffle(mask, v, (cuemu::lane() & ~(width - 1)) + (source & (width - 1)), file, line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, CUEMU_HERE) {
  const int own = cuemu::lane(), source = own ^ bits, end = (own & ~(width - 1)) + width;
  return cuemu::shuffle(mask, v, source >= end ? own : source, file, line);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, int step, int width = 32, CUEMU_HERE) {
  const int own = cuemu::lane();
  return cuemu::shuffle(mask, v, (own & (width - 1)) + step >= width ? own : own + step, file, line);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, int step, int width = 32, CUEMU_HERE) {
  const int own = cuemu::lane();
  return cuemu::shuffle(mask, v, (own & (width - 1)) < step ? own : own - step, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int p, CUEMU_HERE) {
  return cuemu::together(cuemu::resolve_ballot, mask, p != 0, file, line);
}
inline int __any_sync(unsigned mask, int p, CUEMU_HERE) { return __ballot_sync(mask, p, file, line) != 0; }
inline int __all_sync(unsigned mask, int p, CUEMU_HERE) { return __ballot_sync(mask, p, file, line) == mask; }
inline unsigned __match_any_sync(unsigned mask, unsigned v, CUEMU_HERE) {
  return cuemu::together(cuemu::resolve_match, mask, v, file, line);
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned v, CUEMU_HERE) {
  return cuemu::together(cuemu::resolve_sum, mask, v, file, line);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v, CUEMU_HERE) {
  return cuemu::together(cuemu::resolve_maximum, mask, v, file, line);
}
