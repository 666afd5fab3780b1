// Kernels of one warp whose answers NumPy knows. KERNEL(name) is the head of a kernel (const u32 *in, u32 *out), see probes.py.
#define T ((int)threadIdx.x)

KERNEL(shuffle_from_lane_5) { out[T] = __shfl_sync(FULL_WARP, in[T], 5); }
KERNEL(shuffle_within_eights) { out[T] = __shfl_sync(FULL_WARP, in[T], 11, 8); }
KERNEL(shuffle_xor_6) { out[T] = __shfl_xor_sync(FULL_WARP, in[T], 6); }
KERNEL(shuffle_up_3) { out[T] = __shfl_up_sync(FULL_WARP, in[T], 3); }
KERNEL(shuffle_down_3) { out[T] = __shfl_down_sync(FULL_WARP, in[T], 3); }
KERNEL(shuffle_down_within_sixteens) { out[T] = __shfl_down_sync(FULL_WARP, in[T], 3, 16); }
KERNEL(shuffle_of_doubles) { out[T] = (u32)__shfl_xor_sync(FULL_WARP, (double)in[T], 31); }
KERNEL(ballot_of_odd) { out[T] = __ballot_sync(FULL_WARP, in[T] & 1); }
KERNEL(any_is_7) { out[T] = __any_sync(FULL_WARP, in[T] == 7); }
KERNEL(all_are_below_1000) { out[T] = __all_sync(FULL_WARP, in[T] < 1000); }
KERNEL(match_of_thirds) { out[T] = __match_any_sync(FULL_WARP, in[T] % 3); }
KERNEL(sum) { out[T] = __reduce_add_sync(FULL_WARP, in[T]); }
KERNEL(maximum) { out[T] = __reduce_max_sync(FULL_WARP, in[T]); }
KERNEL(sum_of_the_first_eight) { out[T] = T < 8 ? __reduce_add_sync(0xffu, in[T]) : 0u; }
KERNEL(block_counts_odd) { out[T] = __syncthreads_count(in[T] & 1); }
KERNEL(block_or) { out[T] = __syncthreads_or(in[T] == 7) != 0; }
KERNEL(block_and) { out[T] = __syncthreads_and(in[T] < 1000) != 0; }

KERNEL(atomic_add) {
  __shared__ u32 cell;
  if (T == 0) cell = 10;
  __syncwarp();
  const u32 before = atomicAdd(&cell, in[T]);
  __syncwarp();
  out[T] = cell + 0 * before;
}
KERNEL(atomic_max) {
  __shared__ u32 cell;
  if (T == 0) cell = 10;
  __syncwarp();
  atomicMax(&cell, in[T]);
  __syncwarp();
  out[T] = cell;
}
KERNEL(atomic_or) {
  __shared__ u32 cell;
  if (T == 0) cell = 0;
  __syncwarp();
  atomicOr(&cell, 1u << T);
  __syncwarp();
  out[T] = cell;
}
KERNEL(atomic_exchange_and_swap) {
  __shared__ u32 cell;
  if (T == 0) cell = 3;
  __syncwarp();
  if (T == 0) out[0] = atomicExch(&cell, 5u), out[1] = atomicCAS(&cell, 4u, 9u), out[2] = atomicCAS(&cell, 5u, 9u), out[3] = cell;
  else if (T > 3) out[T] = 0;
}

KERNEL(bits) {
  const u32 v = in[T];
  out[T] = __popc(v) | __ffs(v) << 8 | __clz(v) << 16;
}
KERNEL(high_half_of_a_product) { out[T] = __umulhi(in[T] * 0x10000001u, 0xfedcba98u); }
KERNEL(rounded_to_bfloat16) { out[T] = pack_bf16(__uint_as_float(in[T]), 1.f); }

// in [16][16] and [16][8] bfloat16 in pairs, then f32 [16][8]; out f32 [16][8]. Fragments are read as the PTX manual has them.
KERNEL(product_of_matrices) {
  const int g = T / 4, q = T % 4;
  const u32 *a = in, *b = in + 128, *c = in + 192;
  const bf16 *b16 = (const bf16 *)b;
  const u32 fragment[4] = {a[g * 8 + q], a[(g + 8) * 8 + q], a[g * 8 + q + 4], a[(g + 8) * 8 + q + 4]};
  u32 columns[2];
  for (int i = 0; i < 2; i++) columns[i] = b16[(2 * q + 8 * i) * 8 + g] | (u32)b16[(2 * q + 1 + 8 * i) * 8 + g] << 16;
  float d[4];
  for (int i = 0; i < 4; i++) d[i] = __uint_as_float(c[(g + i / 2 * 8) * 8 + 2 * q + i % 2]);
  mma_bf16(d, fragment, columns[0], columns[1]);
  for (int i = 0; i < 4; i++) out[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = __float_as_uint(d[i]);
}
// in: four matrices of 8 x 8 u16 in pairs; out [32 lanes][4]
KERNEL(matrices_loaded) {
  DYNAMIC_SHARED(bytes);
  for (int i = 0; i < 4; i++) ((u32 *)bytes)[i * 32 + T] = in[i * 32 + T];
  __syncwarp();
  u32 r[4];
  ldmatrix_x4(r, bytes + T * 16);
  for (int i = 0; i < 4; i++) out[T * 4 + i] = r[i];
}
KERNEL(matrices_loaded_transposed) {
  DYNAMIC_SHARED(bytes);
  for (int i = 0; i < 4; i++) ((u32 *)bytes)[i * 32 + T] = in[i * 32 + T];
  __syncwarp();
  u32 r[4];
  ldmatrix_x4_transposed(r, bytes + T * 16);
  for (int i = 0; i < 4; i++) out[T * 4 + i] = r[i];
}
KERNEL(copied_or_zero) {
  DYNAMIC_SHARED(bytes);
  cp_async16(bytes + T * 16, in + T * 4, T % 2 == 0);
  cp_async_commit();
  cp_async_wait<0>();
  for (int i = 0; i < 4; i++) out[T * 4 + i] = ((u32 *)bytes)[T * 4 + i];
}
