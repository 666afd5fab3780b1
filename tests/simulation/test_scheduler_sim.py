"""Seeded simulation of core, executors and clients: safety under faults, then liveness; repeatable; it finds planted bugs."""

import pytest

from scheduler_svc.core import apply, assemble, residency
from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.errors import CoreError
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.kv import KvCache
from scheduler_svc.core.paged import PagedAdmission
from scheduler_svc.core.rows import RowMap
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.sketch import StepSketch
from scheduler_svc.sim.model_executor import ContractBroken
from scheduler_svc.sim.run import simulate

NUM_SEEDS = 120
CHUNKS = 6


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_safety_then_liveness(chunk):
    """Faults of every kind; then they stop and every sequence ends, with all blocks and slots back."""
    reports = simulate_all(range(chunk, NUM_SEEDS, CHUNKS))
    assert sum(report.num_plans for report in reports) > 500
    assert sum(report.prefix_hits for report in reports) > 0
    assert sum(report.num_preemptions for report in reports) > 0
    assert sum(report.num_moved for report in reports) > 0
    assert all(sum(report.reasons[reason] for report in reports) for reason in ("STOP", "LENGTH", "ABORTED", "ERROR"))


@pytest.mark.parametrize("advance", ["per_sequence", "cohort"])
@pytest.mark.parametrize("drafts", ["adaptive", "fixed"])
def test_safety_then_liveness_with_drafts(drafts, advance):
    kept = {"drafts": drafts, "advance": advance, "granted": True}
    reports = [simulate(seed, num_turns=150, mtp_depth=1 + seed % 5, **kept) for seed in range(2000, 2080)]
    assert sum(report.num_accepted for report in reports) > 100
    assert sum(report.num_preemptions for report in reports) > 0
    assert sum(report.num_moved for report in reports) > 0


def test_who_is_not_granted_more_moves_as_if_cohort_had_been_set():
    for seed in (2000, 2001, 2002):
        plain, refused = {"mtp_depth": 3, "advance": "cohort", "granted": True}, {"mtp_depth": 3, "granted": False}
        assert simulate(seed, **plain).plan_digest == simulate(seed, **refused).plan_digest


@pytest.mark.parametrize("advance", ["per_sequence", "cohort"])
def test_blocks_smaller_than_drafts_are_many(advance):
    """A row gets blocks for its tail and for its drafts in one step, and may be the only one that decodes when they are short."""
    for seed in [100023, 200195, *range(100000, 100030)]:
        simulate(seed, num_turns=300, mtp_depth=2, drafts="adaptive", advance=advance, granted=True)


def test_schedule_that_returns_none_changes_nothing():
    for seed in range(1000, 1006):
        simulate(seed, num_turns=80, thorough=True)


def test_same_seed_same_plans():
    for seed in (1, 2, 3, 4, 5):
        assert simulate(seed) == simulate(seed)
    assert simulate(1).plan_digest != simulate(2).plan_digest


def leak_a_block(patch):
    release = KvCache.release
    patch.setattr(KvCache, "release", lambda self, blocks: release(self, blocks[:-1]))


def release_twice(patch):
    drop = BlockPool.drop
    patch.setattr(BlockPool, "drop", lambda self, block, *, keep: (drop(self, block, keep=keep), self.empty.append(block)))


def swap_two_rows(patch):
    init = RowMap.__init__

    def swapped(self, decodes, prefills, **kwargs):
        init(self, decodes, prefills, **kwargs)
        if len(decodes) > 1:
            self.seqs[0], self.seqs[1] = self.seqs[1], self.seqs[0]
            self.keys[0], self.keys[1] = self.keys[1], self.keys[0]

    patch.setattr(RowMap, "__init__", swapped)


