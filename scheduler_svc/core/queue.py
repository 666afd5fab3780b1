"""Who waits for a slot: resumed sequences first, then arrivals, each in key order; arrivals are bounded."""

from bisect import insort
from collections.abc import Iterator
from itertools import chain

from scheduler_svc.core.sequence import Sequence, by_key


class WaitingQueue:
    """Admission counts arrivals only: what was admitted once is never refused for coming back.

    Attributes:
        resumed: preempted or moved sequences.
        fresh: arrivals by key; keys rise, so insertion order is key order.
        num_fresh_tokens: prompt tokens of `fresh`.
    """

    def __init__(self) -> None:
        self.resumed: list[Sequence] = []
        self.fresh: dict[int, Sequence] = {}
        self.num_fresh_tokens = 0

    def __len__(self) -> int:
        """Sequences waiting."""
        return len(self.resumed) + len(self.fresh)

    def __iter__(self) -> Iterator[Sequence]:
        """In the order in which they are considered."""
        return chain(self.resumed, self.fresh.values())

    def push(self, seq: Sequence) -> None:
        """An arrival."""
        self.fresh[seq.key] = seq
        self.num_fresh_tokens += seq.num_prompt

    def push_resumed(self, seq: Sequence) -> None:
        """A sequence that had a slot before."""
        insort(self.resumed, seq, key=by_key)

    def remove(self, seq: Sequence) -> None:
        """It was placed or it ended. It must be waiting."""
        if self.fresh.pop(seq.key, None) is not None:
            self.num_fresh_tokens -= seq.num_prompt
        else:
            self.resumed.remove(seq)
