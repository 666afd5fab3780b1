// What the parts of the runtime share: the threads of the block that runs, and the launch. One launch at a time, on one OS thread.
#pragma once
#include <vector>

#include "../headers/runtime_calls.h"

namespace cuemu {
struct AsyncCopy { void *to; const void *from; int bytes, bytes_read; bool landed; };

enum class State { READY, AT_BARRIER, IN_COLLECTIVE, EXITED };

// A CUDA thread is a fiber: a stack of its own, and what it waits for.
struct Thread {
  void *stack_pointer;
  char *stack;
  uint3 index;                                     // its threadIdx
  int number;                                      // the same as one number; warp = number / 32
  State state;
  const char *file; int line;                      // of the barrier or collective where it waits
  Vote vote; int condition, voted;                 // of a block barrier
  Resolve resolve; unsigned mask; Lane lane;       // of a collective
  uintptr_t caller;                                // place in the program behind the collective
  unsigned meetings;                               // barriers and collectives so far
  std::vector<AsyncCopy> open;                     // cp.async not yet committed
  std::vector<std::vector<AsyncCopy>> groups;      // committed and not yet waited for, oldest first
};
extern std::vector<Thread> threads;                // of the block that runs
extern Thread *current;                            // null: the scheduler runs
inline int warp_of(int thread) { return thread >> 5; }
inline int first_of_warp(int thread) { return thread & ~31; }

struct Launch {
  void (*call)(void **);
  void **values;
  unsigned seed;                                   // 0: in order, 1: in reverse, else shuffled; odd: cp.async lands at once
  bool check, profile, blocks_communicate;
  bool failed;
  char error[2048];
};
extern Launch launch;

// Counters that say in which order things happened. They never go back: a stamp of an earlier launch is never taken for a new one.
struct Clock {
  unsigned block;                                  // blocks begun
  unsigned barrier;                                // block barriers passed, and blocks begun
  unsigned warp_barrier;                           // __syncwarp passed, by any warp
};
extern Clock now;
extern std::vector<unsigned> last_warp_barrier;    // per thread: now.warp_barrier when it last passed one; 0: not in this block

// fibers.cpp
constexpr size_t STACK_BYTES = 128 << 10;
void make_threads(size_t count);                   // as many as a block has, with stacks
void begin_thread(Thread &thread);                 // at the kernel's first instruction
void resume(Thread &thread);                       // returns when it waits or has exited
void wait();                                       // the current thread gives way to the scheduler
inline bool on_own_stack(uintptr_t at) { return at >= (uintptr_t)current->stack && at < (uintptr_t)current->stack + STACK_BYTES; }

// scheduler.cpp
void run_blocks(dim3 grid, dim3 block);
}  // namespace cuemu

#define CUEMU_CALLER (uintptr_t)__builtin_return_address(0)
