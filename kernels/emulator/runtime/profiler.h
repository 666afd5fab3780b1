// Profile mode: what warps ask memory for.
#pragma once
#include "memory.h"

namespace cuemu {
// As kernels/emulator/traffic.py has it. cost: sectors of 32 bytes, or wavefronts of shared memory; ideal: how few would do.
struct Site { char array[32]; uint64_t offset; uint32_t verb, shared; uint64_t requests, cost, ideal; };

void note_request(const Array &array, uintptr_t at, int bytes, Access access, uintptr_t caller);
void count_requests();                             // those noted so far; where all threads of the block have met, or exited
void forget_requests();
size_t take_sites(Site *out, size_t most);         // the counts, which are forgotten; 0 = there are no more
}  // namespace cuemu
