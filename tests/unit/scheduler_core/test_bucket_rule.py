"""The key and the choice of a bucket, as pure functions: rows A6 to A13 of domain.md section 6. Lengths are cached lengths."""

from itertools import permutations

import pytest

from scheduler_svc.core.bucket_key import BucketKey, Candidate, bucket_key_of, cache_bucket_len, ragged_bucket_len
from scheduler_svc.core.coalesce import COALESCE_PAYBACK_STEPS, choose_bucket, is_overdue, priority, select_running_bucket
from scheduler_svc.core.grant import RaggedGrant
from scheduler_svc.core.types import Layout

GRANTED = RaggedGrant.decide(declared=True, reason="told", layout=Layout.STRIPPED)
REFUSED = RaggedGrant.refused("told not to", layout=Layout.STRIPPED)


def completion(length, *, key=0, urgency=0, offset=0):
    return Candidate(key, length, length + 1, is_prompt=False, urgency=urgency, offset=offset)


def prompt(length, *, key=0, urgency=0, offset=0, images=False):
    return Candidate(key, length, length + 1, is_prompt=True, urgency=urgency, offset=offset, images=images)


def buckets(*groups, ragged_len=None):
    """(number, row) -> buckets."""
    return {bucket_key_of(row, ragged_len=ragged_len): [row] * count for count, row in groups}


# A6


def test_a6_the_length_is_the_reported_one_and_else_all_tokens_but_the_last():
    assert cache_bucket_len(7, num_tokens=11) == 7, "a cohort that moves by its slowest row leaves the others' tokens uncached"
    assert cache_bucket_len(None, num_tokens=11) == 10
    assert cache_bucket_len(0, num_tokens=11) == 0, "nothing cached is a report, too"


# A7, A8, A10


def test_a7_refused_the_key_is_length_images_and_offset():
    assert bucket_key_of(completion(9), ragged_len=None) == (9, False, 0, False)
    assert bucket_key_of(prompt(9, offset=4), ragged_len=None) == (9, False, 4, False)
    assert bucket_key_of(prompt(9, images=True), ragged_len=None) == (9, True, 0, False)


def test_a7_images_count_for_prompts_only():
    row = Candidate(0, 9, 10, is_prompt=False, images=True)
    assert bucket_key_of(row, ragged_len=None).images is False


def test_b10_a_refused_run_builds_the_pre_change_bucket_key():
    rows = [completion(9), completion(12), prompt(9), prompt(30, offset=16), prompt(9, images=True)]
    ragged_len = ragged_bucket_len(rows, grant=REFUSED)
    for row in rows:
        assert bucket_key_of(row, ragged_len=ragged_len) == (row.length, row.images and row.is_prompt, row.offset, False)


def test_a8_granted_a_completion_never_meets_a_prompt_of_equal_length():
    assert bucket_key_of(completion(9), ragged_len=9) == BucketKey(9, images=False, offset=0, ragged=True)
    assert bucket_key_of(prompt(9), ragged_len=9) == BucketKey(9, images=False, offset=0, ragged=False)
    assert bucket_key_of(completion(9), ragged_len=9) != bucket_key_of(prompt(9), ragged_len=9)


def test_a10_granted_all_completions_share_a_key_and_prompts_keep_theirs():
    rows = [completion(9), completion(40), completion(12)]
    assert {bucket_key_of(row, ragged_len=9) for row in rows} == {BucketKey(9, images=False, offset=0, ragged=True)}
    assert bucket_key_of(prompt(40), ragged_len=9).length == 40


def test_a10_an_offset_keeps_completions_apart_even_when_granted():
    """domain 7.13: a stale offset would shatter the cohort, so the core gives completions none."""
    assert bucket_key_of(completion(9, offset=4), ragged_len=9) != bucket_key_of(completion(9), ragged_len=9)


# A9


def test_a9_ragged_bucket_len_is_the_minimum_over_completions():
    rows = [completion(num_tokens - 1) for num_tokens in (140, 101, 300)]
    assert ragged_bucket_len(rows, grant=GRANTED) == 100


def test_a9_a_prompt_shorter_than_every_completion_does_not_count():
    """Mutation 2 survived upstream's first run for want of exactly this."""
    assert ragged_bucket_len([prompt(49), completion(139), completion(100)], grant=GRANTED) == 100


