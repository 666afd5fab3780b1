// Runs the blocks of a launch one after another, and the threads of a block in turn until all have exited or nobody can go on.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "async_copy.h"
#include "memory.h"
#include "profiler.h"
#include "state.h"

namespace cuemu {
Launch launch;
Clock now;
std::vector<unsigned> last_warp_barrier;

void fail(const char *format, ...) {
  int n = 0;
  if (current)
    n = snprintf(launch.error, sizeof launch.error, "block (%u,%u,%u) thread (%u,%u,%u): ", blockIdx.x, blockIdx.y, blockIdx.z,
                 current->index.x, current->index.y, current->index.z);
  va_list values;
  va_start(values, format);
  vsnprintf(launch.error + n, sizeof launch.error - n, format, values);
  va_end(values);
  launch.failed = true;
  if (!current) abort();
  wait();  // for ever: a failed launch resumes nobody
  __builtin_unreachable();
}

static bool wait_at_the_same(const Thread &a, const Thread &b) {
  return a.state == b.state && a.line == b.line && !strcmp(a.file, b.file);
}

static void report_deadlock(size_t exited, const Thread &one, const Thread *other) {
  static const char *words[] = {"running", "waiting at a barrier", "waiting in a warp collective", "exited"};
  int n = snprintf(launch.error, sizeof launch.error, "block (%u,%u,%u) deadlock: %zu of %zu threads exited; thread %d %s at %s:%d",
                   blockIdx.x, blockIdx.y, blockIdx.z, exited, threads.size(), one.number, words[(int)one.state],
                   one.file, one.line);
  if (other)
    snprintf(launch.error + n, sizeof launch.error - n, "; thread %d %s at %s:%d", other->number, words[(int)other->state],
             other->file, other->line);
  launch.failed = true;
}

// All threads wait at one block barrier: they vote and go on.
static void release_barrier() {
  bool any = false, all = true;
  int count = 0;
  for (Thread &t : threads) {
    any |= t.condition != 0;
    all &= t.condition != 0;
    count += t.condition != 0;
  }
  for (Thread &t : threads) {
    t.voted = t.vote == ANY ? any : t.vote == ALL ? all : count;
    t.state = State::READY;
    t.meetings++;
  }
  if (launch.profile) count_requests();
  now.barrier++;
}

// Nobody is ready. Whether the block goes on: not if it is done, and not if its threads wait for what never comes.
static bool go_on() {
  const size_t exited = std::count_if(threads.begin(), threads.end(), [](auto &t) { return t.state == State::EXITED; });
  if (exited == threads.size()) return false;
  const Thread *one = nullptr, *other = nullptr;
  for (Thread &t : threads) {
    if (t.state == State::EXITED) continue;
    if (!one) one = &t;
    else if (!other && !wait_at_the_same(*one, t)) other = &t;
  }
  if (exited || other || one->state != State::AT_BARRIER) {
    report_deadlock(exited, *one, other);
    return false;
  }
  release_barrier();
  return true;
}

static void begin_block(unsigned number, dim3 grid, dim3 block) {
  blockIdx = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
  now.block++;
  now.barrier++;
  poison_shared();
  last_warp_barrier.assign(threads.size(), 0);
  for (size_t i = 0; i < threads.size(); i++) {
    Thread &t = threads[i];
    t.number = (int)i;
    t.index = {(unsigned)i % block.x, (unsigned)i / block.x % block.y, (unsigned)i / block.x / block.y};
    t.meetings = 0;
    forget_copies(t);
    begin_thread(t);
  }
}

static std::vector<unsigned> in_order(size_t count) {
  std::vector<unsigned> order(count);
  for (size_t i = 0; i < count; i++) order[i] = (unsigned)(launch.seed == 1 ? count - 1 - i : i);
  return order;
}

void run_blocks(dim3 grid, dim3 block) {
  std::mt19937 random(launch.seed);
  std::vector<unsigned> blocks = in_order((size_t)grid.x * grid.y * grid.z), order = in_order(threads.size());
  if (launch.seed > 1) std::shuffle(blocks.begin(), blocks.end(), random);
  for (unsigned number : blocks) {
    begin_block(number, grid, block);
    for (bool ran = true; ran || go_on();) {
      ran = false;
      if (launch.seed > 1) std::shuffle(order.begin(), order.end(), random);
      for (unsigned i : order) {
        if (threads[i].state != State::READY) continue;
        ran = true;
        resume(threads[i]);
        if (launch.failed) return;
      }
    }
    if (launch.failed) return;
    if (launch.profile) count_requests();
  }
}
}  // namespace cuemu