def publish_before_computed(patch):
    publish = residency.publish_scheduled

    def early(books, seq, *, num_tokens, confirmed):
        ahead = min(len(seq.blocks) * books.kv.block_size, len(seq.tokens))
        publish(books, seq, num_tokens=max(num_tokens, ahead), confirmed=confirmed)

    patch.setattr(assemble, "publish_scheduled", early)


def keep_what_failed(patch):
    patch.setattr(KvCache, "withdraw", lambda self, blocks, *, owner: [])


def requeue_nobody_who_relied(patch):
    withdraw = KvCache.withdraw

    def nobody(self, blocks, *, owner):
        withdraw(self, blocks, owner=owner)
        return []

    patch.setattr(KvCache, "withdraw", nobody)


def hit_the_whole_prompt(patch):
    def whole(self, seq, books):
        return len(seq.tokens) // books.kv.block_size if self._caching else 0

    patch.setattr(PagedAdmission, "_max_hits", whole)


def reuse_a_slot_early(patch):
    def now(self):
        while self.releasing:
            self.free_slots.insert(0, self.releasing.popleft()[1])

    patch.setattr(ExecutorBooks, "give_slots_back", now)


def lose_an_abort(patch):
    withdraw = residency.withdraw

    def lost(books, seq):
        withdraw(books, seq)
        books.pending_aborted.pop()

    patch.setattr("scheduler_svc.core.scheduler.withdraw", lost)


def stale_length(patch):
    patch.setattr(apply.ResultApplier, "_confirm", lambda self, flight, row, seq, num_tokens, news: 0)


def preempt_forgets_tokens(patch):
    def forget(seq, queue):
        del seq.tokens[seq.num_prompt :]
        seq.state = State.WAITING
        queue.push_resumed(seq)

    patch.setattr(residency, "requeue", forget)


def preempt_drops_the_result_in_flight(patch):
    give_back = residency.give_back

    def preempt(books, seq, queue):
        books.stop_scheduling(seq)
        del books.running[seq.key]
        if books.is_in_flight(seq):
            residency.mark_irregular(books, seq)
            seq.state = State.DISCARDING
            books.leaving[seq.key] = seq
            del seq.tokens[seq.num_prompt + max(0, seq.num_emitted - 1) :]
        else:
            give_back(books, seq)
            residency.requeue(seq, queue)

    patch.setattr("scheduler_svc.core.sketch.preempt", preempt)


def decode_past_the_end(patch):
    patch.setattr(Sequence, "max_length", property(lambda self: self.num_prompt + self.request.max_tokens + 1))


def forget_a_waiting_sequence(patch):
    patch.setattr(residency, "requeue", lambda seq, queue: setattr(seq, "state", State.WAITING))


def never_admit_after_a_loss(patch):
    fits = PagedAdmission.fits
    patch.setattr(PagedAdmission, "fits", lambda self, seq, room, hits: not seq.num_placements and fits(self, seq, room, hits=hits))


def forget_blocks_of_the_upper_length(patch):
    grow = StepSketch.grow_decodes
    patch.setattr(StepSketch, "grow_decodes", lambda self, rows, short: grow(self, rows, short[1:]))


def simulate_all(seeds):
    return [simulate(seed, num_turns=100) for seed in seeds]


PLANTED = [
    leak_a_block,
    release_twice,
    swap_two_rows,
    publish_before_computed,
    keep_what_failed,
    requeue_nobody_who_relied,
    hit_the_whole_prompt,
    reuse_a_slot_early,
    lose_an_abort,
    stale_length,
    preempt_forgets_tokens,
    preempt_drops_the_result_in_flight,
    decode_past_the_end,
    forget_a_waiting_sequence,
    never_admit_after_a_loss,
    forget_blocks_of_the_upper_length,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_canary_is_found(plant, monkeypatch):
    """Check the checkers: each planted bug is found by some seed."""
    plant(monkeypatch)
    with pytest.raises((CoreError, ContractBroken, KeyError, IndexError, ValueError)):
        simulate_all(range(NUM_SEEDS))