def test_a9_there_is_none_when_refused_or_without_completions():
    assert ragged_bucket_len([completion(9)], grant=REFUSED) is None
    assert ragged_bucket_len([prompt(9)], grant=GRANTED) is None
    assert ragged_bucket_len([], grant=GRANTED) is None


# A11, A12


def test_a11_a_bucket_one_token_behind_is_let_catch_up():
    assert select_running_bucket(buckets((32, completion(101)), (32, completion(102)))).length == 101


def test_a11_a_loner_far_behind_is_not():
    assert select_running_bucket(buckets((1, completion(21)), (63, completion(500)))).length == 500


@pytest.mark.parametrize(("gap", "runs"), [(256, 100), (257, 357)])
def test_a11_the_payback_is_256_steps_to_the_step(gap, runs):
    """One waits for one: 256 steps are paid back, 257 are not. The longer one has the higher priority."""
    assert COALESCE_PAYBACK_STEPS == 256
    assert select_running_bucket(buckets((1, completion(100)), (1, completion(100 + gap)))).length == runs


def test_a11_discrete_runs_the_shortest():
    chosen = choose_bucket(buckets((1, completion(21)), (63, completion(500))), discrete=True)
    assert chosen.length == 21


def test_a11_the_coalescence_override_never_targets_a_bucket_it_cannot_merge_with():
    """32 ragged completions at 119 beside 32 prompts at 120, gap 1: they never merge, so priority decides. Mutation 7 survived
    upstream's first run for want of exactly this."""
    sides = buckets((32, completion(119)), (32, prompt(120)), ragged_len=119)
    assert select_running_bucket(sides) == BucketKey(120, images=False, offset=0, ragged=False)


@pytest.mark.parametrize("other", [prompt(120, offset=16), prompt(120, images=True)])
def test_a11_nor_one_of_another_offset_or_with_images(other):
    assert select_running_bucket(buckets((32, completion(119)), (32, other))).length == 120


def test_a11_the_next_mergeable_length_counts_not_the_greedy_one():
    """Greedy is far away; the shortest bucket's own neighbour is 2 away and pays: (4 + 8) * 2 <= 2 * 256."""
    chosen = select_running_bucket(buckets((2, completion(100)), (4, completion(102)), (8, completion(4000))))
    assert chosen.length == 100


@pytest.mark.parametrize(("num_lengths", "taken"), [(5, True), (6, False)])
def test_a12_64_apart_the_override_is_taken_for_5_lengths_and_refused_for_6(num_lengths, taken):
    rows = [(4, completion(100 + 64 * index)) for index in range(num_lengths)]
    assert (select_running_bucket(buckets(*rows)).length == 100) is taken


# A13


def test_a13_priority_is_the_sum_of_urgency_and_log2_of_tokens_exactly():
    rows = [completion(7, urgency=3), completion(3, urgency=1)]
    assert priority(rows) == 2 ** (3 + 3 + 1 + 2)


def test_a13_size_dominates_and_waiting_wins_in_the_end():
    many, loner = [completion(499)] * 63, 0
    while priority([completion(20, urgency=loner)]) < priority(many):
        loner += 1
    assert 63 * 8 < loner < 63 * 9


def test_a13_equal_priorities_go_to_the_smallest_key_in_any_order_of_arrival():
    """Upstream's defect 4: it iterated a hash map. 2 x 8 tokens and 4 x ... weigh the same: 8 * 8 = 64 = 64."""
    sides = [(2, completion(7)), (1, completion(63)), (1, prompt(63, offset=16))]
    chosen = {choose_bucket(buckets(*order), discrete=False) for order in permutations(sides)}
    assert len(chosen) == 1


def test_a13_whoever_has_waited_longer_than_a_payback_ends_the_override():
    waited = COALESCE_PAYBACK_STEPS + 1
    sides = buckets((1, completion(20)), (1, completion(25, urgency=waited)))
    assert is_overdue(sides)
    assert choose_bucket(sides, discrete=False).length == 25
    assert choose_bucket(sides, discrete=True).length == 25
    patient = buckets((1, completion(20)), (1, completion(25, urgency=waited - 1)))
    assert choose_bucket(patient, discrete=False).length == 20
