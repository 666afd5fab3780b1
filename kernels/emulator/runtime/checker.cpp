// Check mode: bounds, alignment, writes to inputs, reads of what nobody wrote, and races in a block and across blocks.
#include "checker.h"

#include "memory.h"
#include "profiler.h"

namespace cuemu {
static const char *const VERBS[] = {"read", "write", "atomic", "cp.async write"};

[[noreturn]] static void fail_outside(uintptr_t at, int bytes, Access access) {
  const Array *near = nearest_array(at);
  if (!near) fail("illegal %s of %d bytes", VERBS[access], bytes);
  const bool behind = at >= near->end;
  fail("illegal %s of %d bytes, %ld bytes %s buffer '%s'", VERBS[access], bytes, (long)(behind ? at - near->end : near->begin - at),
       behind ? "past the end of" : "before", near->name);
}

static void check_place(const Array &array, uintptr_t at, int bytes, Access access) {
  const long offset = (long)(at - array.begin);
  if (at + bytes > array.end)
    fail("%s of %d bytes at offset %ld runs past the end of '%s'", VERBS[access], bytes, offset, array.name);
  const bool is_vector = bytes <= 16 && !(bytes & (bytes - 1));
  if (is_vector && at & (bytes - 1)) fail("misaligned %d-byte %s of '%s' at offset %ld", bytes, VERBS[access], array.name, offset);
  if (array.mode == Mode::IN && access != READ)
    fail("%s to read-only buffer '%s' at offset %ld", VERBS[access], array.name, offset);
}

static void check_written(Array &array, long offset, Access access) {
  uint8_t &written = array.written[offset];
  if ((access == READ || access == ATOMIC) && !written)
    fail("%s of uninitialised '%s' at offset %ld", VERBS[access], array.name, offset);
  if (access == WRITE) written = 1;
  if (access == ASYNC_WRITE) written = 0;
}

static bool is_here(const Stamp &stamp) { return stamp.block == now.block; }
static Stamp stamp(bool many_warps) { return {now.block, now.barrier, now.warp_barrier, current->number, many_warps}; }

// Whether an access is over for certain: there was a barrier since, it was this thread's own, or both passed a __syncwarp since.
static bool came_before(const Stamp &then, bool global) {
  if (!then.block) return true;
  if (!is_here(then)) return !global || launch.blocks_communicate;
  if (then.barrier != now.barrier) return true;
  if (then.many_warps) return false;
  if (then.thread == current->number) return true;
  return warp_of(then.thread) == warp_of(current->number) && last_warp_barrier[current->number] > then.warp_barrier &&
         last_warp_barrier[then.thread] > then.warp_barrier;
}
// Of one kind of access to a byte, the stamp after one more: several warps' are known to be over only after a barrier of the block.
static Stamp joined(const Stamp &then) {
  const bool same_phase = is_here(then) && then.barrier == now.barrier;
  return stamp(same_phase && (then.many_warps || warp_of(then.thread) != warp_of(current->number)));
}

[[noreturn]] static void fail_race(const Array &array, long offset, Access access, const char *other, const Stamp &then) {
  fail("race: %s of '%s' offset %ld after %s by thread %d of %s with no barrier between", VERBS[access], array.name, offset, other,
       then.thread, is_here(then) ? "this block" : "another block");
}

static void check_race(const Array &array, Shadow &byte, long offset, Access access, bool global) {
  const bool both_atomic = access == ATOMIC && byte.atomically;
  if (!both_atomic && !came_before(byte.write, global))
    fail_race(array, offset, access, byte.atomically ? "an atomic" : "a write", byte.write);
  if (access == READ) {
    byte.read = joined(byte.read);
    return;
  }
  if (!came_before(byte.read, global)) fail_race(array, offset, access, "a read", byte.read);
  byte.write = both_atomic ? joined(byte.write) : stamp(false);
  byte.atomically = access == ATOMIC;
  byte.read = {};
}

static void check_in_array(Array &array, uintptr_t at, int bytes, Access access, uintptr_t caller) {
  check_place(array, at, bytes, access);
  if (launch.profile && caller != NO_REQUEST) note_request(array, at, bytes, access, caller);
  if (array.mode == Mode::IN) return;
  const bool global = !is_shared(&array);
  const long first = (long)(at - array.begin);
  for (long offset = first; offset < first + bytes; offset++) {
    if (!array.written.empty()) check_written(array, offset, access);
    check_race(array, array.shadow[offset], offset, access, global);
  }
}

void check_access(const void *at, int bytes, Access access, uintptr_t caller) {
  if (!launch.check || !current || on_own_stack((uintptr_t)at)) return;
  Array *array = array_at((uintptr_t)at);
  if (!array) fail_outside((uintptr_t)at, bytes, access);
  check_in_array(*array, (uintptr_t)at, bytes, access, caller);
}

void check_compiled_access(const void *at, int bytes, Access access, uintptr_t caller) {
  if (!launch.check || !current || on_own_stack((uintptr_t)at)) return;
  Array *array = array_at((uintptr_t)at);
  if (array) check_in_array(*array, (uintptr_t)at, bytes, access, caller);
  else if (access != READ || !is_constant((uintptr_t)at)) fail_outside((uintptr_t)at, bytes, access);
}

void note_access(const void *at, int bytes, Access access) { check_access(at, bytes, access, CUEMU_CALLER); }
void load(void *to, const void *from, int bytes) {
  check_access(from, bytes, READ, CUEMU_CALLER);
  memcpy(to, from, bytes);
}
void store(void *to, const void *from, int bytes) {
  check_access(to, bytes, WRITE, CUEMU_CALLER);
  memcpy(to, from, bytes);
}
}  // namespace cuemu
