// Chooses one token a row, one block a row: penalties, bias, bans, temperature, filters, Gumbel-max. What it means and in which order:
// kernels/README.md, "Sampling, in order". A greedy row and one with a temperature alone are read once, filters read three times more.
// The draw is the race argmin E_i / w_i with E_i = -log(1 - u_i) and w_i = exp(logit_i / temperature). Since E_i >= u_i, a logarithm is
// taken only where u_i would still win against the leader of the warp. Scores are float64, ties go to the lower id.
#include "sample_filter.cuh"
#include "sample_noise.cuh"
#define NONE 0xffffffffu
#define SLACK 1.0005f                                         // more than float32 loses of a race that is still open: e^-26 and up
#define GREEDY_BELOW 1e-5f
#define WARPS (THREADS / 32)

struct Shared {
  Select select;
  u64 greatest[WARPS];
  double score[WARPS];
  u32 id[WARPS];
  int num_edits;
};

// Greatest logit and its lowest id, as descending(logit) and id in one number; to every thread.
DEV u64 find_greatest(Row &row, u64 *space) {
  u64 best = ~0ull;
  each_logit(row, [&](Group l, u32 first) {
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
      const u64 own = (u64)descending(l[i]) << 32 | (first + i);
      best = own < best ? own : best;
    }
  });
#pragma unroll
  for (int step = 16; step; step >>= 1) {
    const u64 other = __shfl_xor_sync(FULL_WARP, best, step);
    best = other < best ? other : best;
  }
  if ((threadIdx.x & 31) == 0) space[threadIdx.x >> 5] = best;
  __syncthreads();
  for (int w = 0; w < WARPS; w++) best = space[w] < best ? space[w] : best;
  return best;
}

// The best of a warp so far, the same in all lanes; `bar` is its E.
struct Leader { double score; u32 id; float logit, bar; };
DEV bool beats(double score, u32 id, double other, u32 other_id) { return score > other || (score == other && id < other_id); }

// The warp's leader after its lanes' tokens of the bits `open` of l have run.
DEV Leader run(Leader leader, Group l, u32 first, u32 open, u64 key, double inverse) {
  Leader own = {-(double)INFINITY_F, NONE, 0.f, 0.f};
  while (open) {
    const u32 at = __ffs(open) - 1;
    open &= open - 1;
    float logit = l[0];
#pragma unroll
    for (u32 i = 1; i < GROUP; i++) logit = i == at ? l[i] : logit;
    const double e = -log1p(-(double)uniform(key, first + at)), score = logit * inverse - log(e);
    if (beats(score, first + at, own.score, own.id)) own = Leader{score, first + at, logit, (float)e};
  }
  double score = own.score;
  u32 id = own.id;
#pragma unroll
  for (int step = 16; step; step >>= 1) {
    const double other = __shfl_xor_sync(FULL_WARP, score, step);
    const u32 other_id = __shfl_xor_sync(FULL_WARP, id, step);
    if (beats(other, other_id, score, id)) score = other, id = other_id;
  }
  const int winner = __ffs(__ballot_sync(FULL_WARP, own.id == id)) - 1;
  const float logit = __shfl_sync(FULL_WARP, own.logit, winner), bar = __shfl_sync(FULL_WARP, own.bar, winner);
  return beats(score, id, leader.score, leader.id) ? Leader{score, id, logit, bar} : leader;
}

// The winner among tokens up to `limit`, NONE if no token has a logit above -inf; to thread 0.
template <bool FILTERED> DEV u32 draw(Row &row, Scale s, const Record &r, u64 limit, Shared &sh) {
  const u64 key = noise_key(r.seed, r.output_pos);
  const double inverse = 1.0 / (double)r.temperature;
  Leader leader = {-(double)INFINITY_F, NONE, -INFINITY_F, 1.f};
  each_logit(row, [&](Group l, u32 first) {
    u32 open = 0;
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
      if (FILTERED && place_in_order(s, l[i], first + i) > limit) continue;
      const bool runs = uniform(key, first + i) < leader.bar * SLACK * __expf((l[i] - leader.logit) * s.inverse);
      open |= (u32)(runs && l[i] > -INFINITY_F) << i;
    }
    if (__any_sync(FULL_WARP, open)) leader = run(leader, l, first, open, key, inverse);
  });
  if ((threadIdx.x & 31) == 0) sh.score[threadIdx.x >> 5] = leader.score, sh.id[threadIdx.x >> 5] = leader.id;
  __syncthreads();
  for (int w = 0; w < WARPS; w++)
    if (beats(sh.score[w], sh.id[w], leader.score, leader.id)) leader.score = sh.score[w], leader.id = sh.id[w];
  return leader.id;
}

DEV u32 choose(Row &row, const Record &r, Shared &sh) {
  const bool greedy = r.temperature < GREEDY_BELOW, filtered = r.min_p > 0.f || r.top_p < 1.f || (r.top_k > 0 && r.top_k < VALID);
  Scale s = {0.f, 1.f / r.temperature};
  if (!greedy && !filtered) return draw<false>(row, s, r, 0, sh);
  const u64 greatest = find_greatest(row, sh.greatest);
  s.top = logit_of((u32)(greatest >> 32));
  if (__syncthreads_or(row.bad) || s.top == -INFINITY_F) return NONE;
  if (greedy) return (u32)greatest;
  return draw<true>(row, s, r, filter_limit(row, s, r, sh.select), sh);
}

// logits [rows][PITCH]; inputs: a Record for each block, then what they point to; edit_* [as inputs] are scratch. The token of a row
// that failed, and of padding, is 0.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
sample(const logit *logits, const int *inputs, int *edit_ids, int *edit_counts, float *edit_values, int *token_ids, u8 *failed) {
  __shared__ Shared sh;
  DYNAMIC_SHARED(dynamic);
  const Record r = ((const Record *)inputs)[blockIdx.x];
  if (r.row < 0) {
    if (threadIdx.x == 0) token_ids[blockIdx.x] = 0, failed[blockIdx.x] = 0;
    return;
  }
  u32 *map = (u32 *)dynamic, *rank = map + MAP_WORDS;
  Row row = {logits + (u64)r.row * PITCH, {edit_ids + r.prompt, edit_counts + r.prompt, edit_values + r.prompt, map, 0}, false};
  if (r.prompt < r.stop) {
    row.edits.num = list_edits(r, inputs, row.raw, row.edits, map, rank, &sh.num_edits);
    change_edits(r, inputs, row.edits, map, rank);
  }
  const u32 chosen = choose(row, r, sh);
  const bool fails = __syncthreads_or(row.bad) || chosen == NONE;
  if (threadIdx.x == 0) token_ids[blockIdx.x] = fails ? 0 : (int)chosen, failed[blockIdx.x] = fails;
}
