// The memory that a kernel may use: arrays that were named to it, and a block's shared memory; beside each a shadow of its bytes.
#pragma once
#include <vector>

#include "state.h"

namespace cuemu {
enum class Mode { IN, INOUT, OUT };

// An access that others must not meet without a barrier in between. block 0: there was none.
struct Stamp { unsigned block, barrier, warp_barrier; int thread; bool many_warps; };

// What is known of one byte.
struct Shadow { Stamp write, read; bool atomically; };  // atomically: how it was last written

struct Array {
  uintptr_t begin, end;
  Mode mode;
  char name[32];
  std::vector<uint8_t> written;                    // of outputs and shared memory: a byte is 1 once it was written; else empty
  std::vector<Shadow> shadow;                      // empty for what is only read
};
extern std::vector<Array> arrays;                  // in the order in which they were named
extern Array static_shared, dynamic_shared_array;

inline bool is_shared(const Array *array) { return array == &static_shared || array == &dynamic_shared_array; }
Array *array_at(uintptr_t at);                     // null: no array has it
const Array *nearest_array(uintptr_t at);          // null: there are none
bool is_constant(uintptr_t at);                    // the compiled kernel's constants, threadIdx and its like
uintptr_t program_begin();                         // where the compiled kernel lies in memory

constexpr size_t MOST_SHARED_BYTES = 232448, MOST_STATIC_SHARED_BYTES = 49152;
size_t static_shared_bytes();
void make_shared(size_t dynamic_bytes);            // for a launch
void poison_shared();                              // for a block: nothing is written yet, all bytes are 0xFF, NaN in any type
}  // namespace cuemu
