// Copies whole blocks inside a cache, 16 bytes a thread and step. Grid (copies, 2): y chooses keys or values.
// -D: THREADS
#include "common.cuh"

// k, v [blocks][block_bytes / 16] of 16 bytes; source, destination [copies]. No destination may be a source or named twice; a copy
// that leaves the cache is not made.
extern "C" __global__ void __launch_bounds__(THREADS)
copy_blocks(u8 *k, u8 *v, const int *source, const int *destination, int block_bytes, int num_blocks) {
  const int source_block = source[blockIdx.x], destination_block = destination[blockIdx.x];
  if (min(source_block, destination_block) < 0 || max(source_block, destination_block) >= num_blocks) return;
  u8 *cache = blockIdx.y ? v : k;
  const u8 *from = cache + (u64)source_block * block_bytes;
  u8 *to = cache + (u64)destination_block * block_bytes;
  for (int at = threadIdx.x * 16; at < block_bytes; at += THREADS * 16) vstore(to + at, vload<uint4>(from + at));
}
