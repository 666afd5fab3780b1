// Check mode: what an access may not do. Other modes return at once.
#pragma once
#include "state.h"

namespace cuemu {
constexpr uintptr_t NO_REQUEST = 0;                // instead of a caller: the profiler does not count the access

// Fails if the current thread may not do this. `caller` is the place in the program behind the access.
void check_access(const void *at, int bytes, Access access, uintptr_t caller);
// The same for what the compiler saw, which may read constants besides.
void check_compiled_access(const void *at, int bytes, Access access, uintptr_t caller);
}  // namespace cuemu
