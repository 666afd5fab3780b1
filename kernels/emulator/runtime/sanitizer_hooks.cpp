// The functions that GCC calls at every access to memory under -fsanitize=thread. Its own library is not linked; ours check.
#include "checker.h"

using cuemu::check_compiled_access;
#define HOOK(name, access, bytes) \
  void __tsan_##name##bytes(void *at) { check_compiled_access(at, bytes, cuemu::access, CUEMU_CALLER); }
#define HOOKS(bytes)                                                          \
  HOOK(read, READ, bytes) HOOK(write, WRITE, bytes)                           \
  HOOK(unaligned_read, READ, bytes) HOOK(unaligned_write, WRITE, bytes)       \
  HOOK(volatile_read, READ, bytes) HOOK(volatile_write, WRITE, bytes)

extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void *at, size_t bytes) { check_compiled_access(at, (int)bytes, cuemu::READ, CUEMU_CALLER); }
void __tsan_write_range(void *at, size_t bytes) { check_compiled_access(at, (int)bytes, cuemu::WRITE, CUEMU_CALLER); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
}
