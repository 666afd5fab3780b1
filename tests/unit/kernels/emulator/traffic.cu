// Kernels of one warp whose sectors and wavefronts are known. KERNEL(name) is the head of (const u32 *in, u32 *out), see probes.py.
#define T ((int)threadIdx.x)

KERNEL(neighbours) { out[T] = in[T]; }
KERNEL(one_for_all) { out[T] = in[0]; }
KERNEL(every_eighth) { out[T] = in[T * 8]; }
KERNEL(every_second) { out[T] = in[T * 2]; }
KERNEL(shifted_by_one) { out[T] = in[T + 1]; }
KERNEL(vectors) { out[T] = vload<uint4>(in + T * 4).x; }
KERNEL(halves_of_vectors) { out[T] = vload<uint2>(in + T * 4).x; }
KERNEL(lanes_leave_a_loop_one_by_one) {
  u32 sum = 0;
  for (int i = 0; i < 4; i++) {
    for (int j = T / 8; j < 4; j++) sum += in[j * 32 + T];
    __syncwarp();
  }
  out[T] = sum;
}
KERNEL(column_of_shared_memory) {
  __shared__ u32 space[32 * 32];
  space[T * 32] = in[T];
  __syncwarp();
  out[T] = space[T * 32];
}
KERNEL(padded_column_of_shared_memory) {
  __shared__ u32 space[32 * 33];
  space[T * 33] = in[T];
  __syncwarp();
  out[T] = space[T * 33];
}
KERNEL(vectors_of_shared_memory) {
  DYNAMIC_SHARED(bytes);
  vstore(bytes + T * 16, uint4{in[T], 0u, 0u, 0u});
  __syncwarp();
  out[T] = vload<uint4>(bytes + T * 16).x;
}
