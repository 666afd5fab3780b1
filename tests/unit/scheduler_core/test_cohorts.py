"""The bucketed and the ragged rule through the public scheduler: who runs and who waits (A1, A13 to A15), and prompts."""

from scheduler_svc.core.types import CacheOp
from tests.support.cohort_house import BIG, DECODE, FAR, LAST, PREFILL, drain_prompts, house, prompts, rows_of, turn

NOTHING, IN, RESET = CacheOp.NOTHING, CacheOp.IN, CacheOp.RESET


def test_a14_the_grant_reaches_the_bucketer_and_all_lengths_decode_together():
    """So far apart that the override cannot have brought them together."""
    one = house(granted=True, **BIG)
    one.ask(*prompts(*FAR), max_tokens=20)
    drain_prompts(one)
    assert turn(one)[0] == [0, 1, 2]


def test_a1_refused_one_length_runs_and_the_others_sit_idle_in_memory():
    one = house(granted=False, **BIG)
    one.ask(*prompts(*FAR), max_tokens=60)
    drain_prompts(one)
    assert len(turn(one)[0]) == 1
    stats = one.core.stats()
    assert (stats.num_running, stats.num_waiting) == (3, 0), "A15: admitted and resident"
    counters = stats.counters
    assert counters.num_rows_chosen < counters.num_rows_offered


def test_a15_admitted_resident_scheduled_and_waiting_are_told_apart():
    one = house(granted=False, limits={"max_num_seqs": 3}, **BIG)
    one.ask(*prompts(*FAR, 20), max_tokens=60)
    while one.core.stats().num_running < 3:
        turn(one)
    one.plan()
    stats = one.core.stats()
    assert (len(one.core.sequences), stats.num_running, stats.num_scheduled, stats.num_waiting) == (4, 3, 1, 1)


def test_a1_offered_chosen_and_buckets_are_counted():
    one = house(granted=False)
    one.ask(*prompts(5, 9), max_tokens=60)
    one.plan()
    counters = one.core.counters
    assert (counters.num_decisions, counters.num_buckets, counters.num_rows_offered, counters.num_rows_chosen) == (1, 2, 2, 1)


def test_prompts_of_one_length_share_a_step_whole_and_others_wait():
    one = house()
    one.ask(*prompts(9, 5, 9, 9))
    plan = one.plan()
    assert rows_of(one, plan)[0] == [1], "the shortest first when nothing runs yet"
    one.deliver(0)
    one.abort([1])
    plan = one.plan()
    assert (rows_of(one, plan)[0], plan.num_tokens, plan.starts) == ([0, 2, 3], [9, 9, 9], [0, 0, 0])


def test_prompts_never_fold_into_a_ragged_cohort():
    one = house()
    one.ask(*prompts(5, 6), max_tokens=9)
    drain_prompts(one)
    one.ask([9] * 6)
    while True:
        keys, kinds, _ = turn(one)
        assert set(kinds) in ({DECODE}, {LAST}), "never in one step"
        if 2 in keys:
            break
    assert kinds == [LAST]


def test_a_bucket_with_completions_and_prompts_is_two_plans_and_nothing_is_decided_in_between():
    """A completion with 5 cached tokens and a prompt of 6 have one key when refused."""
    one = house(granted=False)
    one.ask([2] * 5, max_tokens=9)
    turn(one)
    one.ask([3] * 6, max_tokens=9)
    plan = one.plan()
    assert rows_of(one, plan) == ([0], [DECODE])
    assert one.books.cohort.owed == [1]
    decisions = one.core.counters.num_decisions
    one.ask([4] * 2, max_tokens=9)  # would be the shortest bucket
    one.deliver(0)
    plan = one.plan()
    assert rows_of(one, plan) == ([1], [LAST])
    assert one.core.counters.num_decisions == decisions


def test_an_owed_prompt_that_was_withdrawn_is_forgotten():
    one = house(granted=False)
    one.ask([2] * 5, max_tokens=9)
    turn(one)
    one.ask([3] * 6, max_tokens=9)
    one.plan()
    one.abort([1])
    one.deliver(0)
    assert rows_of(one, one.plan()) == ([0], [DECODE])
    one.finish()


