"""Which bucket runs: priority by size and waiting, and the override that lets a shorter bucket catch up and merge.

Everything is integers and compares in a total order, so that the same candidates give the same choice on every machine.
"""

from collections.abc import Mapping, Sequence
from math import prod

from scheduler_svc.core.bucket_key import BucketKey, Candidate

COALESCE_PAYBACK_STEPS = 256
"""Steps within which a bucket that runs alone must have paid back, by merging, what others waited for it."""

Buckets = Mapping[BucketKey, Sequence[Candidate]]


def priority(rows: Sequence[Candidate]) -> int:
    """2 ** (sum of urgency + log2(tokens) over the rows), exactly: size dominates, waiting counts."""
    return prod(row.num_tokens for row in rows) << sum(row.urgency for row in rows)


def choose_bucket(buckets: Buckets, *, discrete: bool, prefill_floor: int = 0) -> BucketKey:
    """The bucket that runs. `discrete`: a set begins, or nobody else waits: the shortest goes first.

    Neither the shortest-first rule nor the override looks at waiting, so both give way once somebody has waited longer than the
    override may take: the bucket of highest priority runs then, and priority grows with waiting. Nobody starves.

    `prefill_floor`: who has waited so many decisions goes first, whoever it is, the longest wait before others; 0 = no such limit.
    Where all completions are one bucket, priority alone would let a prompt wait for the sum of their logarithms: 200 decisions
    beside 31 rows of 100 tokens.
    """
    if prefill_floor:
        longest = max(sorted(buckets), key=lambda key: _longest_wait(buckets[key]))
        if _longest_wait(buckets[longest]) >= prefill_floor:
            return longest
    if is_overdue(buckets):
        return highest_priority(buckets)
    return min(buckets) if discrete else select_running_bucket(buckets)


def _longest_wait(rows: Sequence[Candidate]) -> int:
    return max(row.urgency for row in rows)


def is_overdue(buckets: Buckets) -> bool:
    """Whether a sequence has waited longer than any payback allows."""
    return any(_longest_wait(rows) > COALESCE_PAYBACK_STEPS for rows in buckets.values())


def highest_priority(buckets: Buckets) -> BucketKey:
    """The greedy choice; of equal ones the smallest key."""
    return max(sorted(buckets), key=lambda key: priority(buckets[key]))


def select_running_bucket(buckets: Buckets) -> BucketKey:
    """The greedy choice, unless the shortest bucket will soon have caught up with one that it can merge with.

    While it runs alone for `gap` steps everybody else waits; merged, its rows save a step of their own each time.
    """
    shortest, greedy = min(buckets), highest_priority(buckets)
    if greedy == shortest:
        return shortest
    ahead = [key.length for key in buckets if can_merge(shortest, key)]
    if not ahead:
        return greedy
    gap = min(ahead) - shortest.length
    num_shortest = len(buckets[shortest])
    num_waiting = sum(len(rows) for rows in buckets.values()) - num_shortest
    return shortest if num_waiting * gap <= num_shortest * COALESCE_PAYBACK_STEPS else greedy


def can_merge(key: BucketKey, longer: BucketKey) -> bool:
    """Whether the bucket `key` becomes `longer` by growing: all but the length is equal."""
    return (
        longer.length > key.length and longer.images == key.images and longer.offset == key.offset and longer.ragged == key.ragged
    )
