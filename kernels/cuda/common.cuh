// Types and access to memory. No toolkit header is included: the same text builds under NVRTC, nvcc and the emulator (CUEMU).
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u16 bf16;                       // its bits
#define DEV static __device__ __forceinline__
#define FULL_WARP 0xffffffffu
#define INFINITY_F __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fffffff)

#ifdef CUEMU
#define DYNAMIC_SHARED(name) u8 *name = (u8 *)cuemu::dynamic_shared()
#else
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]
#endif

// One access of 4, 8 or 16 bytes; the emulator would otherwise see the compiler's split into members.
template <class T> DEV T vload(const void *p) {
#ifdef CUEMU
  T v; cuemu::load(&v, p, (int)sizeof(T)); return v;
#else
  return *(const T *)p;
#endif
}
template <class T> DEV void vstore(void *p, T v) {
#ifdef CUEMU
  cuemu::store(p, &v, (int)sizeof(T));
#else
  *(T *)p = v;
#endif
}

// ---- bfloat16 ----
DEV float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
DEV float bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
DEV u32 pack_bf16(float low, float high) {        // rounds to nearest even
#ifdef CUEMU
  u32 a = __float_as_uint(low), b = __float_as_uint(high);
  a = low != low ? 0x7fff : (a + 0x7fff + ((a >> 16) & 1)) >> 16;
  b = high != high ? 0x7fff : (b + 0x7fff + ((b >> 16) & 1)) >> 16;
  return (a & 0xffff) | b << 16;
#else
  u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
#endif
}
DEV float to_float(float v) { return v; }
DEV float to_float(bf16 v) { return __uint_as_float((u32)v << 16); }
template <class T> DEV T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float v) { return (bf16)pack_bf16(v, 0.f); }

// ---- eight neighbours at once: 16 bytes of bfloat16, 32 of float32 ----
DEV void load8(float (&out)[8], const bf16 *p) {
  const uint4 v = vload<uint4>(p);
  const u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) { out[2 * i] = bf16_low(pairs[i]); out[2 * i + 1] = bf16_high(pairs[i]); }
}
DEV void load8(float (&out)[8], const float *p) {
  const float4 a = vload<float4>(p), b = vload<float4>(p + 4);
  out[0] = a.x; out[1] = a.y; out[2] = a.z; out[3] = a.w; out[4] = b.x; out[5] = b.y; out[6] = b.z; out[7] = b.w;
}
DEV void store8(bf16 *p, const float (&v)[8]) {
  vstore(p, uint4{pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])});
}
DEV void store8(float *p, const float (&v)[8]) {
  vstore(p, float4{v[0], v[1], v[2], v[3]}); vstore(p + 4, float4{v[4], v[5], v[6], v[7]});
}

// ---- ELEMENT_F32 chooses what a kernel's hidden states are made of ----
#ifdef ELEMENT_F32
#if ELEMENT_F32
typedef float element;
#else
typedef bf16 element;
#endif
#endif
