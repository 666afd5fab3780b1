// What threads do together: the block's barrier, and the collectives of a warp.
#include <algorithm>

#include "state.h"

namespace cuemu {
int block_barrier(Vote vote, int condition, const char *file, int line) {
  Thread &me = *current;
  me.state = State::AT_BARRIER;
  me.vote = vote, me.condition = condition;
  me.file = file, me.line = line;
  wait();
  return me.voted;
}

// The lanes of `me`'s collective that have come; false if some have yet to. Fails where they never will.
static bool all_have_come(const Thread &me, Lane (&lanes)[32]) {
  const int first = first_of_warp(me.number), existing = std::min(32, (int)threads.size() - first);
  bool complete = true;
  for (int i = 0; i < 32; i++) {
    lanes[i] = {nullptr, nullptr, false};
    if (!(me.mask >> i & 1)) continue;
    if (i >= existing) {
      if (me.mask == ~0u) continue;  // "the whole warp" of a block that ends with half of one
      fail("%s:%d: mask %08x names lane %d outside the block", me.file, me.line, me.mask, i);
    }
    const Thread &other = threads[first + i];
    if (other.state == State::EXITED) fail("%s:%d: mask %08x names lane %d, which has exited", me.file, me.line, me.mask, i);
    if (other.state != State::IN_COLLECTIVE) {
      complete = false;
      continue;
    }
    if (other.resolve != me.resolve || other.mask != me.mask || other.line != me.line || strcmp(other.file, me.file))
      fail("warp divergence: lane %d waits at %s:%d (mask %08x), this lane at %s:%d (mask %08x)", i, other.file, other.line,
           other.mask, me.file, me.line, me.mask);
    lanes[i] = other.lane;
  }
  return complete;
}

void collective(Resolve resolve, unsigned mask, const void *in, void *out, const char *file, int line) {
  Thread &me = *current;
  if (!(mask >> (me.number & 31) & 1)) fail("%s:%d: calling lane is not in mask %08x", file, line, mask);
  me.resolve = resolve, me.mask = mask, me.lane = {in, out, true};
  me.file = file, me.line = line, me.caller = CUEMU_CALLER;
  me.state = State::IN_COLLECTIVE;
  Lane lanes[32];
  if (!all_have_come(me, lanes)) {
    wait();
    return;
  }
  resolve(lanes, mask);
  for (int i = 0; i < 32; i++) {
    if (!lanes[i].in_mask) continue;
    Thread &other = threads[first_of_warp(me.number) + i];
    other.state = State::READY;
    other.meetings++;
  }
}

static void resolve_warp_barrier(Lane *lanes, unsigned) {
  now.warp_barrier++;
  for (int i = 0; i < 32; i++)
    if (lanes[i].in_mask) last_warp_barrier[first_of_warp(current->number) + i] = now.warp_barrier;
}
// The only collective that orders memory.
void warp_barrier(unsigned mask, const char *file, int line) {
  collective(resolve_warp_barrier, mask, nullptr, nullptr, file, line);
}

void resolve_shuffle(Lane *lanes, unsigned) {
  for (int i = 0; i < 32; i++) {
    if (!lanes[i].in_mask) continue;
    const int source = ((const Shuffle *)lanes[i].in)->source;
    if (source < 0 || source > 31 || !lanes[source].in_mask)
      fail("shfl: lane %d reads lane %d, which is not in the mask", i, source);
    *(uint64_t *)lanes[i].out = ((const Shuffle *)lanes[source].in)->value;
  }
}

// Every lane gets `combine` of all lanes' values.
template <class Combine> static void reduce(Lane *lanes, Combine combine) {
  unsigned result = 0;
  for (int i = 0; i < 32; i++)
    if (lanes[i].in_mask) result = combine(result, *(const unsigned *)lanes[i].in, i);
  for (int i = 0; i < 32; i++)
    if (lanes[i].in_mask) *(unsigned *)lanes[i].out = result;
}
void resolve_ballot(Lane *lanes, unsigned) {
  reduce(lanes, [](unsigned r, unsigned v, int lane) { return r | (v ? 1u << lane : 0); });
}
void resolve_sum(Lane *lanes, unsigned) {
  reduce(lanes, [](unsigned r, unsigned v, int) { return r + v; });
}
void resolve_maximum(Lane *lanes, unsigned) {
  reduce(lanes, [](unsigned r, unsigned v, int) { return std::max(r, v); });
}
void resolve_match(Lane *lanes, unsigned) {
  for (int i = 0; i < 32; i++) {
    if (!lanes[i].in_mask) continue;
    unsigned same = 0;
    for (int j = 0; j < 32; j++)
      if (lanes[j].in_mask && *(const unsigned *)lanes[j].in == *(const unsigned *)lanes[i].in) same |= 1u << j;
    *(unsigned *)lanes[i].out = same;
  }
}
}  // namespace cuemu
