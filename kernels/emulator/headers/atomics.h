// Atomics: fibers do not interrupt each other. Not instrumented: check mode is told of one access, not of a read and a write.
#pragma once
#include "runtime_calls.h"

#define CUEMU_ATOMIC(name, now)                                                                         \
  template <class T, class U> __attribute__((no_sanitize("thread"), noinline)) T name(T *at, U given) { \
    cuemu::note_access(at, sizeof(T), cuemu::ATOMIC);                                                   \
    const T v = (T)given, old = *(volatile T *)at;                                                      \
    *(volatile T *)at = (now);                                                                          \
    return old;                                                                                         \
  }
CUEMU_ATOMIC(atomicAdd, old + v)
CUEMU_ATOMIC(atomicMax, v > old ? v : old)
CUEMU_ATOMIC(atomicOr, old | v)
CUEMU_ATOMIC(atomicExch, v)
#undef CUEMU_ATOMIC

template <class T> __attribute__((no_sanitize("thread"), noinline)) T atomicCAS(T *at, T expected, T v) {
  cuemu::note_access(at, sizeof(T), cuemu::ATOMIC);
  const T old = *(volatile T *)at;
  if (old == expected) *(volatile T *)at = v;
  return old;
}
