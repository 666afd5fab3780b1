// Asynchronous copies into shared memory, matrix loads and the bfloat16 product of the tensor cores (sm_80 and newer).
#pragma once
#include "common.cuh"

DEV float fast_exp2(float x) {
#ifdef CUEMU
  return exp2f(x);
#else
  float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r;
#endif
}
DEV void cp_async16(void *shared, const void *global, bool valid) {   // not valid: 16 zero bytes, nothing is read
#ifdef CUEMU
  cuemu::async_copy(shared, global, 16, valid ? 16 : 0);
#else
  u32 d = (u32)__cvta_generic_to_shared(shared); int n = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(d), "l"(global), "r"(n) : "memory");
#endif
}
DEV void cp_async_commit() {
#ifdef CUEMU
  cuemu::async_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> DEV void cp_async_wait() {                           // until at most N groups are on their way
#ifdef CUEMU
  cuemu::async_wait(N);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
DEV void ldmatrix_x4(u32 (&r)[4], const void *p) {
#ifdef CUEMU
  cuemu::collective(cuemu::resolve_ldmatrix_x4, FULL_WARP, &p, r, __FILE__, __LINE__);
#else
  u32 a = (u32)__cvta_generic_to_shared(p);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
#endif
}
DEV void ldmatrix_x4_transposed(u32 (&r)[4], const void *p) {
#ifdef CUEMU
  cuemu::collective(cuemu::resolve_ldmatrix_x4_transposed, FULL_WARP, &p, r, __FILE__, __LINE__);
#else
  u32 a = (u32)__cvta_generic_to_shared(p);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
#endif
}
DEV void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {   // d += A (16 x 16) B (16 x 8)
#ifdef CUEMU
  cuemu::Fragments m{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  cuemu::collective(cuemu::resolve_mma_bf16, FULL_WARP, &m, d, __FILE__, __LINE__);
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
