"""The executor's block tables as of its last result, followed plan by plan, to cross-check its own count of blocks in use."""

from collections.abc import Collection

from scheduler_svc.core.rows import PlanInFlight


class ExecutorTables:
    """Which blocks live slots name on the executor. A slot lives from the plan that brings its sequence until that sequence
    finishes or fails there, or a plan frees or aborts it. Blocks given to a skipped row are not appended.

    Attributes:
        by_slot: block table per live slot.
        num_in_use: distinct blocks named.
    """

    def __init__(self, num_blocks: int) -> None:
        self.by_slot: dict[int, list[int]] = {}
        self._count = [0] * num_blocks
        self.num_in_use = 0

    def follow(self, flight: PlanInFlight, *, skipped: Collection[int], ended: Collection[int]) -> int:
        """What a plan did: rows `skipped` did not run, rows `ended` finished or failed. Returns `num_in_use`."""
        plan, slots = flight.plan, flight.rows.slots
        for slot in plan.freed_slots:
            self.end(slot)
        for slot in plan.aborted_slots:
            self.end(slot)
        for new in plan.new_sequences:
            self.by_slot[new.slot] = []
        by_slot, count = self.by_slot, self._count
        for row, block in zip(plan.block_rows, plan.block_ids, strict=True):
            if row not in skipped:
                by_slot[slots[row]].append(block)
                self.num_in_use += not count[block]
                count[block] += 1
        for row in (*skipped, *ended):
            self.end(slots[row])
        return self.num_in_use

    def append(self, slot: int, block: int) -> None:
        """One block behind the slot's table."""
        self.by_slot[slot].append(block)
        self.num_in_use += self._count[block] == 0
        self._count[block] += 1

    def end(self, slot: int) -> None:
        """The slot names no blocks any more; nothing happens when it already named none."""
        for block in self.by_slot.pop(slot, ()):
            self._count[block] -= 1
            self.num_in_use -= self._count[block] == 0
