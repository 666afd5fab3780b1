// cp.async: copies that land at any time between their issue and the wait.
#pragma once
#include "state.h"

namespace cuemu {
void forget_copies(Thread &thread);
}  // namespace cuemu
