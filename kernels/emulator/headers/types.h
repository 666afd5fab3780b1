// Qualifiers, vector types and the variables that a thread finds itself by.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define CUEMU 1
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("cuemu_shared")))  // one section: the runtime poisons it before each block

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
#define CUEMU_VECTORS(T, name)                                        \
  struct alignas(sizeof(T) * 2) name##2 { T x, y; };                  \
  struct alignas(sizeof(T) * 4) name##4 { T x, y, z, w; };            \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }   \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUEMU_VECTORS(float, float)
CUEMU_VECTORS(int, int)
CUEMU_VECTORS(unsigned, uint)
CUEMU_VECTORS(unsigned short, ushort)
#undef CUEMU_VECTORS

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;
