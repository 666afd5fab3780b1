// What kernels/emulator/device.py calls: name the arrays, launch, ask what was left unwritten and what memory was asked for.
#include <algorithm>
#include <cstdio>

#include "memory.h"
#include "profiler.h"
#include "state.h"

using namespace cuemu;

static const char *refusal(const unsigned *grid, size_t threads_of_block, size_t dynamic_bytes) {
  if (!threads_of_block || threads_of_block > 1024) return "block size must be 1..1024";
  if (!grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535) return "bad grid";
  if (static_shared_bytes() > MOST_STATIC_SHARED_BYTES || dynamic_bytes + static_shared_bytes() > MOST_SHARED_BYTES)
    return "too much shared memory";
  return nullptr;
}

extern "C" {
// mode as `Mode` has it. An output is filled with 0xFF, NaN in any type.
void cuemu_name_array(void *begin, size_t bytes, int mode, const char *name) {
  Array array{(uintptr_t)begin, (uintptr_t)begin + bytes, (Mode)mode, {0}, {}, {}};
  strncpy(array.name, name, sizeof array.name - 1);
  if (array.mode == Mode::OUT) {
    array.written.assign(bytes, 0);
    memset(begin, 0xFF, bytes);
  }
  if (array.mode != Mode::IN) array.shadow.resize(bytes);
  arrays.push_back(std::move(array));
}
void cuemu_forget_arrays() { arrays.clear(); }

// Bytes of the output that was named as number `index` which no thread wrote. Check mode only.
long cuemu_unwritten(int index) { return std::count(arrays[index].written.begin(), arrays[index].written.end(), 0); }

int cuemu_take_sites(Site *out, int most) { return (int)take_sites(out, most); }

// 0, or 1 and a message.
int cuemu_launch(void (*call)(void **), void **values, const unsigned *grid, const unsigned *block, unsigned dynamic_bytes,
                 unsigned seed, int check, int profile, int blocks_communicate, char *message, int message_bytes) {
  const size_t threads_of_block = (size_t)block[0] * block[1] * block[2];
  if (const char *why = refusal(grid, threads_of_block, dynamic_bytes)) {
    snprintf(message, message_bytes, "%s", why);
    return 1;
  }
  launch = {call, values, seed, check != 0, profile != 0, blocks_communicate != 0, false, {0}};
  forget_requests();
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  make_shared(dynamic_bytes);
  make_threads(threads_of_block);
  run_blocks(gridDim, blockDim);
  if (launch.failed) snprintf(message, message_bytes, "%s", launch.error);
  return launch.failed;
}
}
