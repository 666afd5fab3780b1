// Fibers: CUDA threads that run one at a time and change over where they wait, with the registers that a call keeps on their stack.
#include <sys/mman.h>

#include "state.h"

extern "C" void cuemu_switch(void **save, void *to);  // the stack pointer goes to *save, and is `to` from there on
asm(R"(.text
.globl cuemu_switch
.type cuemu_switch,@function
cuemu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi); movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size cuemu_switch,.-cuemu_switch
)");

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuemu {
std::vector<Thread> threads;
Thread *current;
static void *scheduler_stack;

void wait() { cuemu_switch(&current->stack_pointer, scheduler_stack); }

void resume(Thread &thread) {
  current = &thread;
  threadIdx = thread.index;
  cuemu_switch(&scheduler_stack, thread.stack_pointer);
  current = nullptr;
}

static void run_kernel() {
  launch.call(launch.values);
  current->state = State::EXITED;
  wait();
  __builtin_trap();  // nobody resumes it
}

void begin_thread(Thread &thread) {
  void **top = (void **)(thread.stack + STACK_BYTES - 64);
  *--top = nullptr;                                // run_kernel returns to nowhere
  *--top = (void *)run_kernel;
  for (int registers = 0; registers < 6; registers++) *--top = nullptr;
  thread.stack_pointer = top;
  thread.state = State::READY;
}

void make_threads(size_t count) {
  while (threads.size() > count) {
    munmap(threads.back().stack, STACK_BYTES);
    threads.pop_back();
  }
  while (threads.size() < count) {
    void *stack = mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    threads.emplace_back();
    threads.back().stack = (char *)stack;
  }
}
}  // namespace cuemu
