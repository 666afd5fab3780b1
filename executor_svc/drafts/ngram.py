"""Drafts without a model: what followed the last time that the row's own text went like this (prompt lookup decoding)."""

from executor_svc.drafter import Drafts
from executor_svc.plan import F32, I32, Batch
from executor_svc.slots import Slots
from kernels.cpu.ngram_draft import ngram_draft


class NgramDrafter:
    """Stateless: the tokens of a slot are all that it needs, so nothing is lost by preemption, migration or a prefix hit."""

    name = "ngram"

    def __init__(self, *, shortest: int = 2, longest: int = 4) -> None:
        """Looks for the last `longest` tokens, then for fewer, down to `shortest`."""
        self._shortest = shortest
        self._longest = longest

    def observe(self, batch: Batch, hidden: F32) -> None:
        """See `Drafter`: it looks at texts only."""

    def forget(self) -> None:
        """See `Drafter`: it keeps nothing."""

    def propose(self, slots: Slots, rows: I32, *, most: I32) -> Drafts:
        """See `Drafter`."""
        known = slots.num_known[rows]
        lengths = (self._shortest, self._longest)
        token_ids, counts = ngram_draft(slots.tokens, slots=rows, num_known=known, most=most, lengths=lengths)
        return Drafts(token_ids, counts)