def test_a_prompt_longer_than_the_budget_goes_alone_in_chunks():
    one = house(max_num_batched_tokens=8)
    one.ask([2] * 19, [3] * 19, max_tokens=2)
    seen = []
    while one.core.sequences:
        plan = one.plan()
        seen.append((*rows_of(one, plan), plan.num_tokens, plan.cache_op))
        one.deliver(0)
    chunks = [(keys, kinds, counts, op) for keys, kinds, counts, op in seen if kinds[0] != DECODE]
    for key in (0, 1):
        mine = [(kinds[0], counts[0], op) for keys, kinds, counts, op in chunks if key in keys]
        assert mine == [(PREFILL, 8, RESET), (PREFILL, 8, IN), (LAST, 3, IN)]
    assert all(len(keys) == 1 for keys, kinds, _, _ in chunks if kinds[0] == PREFILL)


def test_a_prefix_hit_keeps_its_offset_in_the_key():
    """domain 7.13: rows that begin at different places never share a prompt step, however long they are."""
    one = house(limits={"enable_prefix_caching": True})
    one.ask([2] * 9, max_tokens=1)
    turn(one)
    one.ask([2] * 9, [5] * 9, max_tokens=1)
    plan = one.plan()
    assert len(plan.starts) == 1
    one.finish()


def longest_wait(*, num_turns):
    """A long request beside a stream of short ones, each of which is the shortest bucket and ends before it has caught up."""
    one = house(admission="bucketed", layout="paged", limits={"max_num_seqs": 4}, num_blocks=400, max_num_seqs=16)
    one.thorough = False
    one.ask([9] * 40, max_tokens=30)
    waited = most = 0
    for _ in range(num_turns):
        if len(one.core.queue) < 6:
            one.ask([3] * 6, max_tokens=3)
        waited = 0 if 0 in turn(one)[0] else waited + 1
        most = max(most, waited)
    return most


ROOMY = {"max_num_seqs": 32, "max_num_batched_tokens": 2000}


def decisions_until_a_prompt_runs(*, floor, granted=True):
    """Beside 8 completions of 16 tokens and more, which all run in each step."""
    one = house(granted=granted, limits={"prefill_floor": floor, "max_num_batched_tokens": 2000}, **(BIG | ROOMY))
    one.thorough = False
    one.ask(*prompts(*[16] * 8), max_tokens=160, end_after=160)
    drain_prompts(one)
    turn(one)
    one.ask([99], max_tokens=2)
    decisions = 0
    while 8 not in turn(one)[0]:
        decisions += 1
    return decisions


def test_a_prompt_beside_many_ragged_completions_waits_for_the_floor_only():
    """Priority counts rows: 8 of 16 tokens outweigh a prompt of one for 8 x log2(16) = 32 decisions, and they grow."""
    assert [decisions_until_a_prompt_runs(floor=floor) for floor in (1, 8, 20)] == [1, 8, 20]
    assert 32 < decisions_until_a_prompt_runs(floor=0) < 60


def test_the_floor_is_nothing_to_an_executor_that_refuses():
    assert decisions_until_a_prompt_runs(floor=1, granted=False) == decisions_until_a_prompt_runs(floor=0, granted=False)


def test_a13_a_stream_of_prompts_does_not_hold_up_a_row_that_decodes():
    """Twelve prompts of their own lengths always wait, one of them longer than the floor: the row runs in its turn."""
    one = house(limits={"prefill_floor": 8, "max_num_seqs": 32}, max_num_seqs=32, num_blocks=1200)
    one.thorough = False
    one.ask([9] * 16, max_tokens=180, end_after=180)
    drain_prompts(one)
    waited, asked = [0], 0
    for _ in range(300):
        while len(one.core.queue) < 12:
            one.ask([3] * (20 + asked % 40), max_tokens=1)
            asked += 1
        waited.append(0 if 0 in turn(one)[0] else waited[-1] + 1)
    assert 0 in one.core.sequences
    assert max(waited) < 40


def test_a13_nobody_starves():
    assert longest_wait(num_turns=530) == 257


def test_a13_the_historical_rule_starves(monkeypatch):
    """Correction 5 of decision 0008: neither shortest-first nor the override ever looks at who waits."""
    monkeypatch.setattr("scheduler_svc.core.coalesce.is_overdue", lambda buckets: False)
    assert longest_wait(num_turns=530) == 530
