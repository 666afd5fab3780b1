"""Who may share a forward pass under the bucketed and the ragged rule: one key function, and here only.

Sequences with equal keys form a bucket, and one bucket runs a step. Refused, the key is (length, images, offset): cached lengths
must be equal. Granted, all completions share one length and are told apart from prompts by `ragged`: a batch of prompts is dense,
[rows, tokens], so prompts of different lengths never share a step.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_svc.core.grant import RaggedGrant


class BucketKey(NamedTuple):
    """Compared as a tuple, it is also the total order that breaks ties.

    Attributes:
        length: tokens in the cache. images: a prompt that brings images. offset: where a prompt's forward pass begins.
        ragged: completions of any length.
    """

    length: int
    images: bool
    offset: int
    ragged: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that could run in the next step.

    Attributes:
        key: the sequence's. length: see `cache_bucket_len`. num_tokens: tokens known of it, at least 1.
        is_prompt: tokens that are known wait to be fed.
        offset: of a prompt, tokens already in its cache: a prefix hit, or chunks that have run; 0 for a completion.
        images: it brings images. urgency: passes in which it could have run and did not.
    """

    key: int
    length: int
    num_tokens: int
    is_prompt: bool
    offset: int = 0
    images: bool = False
    urgency: int = 0


def cache_bucket_len(reported: int | None, *, num_tokens: int) -> int:
    """The length component: the row's own cache length as its executor reported it; without one, all tokens but the last."""
    return num_tokens - 1 if reported is None else reported


def ragged_bucket_len(rows: Iterable[Candidate], *, grant: RaggedGrant) -> int | None:
    """The one length that all completions are given; None when refused, or without completions.

    The minimum: the smallest completion bucket has always sorted there, so the order against prompt buckets stays what it was.
    """
    if grant.buckets_by_cache_length():
        return None
    return min((row.length for row in rows if not row.is_prompt), default=None)


def bucket_key_of(row: Candidate, *, ragged_len: int | None) -> BucketKey:
    """The bucket of one candidate."""
    if ragged_len is not None and not row.is_prompt:
        return BucketKey(ragged_len, images=False, offset=row.offset, ragged=True)
    return BucketKey(row.length, images=row.images and row.is_prompt, offset=row.offset, ragged=False)
