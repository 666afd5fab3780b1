"""Columns that runs stand for are the columns that plain arithmetic gives, whoever looks when."""

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from scheduler_svc.core.columns import SlotColumns

NUM_SLOTS = 6
BLOCK_SIZE = 4
ROWS = ([0, 1, 2, 3], [3, 1], [5], [0, 1, 2, 3, 4, 5])
LOOKS = ("upper", "confirmed", "last_step")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(0, len(ROWS) - 1), st.integers(1, 90)),
        st.tuples(st.just("plans"), st.integers(0, len(ROWS) - 1), st.integers(1, 3)),
        st.tuples(st.just("look"), st.sampled_from(LOOKS)),
        st.tuples(st.just("write"), st.integers(0, NUM_SLOTS - 1)),
    ),
    min_size=3,
    max_size=12,
)


class Twin:
    """The columns, and one plain list for each of them."""

    def __init__(self, starts: list[int]) -> None:
        self.cols = SlotColumns(NUM_SLOTS, block_size=BLOCK_SIZE)
        self.slots = [np.array(rows, np.int64) for rows in ROWS]
        self.upper, self.confirmed = list(starts), list(starts)
        self.capacity = [start + start % 9 for start in starts]
        self.limit = [start + 150 for start in starts]
        self.tokens: list[list[int]] = [[] for _ in starts]
        self.step = 0
        self.last_step = [0] * NUM_SLOTS
        self.untold: set[int] = set()
        """Slots whose newest token no decode emitted: what `recent` has of them ends before it."""
        self.cols.upper[:] = self.cols.confirmed[:] = starts
        self.cols.capacity[:], self.cols.limit[:] = self.capacity, self.limit

    def plan(self, which: int) -> bool:
        rows, slots, cols = ROWS[which], self.slots[which], self.cols
        if any(self.upper[slot] >= self.limit[slot] for slot in rows):
            return False
        short = cols.short_of_blocks(slots)
        assert short == [row for row, slot in enumerate(rows) if self.upper[slot] >= self.capacity[slot]]
        if short:
            cols.grow(slots, short)
        self.step += 1
        cols.plan(slots, step=self.step)
        for row, slot in enumerate(rows):
            self.capacity[slot] += BLOCK_SIZE * (row in short)
            self.upper[slot] += 1
            self.last_step[slot] = self.step
        return True

    def result(self, which: int) -> None:
        rows, slots, cols = ROWS[which], self.slots[which], self.cols
        lengths = cols.expected(slots).copy()
        assert lengths.tolist() == [self.confirmed[slot] + 1 for slot in rows]
        assert cols.at_limit(slots, lengths=lengths) == [
            row for row, slot in enumerate(rows) if self.confirmed[slot] + 1 >= self.limit[slot]
        ]
        full = [row for row, slot in enumerate(rows) if (self.confirmed[slot] + 1) % cols.window == 0]
        assert cols.full_windows(slots, lengths=lengths) == full
        cols.decoded(slots, lengths=lengths, token_ids=[1000 * self.step + slot for slot in rows])
        for slot in rows:
            self.confirmed[slot] += 1
            self.tokens[slot].append(1000 * self.step + slot)
            self.untold.discard(slot)

    def check(self) -> None:
        cols, slots = self.cols, range(NUM_SLOTS)
        assert [cols.upper_of(slot) for slot in slots] == self.upper
        assert [cols.confirmed_of(slot) for slot in slots] == self.confirmed
        assert [cols.last_step_of(slot) for slot in slots] == self.last_step
        copies = cols.copies()
        assert copies["upper"].tolist() == self.upper
        assert copies["confirmed"].tolist() == self.confirmed
        assert copies["last_step"].tolist() == self.last_step
        assert copies["capacity"].tolist() == self.capacity
        for slot in set(slots) - self.untold:
            kept = self.tokens[slot][-cols.window :]
            behind = self.confirmed[slot] + 1 - len(kept)
            assert np.frombuffer(cols.tokens_after(slot, behind), np.uint32).tolist() == kept


@settings(deadline=None, max_examples=600)
@given(starts=st.lists(st.integers(1, 70), min_size=NUM_SLOTS, max_size=NUM_SLOTS), steps=STEPS)
def test_runs_are_plain_arithmetic(starts, steps):
    twin = Twin(starts)
    for step in steps:
        if step[0] == "steps":
            for _ in range(step[2]):
                if twin.plan(step[1]):
                    twin.result(step[1])
                    event("a result run", twin.cols._results is not None)
        elif step[0] == "plans":
            done = sum(twin.plan(step[1]) for _ in range(step[2]))
            twin.check()
            for _ in range(done):
                twin.result(step[1])
        elif step[0] == "look":
            assert getattr(twin.cols, step[1]).tolist() == getattr(twin, step[1])
        elif twin.upper[step[1]] + 2 < twin.limit[step[1]]:  # what a prefill row or a newcomer does
            slot = step[1]
            twin.step += 1
            twin.cols.feed(slot, end=twin.upper[slot] + 1, step=twin.step)
            twin.cols.confirm(slot, length=twin.confirmed[slot] + 1)
            twin.last_step[slot] = twin.step
            twin.upper[slot] += 1
            twin.confirmed[slot] += 1
            twin.tokens[slot] = []
            twin.untold.add(slot)
            if twin.upper[slot] > twin.capacity[slot]:
                twin.cols.capacity[slot] += BLOCK_SIZE
                twin.capacity[slot] += BLOCK_SIZE
        twin.check()
