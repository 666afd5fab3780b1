// What compiled kernels call in the runtime. `file` and `line` are where the kernel does it, for messages.
#pragma once
#include "types.h"

namespace cuemu {
enum Access { READ, WRITE, ATOMIC, ASYNC_WRITE };  // ASYNC_WRITE: what lies there is undefined until the copy is waited for

// One access of `bytes`, never split, which check mode looks at.
void load(void *to, const void *from, int bytes);
void store(void *to, const void *from, int bytes);
// Tells check mode of an access that it would not see.
void note_access(const void *at, int bytes, Access access);

void *dynamic_shared();

enum Vote { NONE, ANY, ALL, COUNT };  // what a block barrier gives back of its threads' `condition`
int block_barrier(Vote vote, int condition, const char *file, int line);

// A warp's threads of `mask` meet. The last one to come runs `resolve` for all of them.
struct Lane { const void *in; void *out; bool in_mask; };
typedef void (*Resolve)(Lane *lanes, unsigned mask);  // lanes [32]
void collective(Resolve resolve, unsigned mask, const void *in, void *out, const char *file, int line);
void warp_barrier(unsigned mask, const char *file, int line);

struct Shuffle { uint64_t value; int source; };           // in of resolve_shuffle; out is uint64_t
void resolve_shuffle(Lane *, unsigned);
void resolve_ballot(Lane *, unsigned);                    // unsigned in, unsigned out, as of the next three
void resolve_sum(Lane *, unsigned);
void resolve_maximum(Lane *, unsigned);
void resolve_match(Lane *, unsigned);
struct Fragments { float c[4]; unsigned a[4], b[2]; };    // in of resolve_mma_bf16; out is float [4]
void resolve_mma_bf16(Lane *, unsigned);                  // mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
void resolve_ldmatrix_x4(Lane *, unsigned);               // in: an address of shared memory; out: unsigned [4]
void resolve_ldmatrix_x4_transposed(Lane *, unsigned);

// cp.async of `bytes`, of which those behind `bytes_read` become zero.
void async_copy(void *to, const void *from, int bytes, int bytes_read);
void async_commit();
void async_wait(int groups_left);

[[noreturn]] void fail(const char *format, ...);
}  // namespace cuemu
