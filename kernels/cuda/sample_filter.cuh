// min_p, top_k and top_p as one limit in the order (logit descending, id ascending): a token stays iff its place is at most the limit.
// Nothing is sorted. A histogram over the leading digits of the place says in which bin a count or a mass is reached; what is in that
// bin is few and is ranked, or is many and is divided by the next digits. Masses are integers, so no order of additions shows.
#pragma once
#include "sample_row.cuh"
#define DIGIT_BITS 9
#define BINS (1 << DIGIT_BITS)
#define BINS_PER_NAT 16.f
#define RANKED 512                                            // most tokens of a bin that are ranked
#define UNIT 0x1p44f                                          // mass of the likeliest token; 2^19 of them fit in 64 bits

struct Scale { float top, inverse; };                         // greatest logit, 1 / temperature

struct Select {                                               // shared memory
  u32 count[BINS], low[BINS], high[BINS];
  u64 place[RANKED], amount[RANKED];
  u64 target, before, last;
  u32 bin, members, num_ranked;
};

// Ascends as logits descend; 0 and -0 are one.
DEV u32 descending(float l) {
  const u32 bits = __float_as_uint(l + 0.f);
  return bits >> 31 ? bits : bits ^ 0x7fffffffu;
}
DEV float logit_of(u32 d) { return __uint_as_float(d >> 31 ? d : d ^ 0x7fffffffu); }

// 9 bits of distance below the top, 32 of the logit, 23 of the id. The first follow from the second: they only spread the first
// histogram, where leading bits of floats would have nearly all tokens in a few bins.
DEV u64 place_in_order(Scale s, float l, u32 id) {
  const u32 distance = (u32)fminf((s.top - l) * s.inverse * BINS_PER_NAT, BINS - 1.f);
  return (u64)distance << 55 | (u64)descending(l) << 23 | id;
}
// What a token adds towards the target; 0 for one that is not there.
template <bool MASS> DEV u64 amount_of(Scale s, float l) {
  if (l == -INFINITY_F) return 0;
  return MASS ? (u64)(expf((l - s.top) * s.inverse) * UNIT) : 1;
}

// visit(place, amount) of every token up to `limit` whose place without its last `shift` bits (1 to 64) is `prefix`.
template <bool MASS, class Visit> DEV void each_member(Row &row, Scale s, u64 limit, u64 prefix, int shift, Visit visit) {
  each_logit(row, [&](Group l, u32 first) {
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
      const u64 place = place_in_order(s, l[i], first + i);
      if (place > limit || place >> 1 >> (shift - 1) != prefix) continue;
      const u64 amount = amount_of<MASS>(s, l[i]);
      if (amount) visit(place, amount);
    }
  });
}

template <bool MASS> DEV u64 bin_sum(const Select &sel, int bin) {
  return MASS ? (u64)sel.high[bin] << 32 | sel.low[bin] : sel.count[bin];
}
// The bin in which the target is reached, by the first warp. A part of the mass becomes a target when the whole is known.
template <bool MASS> DEV void find_bin(Select &sel, u64 before, double wanted, bool first_digit) {
  const int own = threadIdx.x * (BINS / 32);
  u64 sum = 0;
  for (int i = 0; i < BINS / 32; i++)                         // lanes begin where no two meet in a bank
    sum += bin_sum<MASS>(sel, own + (i + threadIdx.x / 2) % (BINS / 32));
  u64 upto = sum;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const u64 lower = __shfl_up_sync(FULL_WARP, upto, step);
    if ((int)threadIdx.x >= step) upto += lower;
  }
  const u64 total = __shfl_sync(FULL_WARP, upto, 31);
  u64 target;
  if (first_digit) {
    target = (u64)ceil(MASS ? wanted * (double)total : wanted);
    if (MASS) target = target < 1 ? 1 : target < total ? target : total;
    if (threadIdx.x == 0) sel.target = target;
  } else {
    target = sel.target;
  }
  if (threadIdx.x == 0 && before + total < target) sel.members = 0;
  u64 reached = before + upto - sum;
  if (reached >= target || before + upto < target) return;
  int bin = own;
  while (reached + bin_sum<MASS>(sel, bin) < target) reached += bin_sum<MASS>(sel, bin++);
  sel.bin = bin, sel.before = reached, sel.members = sel.count[bin];
}

// The histogram of the next digit of members, each bin with their number and, if MASS, their mass in two words.
template <bool MASS> DEV void fill_bins(Row &row, Scale s, u64 limit, u64 prefix, int shift, Select &sel) {
  for (int bin = threadIdx.x; bin < BINS; bin += THREADS) sel.count[bin] = sel.low[bin] = sel.high[bin] = 0;
  __syncthreads();
  each_member<MASS>(row, s, limit, prefix, shift, [&](u64 place, u64 amount) {
    const int bin = (int)(place >> (shift - DIGIT_BITS)) & (BINS - 1);
    atomicAdd(&sel.count[bin], 1u);
    if (!MASS) return;
    const u32 low = (u32)amount, carry = atomicAdd(&sel.low[bin], low) > ~low, high = (u32)(amount >> 32) + carry;
    if (high) atomicAdd(&sel.high[bin], high);
  });
  __syncthreads();
}

// The place of the token at which, in order and up to `limit`, `wanted` tokens are reached, or the part `wanted` of their mass;
// `limit` if there are fewer tokens.
template <bool MASS> DEV u64 reach(Row &row, Scale s, double wanted, u64 limit, Select &sel) {
  u64 prefix = 0, before = 0;
  int shift = 64;
  do {                                                        // ends: ids differ, and at most one bit of them is left in the end
    fill_bins<MASS>(row, s, limit, prefix, shift, sel);
    if (threadIdx.x == 0) sel.num_ranked = 0;
    if (threadIdx.x < 32) find_bin<MASS>(sel, before, wanted, shift == 64);
    __syncthreads();
    if (sel.members == 0) return limit;
    prefix = prefix << DIGIT_BITS | sel.bin, before = sel.before, shift -= DIGIT_BITS;
  } while (sel.members > RANKED);
  each_member<MASS>(row, s, limit, prefix, shift, [&](u64 place, u64 amount) {
    const u32 at = atomicAdd(&sel.num_ranked, 1u);
    sel.place[at] = place, sel.amount[at] = amount;
  });
  __syncthreads();
  const int num = (int)sel.members;
  for (int own = threadIdx.x; own < num; own += THREADS) {
    u64 reached = before;
    for (int other = 0; other < num; other++) reached += sel.place[other] < sel.place[own] ? sel.amount[other] : 0;
    if (reached < sel.target && reached + sel.amount[own] >= sel.target) sel.last = sel.place[own];
  }
  __syncthreads();
  return sel.last;
}

// The last place that the row's filters keep: min_p against the likeliest, then top_k, then top_p of the mass that is left.
DEV u64 filter_limit(Row &row, Scale s, const Record &r, Select &sel) {
  u64 limit = ~0ull;
  if (r.min_p > 0.f) {
    const double least = (double)s.top + (double)r.temperature * log(r.min_p < 1.f ? (double)r.min_p : 1.0);
    float l = (float)least;
    if ((double)l < least) l = nextafterf(l, INFINITY_F);
    limit = place_in_order(s, l, (1u << 23) - 1);
  }
  if (r.top_k > 0 && r.top_k < VALID) limit = reach<false>(row, s, r.top_k, limit, sel);
  if (r.top_p < 1.f) limit = reach<true>(row, s, r.top_p, limit, sel);
  return limit;
}
