// One row that samples: its parameters, and its logits as they are after penalties, bias and bans. The row itself is only read: tokens
// whose logit changes are listed as edits, ascending by id, and marked in a bit map that every pass over the row looks at.
// -D: LOGITS_F32, PITCH (ids of a row in memory), VALID (those that count, <= PITCH, < 2^23), GROUP (8, or 1 where rows are not
// multiples of 16 bytes), THREADS
#pragma once
#include "common.cuh"
#if LOGITS_F32
typedef float logit;
#else
typedef bf16 logit;
#endif
#define MAP_WORDS ((VALID + 31) / 32)
#define RANK_WORDS ((MAP_WORDS + 7) / 8)
#define SEEN 0x40000000                                       // in a count: the token is in the prompt

// As kernels/cuda/sample.py RECORD. The last five are places in `inputs`: [prompt, output) and [output, bias) hold history, then come
// ids and values of the bias, as many of each, up to `ends`, and [ends, stop) are ids that may not be chosen. `row` -1: padding.
struct Record {
  u64 seed;
  int row, output_pos;
  float temperature;
  int top_k;
  float top_p, min_p, repetition, presence, frequency;
  int prompt, output, bias, ends, stop;
};
static_assert(sizeof(Record) == 64, "Record is laid out as kernels/cuda/sample.py has it");

struct Edits {                                                // [num]; ids ascend
  int *ids, *counts;
  float *values;
  const u32 *map;                                             // shared: bit of a token that is edited
  int num;
};
struct Row {
  const logit *raw;
  Edits edits;
  bool bad;                                                   // this thread saw a raw logit that is not finite, or an edit that is NaN or inf
};
typedef const float (&Group)[GROUP];

DEV void load_group(float (&out)[8], const logit *p) { load8(out, p); }
DEV void load_group(float (&out)[1], const logit *p) { out[0] = to_float(*p); }

// visit(l, first): l[i] is the logit of id first + i, -inf where there is none. All threads of the block come along, every time.
template <class Visit> DEV void each_logit(Row &row, Visit visit) {
  for (int base = 0; base < VALID; base += THREADS * GROUP) {
    const int first = base + threadIdx.x * GROUP;
    float l[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++) l[i] = -INFINITY_F;
    if (first < VALID) {
      load_group(l, row.raw + first);
      const u32 hidden = row.edits.num ? row.edits.map[first >> 5] >> (first & 31) : 0;
#pragma unroll
      for (int i = 0; i < GROUP; i++) {
        const bool valid = first + i < VALID;
        row.bad |= valid && !(fabsf(l[i]) < INFINITY_F);
        if (!valid || hidden >> i & 1) l[i] = -INFINITY_F;
      }
    }
    visit(l, (u32)first);
  }
  for (int base = 0; base < row.edits.num; base += THREADS) {
    const int at = base + threadIdx.x;
    const bool valid = at < row.edits.num;
    float l[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++) l[i] = -INFINITY_F;       // edited ids have no order that a group could use
    if (valid) l[0] = row.edits.values[at];
    row.bad |= !(l[0] < INFINITY_F);
    visit(l, valid ? (u32)row.edits.ids[at] : 0u);
  }
}

DEV void mark(u32 *map, int id) {
  if (id >= 0 && id < VALID) atomicOr(&map[id >> 5], 1u << (id & 31));
}
// The place of an edited token among the edits; -1 for an id outside the vocabulary.
DEV int place_of(const u32 *map, const u32 *rank, int id) {
  if (id < 0 || id >= VALID) return -1;
  int place = (int)rank[id >> 8] + __popc(map[id >> 5] & ((1u << (id & 31)) - 1));
  for (int word = id >> 8 << 3; word < id >> 5; word++) place += __popc(map[word]);
  return place;
}
// rank[i] = edited tokens before word 8 i of the map. By the first warp.
DEV void rank_words(const u32 *map, u32 *rank, int *num) {
  u32 before = 0;
  for (int base = 0; base < RANK_WORDS; base += 32) {
    const int own = base + threadIdx.x;
    u32 count = 0;
    for (int word = own * 8; word < own * 8 + 8 && word < MAP_WORDS; word++) count += __popc(map[word]);
    u32 upto = count;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const u32 lower = __shfl_up_sync(FULL_WARP, upto, step);
      if ((int)threadIdx.x >= step) upto += lower;
    }
    if (own < RANK_WORDS) rank[own] = before + upto - count;
    before += __shfl_sync(FULL_WARP, upto, 31);
  }
  if (threadIdx.x == 0) *num = (int)before;
}

// Lists the tokens whose logit changes. map [MAP_WORDS], rank [RANK_WORDS] and num are shared memory.
DEV int list_edits(const Record &r, const int *inputs, const logit *raw, const Edits &e, u32 *map, u32 *rank, int *num) {
  const int middle = r.bias + (r.ends - r.bias) / 2;          // ids of the bias lie before, values behind
  for (int word = threadIdx.x; word < MAP_WORDS; word += THREADS) map[word] = 0;
  __syncthreads();
  for (int at = r.prompt + threadIdx.x; at < middle; at += THREADS) mark(map, inputs[at]);
  for (int at = r.ends + threadIdx.x; at < r.stop; at += THREADS) mark(map, inputs[at]);
  __syncthreads();
  if (threadIdx.x < 32) rank_words(map, rank, num);
  __syncthreads();
  for (int word = threadIdx.x; word < MAP_WORDS; word += THREADS) {
    int place = map[word] ? place_of(map, rank, word * 32) : 0;
    for (u32 rest = map[word]; rest; rest &= rest - 1, place++) {
      const int id = word * 32 + __ffs(rest) - 1;
      e.ids[place] = id, e.counts[place] = 0, e.values[place] = to_float(raw[id]);
    }
  }
  __syncthreads();
  return *num;
}

// Penalties, each distinct token once: repetition over prompt and output, then frequency and presence over output. Then bias, then
// bans. Rounds where the CPU twin rounds.
DEV void change_edits(const Record &r, const int *inputs, const Edits &e, const u32 *map, const u32 *rank) {
  for (int at = r.prompt + threadIdx.x; at < r.bias; at += THREADS) {
    const int place = place_of(map, rank, inputs[at]);
    if (place < 0) continue;
    if (at < r.output) atomicOr(&e.counts[place], SEEN);
    else atomicAdd(&e.counts[place], 1);
  }
  __syncthreads();
  for (int place = threadIdx.x; place < e.num; place += THREADS) {
    const int seen = e.counts[place], count = seen & (SEEN - 1);
    float value = e.values[place];
    if (seen) value = value > 0.f ? value / r.repetition : __fmul_rn(value, r.repetition);
    if (count) value = value - __fmul_rn(r.frequency, (float)count) - r.presence;
    e.values[place] = value;
  }
  __syncthreads();
  const int middle = r.bias + (r.ends - r.bias) / 2;
  for (int at = r.bias + threadIdx.x; at < middle; at += THREADS) {
    const int place = place_of(map, rank, inputs[at]);
    if (place >= 0) e.values[place] += __int_as_float(inputs[at + middle - r.bias]);
  }
  __syncthreads();
  for (int at = r.ends + threadIdx.x; at < r.stop; at += THREADS) {
    const int place = place_of(map, rank, inputs[at]);
    if (place >= 0) e.values[place] = -INFINITY_F;
  }
  __syncthreads();
}
