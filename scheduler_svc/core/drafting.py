"""How far drafts run: a row gets one more draft as long as the chance that it counts is worth more than it costs.

A draft has to be made, and verified, which costs one token more in the step; it counts when it and all before it are right. With R
rows that emit one token each in a step of cost c, another token per row is worth its price when its chance is above
(cost with it - c) / c: where memory decides what a step costs that is little, where products do it is nearly 1, and nobody drafts.
Chances are measured per row. What prompts take of a step is theirs: c is what the R rows would take without them, else the long
steps of a prompt would make drafts look free, which take its place there.

Integers only, no logarithms: a replay on another processor must come out the same. Chances are in 1/65536.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler_svc.core.step_costs import StepCosts

I64 = NDArray[np.int64]
ONE: Final = 1 << 16
PRIOR: Final = ONE // 2
"""Chance of a draft of an executor that has verified none."""
MEMORY: Final = 4
"""A verified draft counts 1 / 2**MEMORY of what is known of its row; of what is known of all, in the end, 1 / 2**(MEMORY + 4)."""
FEW: Final = 1 << MEMORY
"""Rows that must have verified drafts before PRIOR counts no more than they do."""
PROBE_EVERY: Final = 64
"""Steps after which the other choice is tried once, and after which a row without drafts gets one again."""
PROBED: Final = 8
"""Rows of which one drafts when the other choice is tried."""
MARGIN: Final = 32
"""Drafting begins when it promises 1 + 1/MARGIN times the tokens, and stops when it promises fewer than none would give."""


@dataclass(slots=True)
class DraftTotals:
    """What has been verified so far.

    Attributes:
        num_drafts: rows that verified drafts, over all steps. num_draft_tokens, num_accepted_tokens: drafts, and those that
            counted.
        accepted_at: drafts that counted by their place behind the row's token, first = 0.
        num_rows: decode rows of all steps, with drafts or without. num_tokens: what they emitted.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)
    num_rows: int = 0
    num_tokens: int = 0

    def copy(self) -> "DraftTotals":
        """The caller's own."""
        return replace(self, accepted_at=self.accepted_at[:])


class Drafting:
    """One executor's.

    Attributes:
        depth: most drafts of a row in a step.
        rate: i64 [num_slots], chance that the next draft of the slot's sequence is right.
        mean_rate: of all rows, for newcomers.
        costs: of its steps, without guessing. draft_costs: of guessing, by the number of drafts.
        is_on: whether the last step that decoded drafted, but for probes.
        totals: for metrics.
    """

    def __init__(self, *, depth: int, num_slots: int, adaptive: bool) -> None:
        """Not `adaptive`: every row gets `depth` drafts in every step."""
        self.depth = depth
        self.rate: I64 = np.full(num_slots, PRIOR, np.int64)
        self.mean_rate = PRIOR
        self.costs = StepCosts()
        self.draft_costs = StepCosts()
        self.is_on = False
        self.totals = DraftTotals(accepted_at=[0] * depth)
        self._adaptive = adaptive

    def enter(self, slot: int) -> None:
        """Another sequence lives in the slot."""
        self.rate[slot] = self.mean_rate

    def choose(self, slots: I64, *, step: int, num_others: int) -> I64 | None:
        """Drafts of each row, i64 [R]; None = nobody drafts. `num_others`: tokens that the step feeds besides. Changes nothing."""
        if not self._adaptive:
            return np.full(len(slots), self.depth, np.int64)
        lens, promise = self._worthwhile(slots, step=step, num_others=num_others)
        wanted = promise > (0 if self.is_on else ONE // MARGIN)
        if step % PROBE_EVERY == 0:
            return None if wanted else self._probe(len(slots), turn=step // PROBE_EVERY)
        return lens if wanted else None

    def _probe(self, num_rows: int, *, turn: int) -> I64:
        """One draft for one row of PROBED, another each time: a row that has not drafted for long has much to catch up on."""
        rows = np.arange(num_rows)
        drafts: I64 = ((rows - turn) % min(PROBED, num_rows) == 0).astype(np.int64)
        return drafts

    def sent(self, *, step: int, drafted: bool) -> None:
        """A plan with decode rows is on its way."""
        if step % PROBE_EVERY:
            self.is_on = drafted

    def _worthwhile(self, slots: I64, *, step: int, num_others: int) -> tuple[I64, int]:
        """Drafts of each row, and how many more tokens a nanosecond they promise than none: 1/65536 of what none give."""
        count = len(slots)
        fed = count + num_others
        alone, cost = self.costs.of(count), self.costs.of(fed)
        price = (self.costs.of(fed + count) - cost + self.draft_costs.of(count)) * ONE // alone
        rate = self.rate[slots]
        rate = np.where((slots + step) % PROBE_EVERY == 0, np.maximum(rate, PRIOR), rate)
        chance, lens, gain = np.full(count, ONE, np.int64), np.zeros(count, np.int64), 0
        for _ in range(self.depth):
            chance = chance * rate >> 16
            more = chance > price
            if not more.any():
                break
            lens += more
            gain += int(chance[more].sum())
        if not gain:
            return lens, -ONE
        num_drafts = int(lens.sum())
        drafted = max(1, alone + self.costs.of(fed + num_drafts) - cost + self.draft_costs.of(num_drafts))
        return lens, (count * ONE + gain) * alone // (count * drafted) - ONE

    def verified(self, slot: int, *, num_drafted: int, num_accepted: int) -> None:
        """A row verified `num_drafted` drafts, of which the first `num_accepted` were right."""
        if not num_drafted:
            return
        tried = min(num_drafted, num_accepted + 1)
        rate, hits = int(self.rate[slot]), ONE * num_accepted
        self.rate[slot] = min(ONE, max(0, rate + ((hits - rate * tried) >> MEMORY)))
        totals = self.totals
        known = min(1 << (MEMORY + 4), FEW + totals.num_drafts)
        self.mean_rate = min(ONE, max(0, self.mean_rate + (hits - self.mean_rate * tried) // known))
        totals.num_drafts += 1
        totals.num_draft_tokens += num_drafted
        totals.num_accepted_tokens += num_accepted
        for place in range(num_accepted):
            totals.accepted_at[place] += 1

    def data(self) -> dict[str, Any]:
        """Plain data, the caller's own."""
        totals = self.totals
        return {
            "rate": self.rate.tolist(),
            "mean_rate": self.mean_rate,
            "is_on": self.is_on,
            "costs": [[place, *known] for place, known in sorted(self.costs.known.items())],
            "draft_costs": [[place, *known] for place, known in sorted(self.draft_costs.known.items())],
            "emitted": [totals.num_rows, totals.num_tokens],
            "totals": [totals.num_drafts, totals.num_draft_tokens, totals.num_accepted_tokens, *totals.accepted_at],
        }

    def restore(self, data: dict[str, Any]) -> None:
        """What `data` gave."""
        self.rate[:] = data["rate"]
        self.mean_rate, self.is_on = data["mean_rate"], data["is_on"]
        self.costs.known = {place: (ns, tokens) for place, ns, tokens in data["costs"]}
        self.draft_costs.known = {place: (ns, tokens) for place, ns, tokens in data.get("draft_costs", ())}
        drafts, tokens, accepted, *places = data["totals"]
        self.totals = DraftTotals(drafts, tokens, accepted, places, *data.get("emitted", (0, 0)))
