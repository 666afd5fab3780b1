// One kernel for each thing that check mode claims to notice: it does it when `wrong`, and the same without the mistake when not.
// 64 threads; in, out f32 [64]. KERNEL(name) is the head of a kernel (const float *in, float *out, int wrong), see probes.py.
#define T ((int)threadIdx.x)
#define LANE (T & 31)

KERNEL(reads_past_the_end) { out[T] = in[T + (wrong && T == 63)]; }
KERNEL(writes_before_the_beginning) { out[T - (wrong && T == 0)] = in[T]; }
KERNEL(vector_runs_past_the_end) { out[T] = vload<float4>(in + (wrong ? 62 : 60)).x; }
KERNEL(vector_is_misaligned) { out[T] = vload<float2>(in + wrong).x; }
KERNEL(writes_an_input) {
  out[T] = in[T];
  if (wrong) ((float *)in)[T] = 0.f;
}
KERNEL(reads_an_output_before_it_is_written) {
  if (!wrong) out[T] = in[T];
  out[T] += 1.f;
}
KERNEL(leaves_an_element_unwritten) {
  if (!wrong || T) out[T] = in[T];
}
KERNEL(reads_shared_memory_that_nobody_wrote) {
  __shared__ float space[64];
  if (!wrong || T) space[T] = in[T];
  __syncthreads();
  out[T] = space[63 - T];
}
KERNEL(reads_past_static_shared_memory) {
  __shared__ float space[64];
  space[T] = in[T];
  __syncthreads();
  out[T] = space[T + (wrong && T == 63) * 4096];
}
KERNEL(writes_past_static_shared_memory) {
  __shared__ float space[64];
  space[T + (wrong && T == 63) * 4096] = in[T];
  out[T] = space[T];
}
KERNEL(writes_past_dynamic_shared_memory) {
  DYNAMIC_SHARED(bytes);
  ((float *)bytes)[T + (wrong && T == 63)] = in[T];
  out[T] = 0.f;
}

// ---- races ----
KERNEL(no_barrier_between_warps) {
  __shared__ float space[64];
  space[T] = 0.f;
  __syncthreads();
  space[T] = in[T];
  if (!wrong) __syncthreads();
  out[T] = space[T ^ 32];
}
KERNEL(no_barrier_within_a_warp) {
  __shared__ float space[64];
  space[T] = 0.f;
  __syncwarp();
  space[T] = in[T];
  if (!wrong) __syncwarp();
  out[T] = space[T ^ 1];
}
KERNEL(a_shuffle_is_no_barrier) {
  __shared__ float space[64];
  space[T] = 0.f;
  __syncwarp();
  space[T] = __shfl_xor_sync(FULL_WARP, in[T], 1);
  if (!wrong) __syncwarp();
  out[T] = space[T ^ 1];
}
KERNEL(a_warp_barrier_does_not_divide_warps) {
  __shared__ float space[64];
  space[T] = 0.f;
  __syncthreads();
  space[T] = in[T];
  if (wrong) __syncwarp(); else __syncthreads();
  out[T] = space[T ^ 32];
}
KERNEL(overwrites_what_another_warp_reads) {
  __shared__ float space[64];
  space[T] = in[T];
  __syncthreads();
  const float v = space[T ^ 32];
  if (!wrong) __syncthreads();
  space[T] = out[T] = v;
}
KERNEL(counts_without_an_atomic) {
  __shared__ int count;
  if (T == 0) count = 0;
  __syncthreads();
  if (wrong) count++; else atomicAdd(&count, 1);
  __syncthreads();
  out[T] = (float)count;
}
KERNEL(reads_a_counter_too_early) {
  __shared__ int count;
  if (T == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  if (!wrong) __syncthreads();
  out[T] = (float)count;
}
KERNEL(two_blocks_write_one_element) {
  const int at = T + (wrong ? 0 : 64 * (int)blockIdx.x);
  if (at < 64) out[at] = in[at];
}

// ---- cp.async ----
KERNEL(reads_a_copy_before_it_has_come) {
  DYNAMIC_SHARED(bytes);
  if (T < 16) cp_async16(bytes + T * 16, in + T * 4, true);
  cp_async_commit();
  if (!wrong) cp_async_wait<0>();
  __syncthreads();
  out[T] = ((float *)bytes)[T];
}
KERNEL(waits_for_one_group_too_few) {
  DYNAMIC_SHARED(bytes);
  for (int i = 0; i < 2; i++) {
    if (T < 8) cp_async16(bytes + (i * 8 + T) * 16, in + (i * 8 + T) * 4, true);
    cp_async_commit();
  }
  if (wrong) cp_async_wait<1>(); else cp_async_wait<0>();
  __syncthreads();
  out[T] = ((float *)bytes)[T];
}
KERNEL(copies_from_between_vectors) {
  DYNAMIC_SHARED(bytes);
  if (T < 8) cp_async16(bytes + T * 16, in + T * 4 + wrong, true);
  cp_async_wait<0>();
  out[T] = 0.f;
}

// ---- threads that do not meet ----
KERNEL(leaves_before_a_barrier) {
  out[T] = in[T];
  if (wrong && T == 5) return;
  __syncthreads();
}
KERNEL(waits_at_another_barrier) {
  out[T] = in[T];
  if (wrong && T >= 32)
    __syncthreads();
  else
    __syncthreads();
}
KERNEL(half_a_warp_waits_at_a_barrier) {
  float v = in[T];
  if (wrong && LANE < 16) __syncthreads();
  v = __shfl_xor_sync(FULL_WARP, v, 1);
  out[T] = v;
}
KERNEL(lanes_shuffle_at_different_places) {
  float v = in[T];
  if (wrong && LANE < 16)
    v = __shfl_xor_sync(FULL_WARP, v, 1);
  else
    v = __shfl_xor_sync(FULL_WARP, v, 1);
  out[T] = v;
}
KERNEL(a_lane_has_left_the_warp) {
  out[T] = in[T];
  if (wrong && LANE == 7) return;
  out[T] = __shfl_xor_sync(FULL_WARP, in[T], 1);
}
KERNEL(is_not_in_its_own_mask) { out[T] = (float)__ballot_sync(wrong ? 0xfffffffeu : FULL_WARP, in[T] > 3.f); }
KERNEL(reads_a_lane_outside_of_the_mask) {
  out[T] = in[T];
  if (LANE < 16) out[T] = __shfl_sync(0xffffu, in[T], wrong ? 20 : 3);
}
KERNEL(a_row_of_ldmatrix_is_misaligned) {
  DYNAMIC_SHARED(bytes);
  ((float *)bytes)[T] = ((float *)bytes)[T + 64] = ((float *)bytes)[T + 128] = 0.f;
  __syncthreads();
  u32 r[4];
  ldmatrix_x4(r, bytes + LANE * 16 + (wrong && LANE == 9) * 8);
  out[T] = __uint_as_float(r[0]);
}
KERNEL(traps) {
  out[T] = in[T];
  if (wrong) __trap();
}
