"""Drafts by a multi-token-prediction head: one decoder layer over the target's last hidden states, applied to itself for more.

    x(p) = proj([norm(h(p - 1)), norm(embedding(token(p)))])  ->  one decoder layer  ->  norm  ->  g(p)  ->  the target's head

g(p) predicts the token at p + 1. For the next draft, g(p) stands where h(p) would: DeepSeek-V3's module (arXiv:2412.19437, section
2.2), applied recursively. What a draft leaves in the head's own cache is computed again, from the target's states, when its token
has been verified.

Legend: D rows that draft, T positions, H hidden size, V tokens that can be drafted.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor_svc.drafter import Drafts
from executor_svc.drafts.draft_cache import DraftCache
from executor_svc.drafts.head import DraftHead
from executor_svc.plan import F32, I32, Batch
from executor_svc.slots import Slots
from kernels.cpu.sample import sample

MAX_PRIMED: Final = 1024
"""Positions that one step computes before it drafts; a row with more to catch up on drafts in a later step."""


@dataclass(frozen=True, slots=True)
class Fed:
    """Positions of several rows behind each other, as a paged cache wants them."""

    positions: I32
    query_start: I32
    context_len: I32
    block_tables: I32


class MtpDrafter:
    """See `Drafter`. All that it needs to go on lies in blocks and in the slots' tokens: rows may be preempted, moved or hit
    prefixes."""

    name = "mtp"

    def __init__(self, head: DraftHead, *, cache: DraftCache, num_slots: int) -> None:
        self._head = head
        self._cache = cache
        self._entered: NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self._primed: I32 = np.zeros(num_slots, np.int32)

    @property
    def token_ids(self) -> I32:
        """What it can draft, rising."""
        return self._head.token_ids

    def observe(self, batch: Batch, hidden: F32) -> None:
        """See `Drafter`."""
        self._cache.keep(batch, hidden)

    def forget(self) -> None:
        """See `Drafter`."""
        self._cache.forget()
        self._entered[:] = 0

    def propose(self, slots: Slots, rows: I32, *, most: I32) -> Drafts:
        """See `Drafter`."""
        tables = slots.blocks.table[rows, : int(slots.blocks.count[rows].max(initial=1))]
        last = slots.num_known[rows] - 1
        state, counts = self._catch_up(slots, rows, tables=tables, last=last, most=most)
        token_ids: I32 = np.zeros((len(rows), int(counts.max(initial=0))), np.int32)
        for step in range(token_ids.shape[1]):
            going = np.flatnonzero(counts > step).astype(np.int32)
            if step:
                fed = _one_each(tables[going], last[going] + step)
                state[going] = self._head.run(state[going], token_ids[going, step - 1], fed=fed, cache=self._cache.kv)
            token_ids[going, step] = self._choose(slots, rows[going], state[going], ahead=step)
        return Drafts(token_ids, counts)

    def _catch_up(self, slots: Slots, rows: I32, *, tables: I32, last: I32, most: I32) -> tuple[F32, I32]:
        """Computes every position up to the last known token that was not computed yet from the target's states.

        Gives the state there, f32 [D, H], and how many drafts each row may make now: none where there was too much to catch up on.
        """
        begin = np.minimum(self._primed_of(slots, rows, tables=tables), last)
        wanted = last + 1 - begin
        count = np.clip(MAX_PRIMED - (np.cumsum(wanted) - wanted), 0, wanted).astype(np.int32)
        owners = np.repeat(np.arange(len(rows), dtype=np.int32), count)
        start: I32 = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(count, out=start[1:])
        positions = np.arange(start[-1], dtype=np.int32) - np.repeat(start[:-1] - begin, count)
        before = self._cache.hidden_before(tables, owners=owners, positions=positions)
        tokens = slots.tokens[rows[owners], positions]
        some = np.flatnonzero(count)
        fed = Fed(positions, np.append(start[:-1][some], start[-1]).astype(np.int32), (begin + count)[some], tables[some])
        states = self._head.run(before, tokens, fed=fed, cache=self._cache.kv)
        self._cache.computed(tables, begin=begin, end=begin + count)
        self._primed[rows] = begin + count
        return states[np.maximum(start[1:] - 1, 0)], np.where(count == wanted, most, 0).astype(np.int32)

    def _primed_of(self, slots: Slots, rows: I32, *, tables: I32) -> I32:
        """Positions of each row that need no computing; a sequence that is new here has what its prefix blocks bring along."""
        is_new = self._entered[rows] != slots.entered[rows]
        if is_new.any():
            new = rows[is_new]
            self._primed[new] = self._cache.num_complete(tables[is_new], slots.num_computed[new])
            self._entered[new] = slots.entered[new]
        return self._primed[rows]

    def _choose(self, slots: Slots, rows: I32, state: F32, *, ahead: int) -> I32:
        """What the head thinks, chosen as the target chooses: the same parameters, the same noise at the same output position."""
        if slots.sampling.is_plain[rows].all():
            likeliest: I32 = self._head.token_ids[self._head.scores(state).argmax(axis=1)]
            return likeliest
        logits = self._head.logits(state)
        columns, _ = slots.sampling.gather(rows, tokens=slots.tokens, num_prompt=slots.num_prompt)
        known = slots.num_known[rows] + ahead
        output_pos = known - columns.num_prompt
        ban_end = output_pos < slots.sampling.min_tokens[rows]
        columns = replace(columns, num_known=slots.num_known[rows], output_pos=output_pos, ban_end=ban_end)
        token_ids, _ = sample(logits, columns=columns, num_valid=logits.shape[1])
        return token_ids


def _one_each(tables: I32, positions: I32) -> Fed:
    return Fed(positions, np.arange(len(positions) + 1, dtype=np.int32), positions + 1, tables)
