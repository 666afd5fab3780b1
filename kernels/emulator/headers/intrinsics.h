// Functions of one number. What CUDA calls fast is exact here.
#pragma once
#include "runtime_calls.h"

namespace cuemu {
template <class To, class From> To same_bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To out;
  std::memcpy(&out, &v, sizeof out);
  return out;
}
}  // namespace cuemu
inline float __uint_as_float(unsigned v) { return cuemu::same_bits<float>(v); }
inline unsigned __float_as_uint(float v) { return cuemu::same_bits<unsigned>(v); }
inline float __int_as_float(int v) { return cuemu::same_bits<float>(v); }
inline int __float_as_int(float v) { return cuemu::same_bits<int>(v); }

inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }

template <class T> T __ldg(const T *p) { return *p; }
inline void __trap() { cuemu::fail("__trap()"); }
