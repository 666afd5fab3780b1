"""The refused run against the frozen oracle: byte-identical plans over 1,000 random sessions. Domain rows A1, B10, B11."""

from random import Random

import pytest

from drumline.plan.v1 import plan_pb2 as pb
from scheduler_svc import wire
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import ExecutorInfo, FinishReason, Limits, Request, StepResult
from tests.support.frozen_scheduler import FrozenScheduler

EPOCH, BLOCKS, BLOCK_SIZE, SLOTS = 77, 400, 4, 32
NUM_SESSIONS, CHUNKS = 1000, 4


class Device:
    """Answers plans from their wire form: every row emits, a row ends by its own limit or by chance."""

    def __init__(self, random, limits_of):
        self.random, self.limits_of = random, limits_of
        self.length, self.emitted, self.rows = {}, {}, []
        self.key_of, self.ended, self.blocks = {}, set(), {}

    def run(self, plan, *, new_keys):
        for slot in (*plan.freed_slots, *plan.aborted_slots):
            self.blocks.pop(slot, None)
        for new, key in zip(plan.new_sequences, new_keys, strict=True):
            self.length[new.slot], self.emitted[new.slot], self.key_of[new.slot] = 0, 0, key
            self.blocks[new.slot] = []
        if plan.slot:
            self.rows = list(plan.slot)
        slots = self.rows if plan.repeat_rows else list(plan.slot)
        counts = [1] * len(slots) if plan.repeat_rows else list(plan.num_tokens)
        for row, block in zip(plan.block_row, plan.block_id, strict=True):
            self.blocks[slots[row]].append(block)
        tokens, lengths, finished = [], [], {}
        for row, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            self.length[slot] += count
            self.emitted[slot] += 1
            tokens.append(self.random.randrange(5, 99))
            lengths.append(self.length[slot])
            if self.emitted[slot] >= self.limits_of[self.key_of[slot]]:
                finished[row] = FinishReason.LENGTH
            elif self.random.random() < 0.04:
                finished[row] = FinishReason.STOP
        for row in finished:
            del self.blocks[slots[row]]
        return tokens, lengths, finished, sum(len(blocks) for blocks in self.blocks.values())


def session(seed):
    """One random session through both: plans compared, those that left prompts owed, whether there ever were several buckets."""
    random = Random(seed)
    bound, layout = random.choice((1, 2, 4, 8, 8)), random.choice(("paged", "aligned"))
    limits = Limits(
        max_num_seqs=bound,
        max_num_batched_tokens=4096,
        enable_prefix_caching=False,
        admission=random.choice(("bucketed", "ragged")),
        layout=random.choice(("aligned", "stripped")) if layout == "aligned" else "paged",
    )
    granted = limits.admission == "bucketed" and random.random() < 0.5  # a policy that refuses does not care
    core = Scheduler(limits)
    core.add_executor(ExecutorInfo(0, "m", BLOCK_SIZE, BLOCKS, 4096, SLOTS, 4096, ragged_granted=granted, ragged_reason="told"))
    oracle = FrozenScheduler(
        bound=bound,
        num_slots=SLOTS,
        num_blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        layout=pb.LAYOUT_ALIGNED if layout == "aligned" else pb.LAYOUT_PAGED,
        epoch=EPOCH,
        grant=1,
    )
    most, device = {}, None
    device = Device(random, most)
    lengths = [random.randrange(1, 40) for _ in range(random.choice((1, 2, 4)))]
    num_plans = num_owed = 0
    for _ in range(random.randrange(8, 21)):
        for _ in range(random.choice((0, 0, 1, 3))):
            key = len(most) + 1
            most[key] = random.choice((1, 3, 9, 30))
            prompt = [random.randrange(5, 99) for _ in range(random.choice(lengths))]
            core.add_requests([Request(key, "r", prompt, most[key])])
            oracle.arrive(key, prompt)
        if most and random.random() < 0.08:
            key = random.choice(sorted(most))
            core.abort([key])
            oracle.withdraw(key)
        plan, expected = core.schedule(0), oracle.schedule()
        assert (plan is None) == (expected is None)
        if plan is None:
            continue
        made = wire.plan_to_wire(plan, session_epoch=EPOCH)
        assert made.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True), (made, expected)
        num_plans += 1
        num_owed += len(oracle.prompts_to_come) > 0
        tokens, lens, finished, in_use = device.run(made, new_keys=[new.key for new in plan.new_sequences])
        core.update(0, StepResult(plan.step_id, (), tokens, lens, list(finished.items()), num_blocks_in_use=in_use))
        oracle.answer(tokens, lens, finished)
    return num_plans, num_owed, core.counters.num_buckets > core.counters.num_decisions


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_refused_run_plans_exactly_as_the_frozen_rule_over_1000_sessions(chunk):
    seen = [session(seed) for seed in range(chunk, NUM_SESSIONS, CHUNKS)]
    num_plans, num_owed, num_shattered = (sum(column) for column in zip(*seen, strict=True))
    assert num_plans > 1500
    assert num_owed > 20, "buckets of completions and prompts never came"
    assert num_shattered > 100, "sessions are too tame to tell rules apart"
