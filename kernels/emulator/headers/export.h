// Makes a kernel callable from outside: arguments as addresses of values, and their sizes as C++ sees them.
#pragma once
#include <type_traits>
#include <utility>

#include "types.h"

namespace cuemu {
template <class... A, size_t... I>
__attribute__((no_sanitize("thread"), noinline)) void call(void (*kernel)(A...), void **values, std::index_sequence<I...>) {
  kernel(*(std::remove_reference_t<A> *)values[I]...);
}
template <class... A> void call(void (*kernel)(A...), void **values) { call(kernel, values, std::index_sequence_for<A...>{}); }

// Bytes of each parameter, negative for floating ones. Returns how many there are.
template <class... A> int sizes(void (*)(A...), int *out) {
  int n = 0;
  ((out[n++] = (int)sizeof(A) * (std::is_floating_point<A>::value ? -1 : 1)), ...);
  return n;
}
}  // namespace cuemu

#define CUEMU_EXPORT(kernel)                                                                  \
  extern "C" void cuemu_call_##kernel(void **values) { cuemu::call(&kernel, values); }        \
  extern "C" int cuemu_signature_##kernel(int *out) { return cuemu::sizes(&kernel, out); }
