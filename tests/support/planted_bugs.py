"""Bugs planted into the scheduler core, one at a time; ALL has the executor's too. Each knows where it must show: step, row, slot.

`tests/fixtures/make_recordings.py` records a session with each; the audit must find it in the recording alone.
"""

import heapq

from drumline.plan.v1.plan_pb2 import StepPlan, StepResult
from tests.support.planted_executor_bugs import ExecutorLeak, SkippedAlive, StaleLength, SwappedRows
from tests.support.recorded_session import Bug, Session, books_of, slots_of


class LeakedBlock(Bug):
    """The core forgets one block of a sequence that ended, and runs out of blocks before it should."""

    name = "leaked block"

    def before_schedule(self, session: Session, executor_id: int) -> None:
        books = books_of(session)
        if not self.fired_step and books.pending_freed and books.kv.pool.empty and books.next_step > 12:
            self.block = books.kv.pool.empty.pop()
            books.kv.pool.refs[self.block] = 1
            self.fired_step, self.slot = books.next_step, books.pending_freed[-1]


class BlockOwnedTwice(Bug):
    """The core hands out a block that somebody holds."""

    name = "block owned twice"

    def before_schedule(self, session: Session, executor_id: int) -> None:
        books = books_of(session)
        if self.block < 0 and books.next_step > 10 and books.decoding:
            self.block = books.decoding[0].blocks[0]
            books.kv.pool.empty.appendleft(self.block)

    def plan(self, session: Session, plan: StepPlan) -> StepPlan:
        if not self.fired_step and self.block >= 0 and self.block in plan.block_id:
            at = list(plan.block_id).index(self.block)
            self.fired_step, self.row = plan.step_id, plan.block_row[at]
            self.slot = slots_of(plan, session)[self.row]
        return plan


class LostAbort(Bug):
    """The core never hears of an abort."""

    name = "lost abort"

    def abort(self, session: Session, keys: list[int]) -> list[int]:
        seq = session.core.sequences.get(keys[0])
        if self.fired_step or seq is None or seq.slot < 0:
            return keys
        self.fired_step, self.slot = books_of(session).next_step, seq.slot
        return []

    def plan(self, session: Session, plan: StepPlan) -> StepPlan:
        if plan.step_id == self.fired_step:
            self.row = slots_of(plan, session).index(self.slot)
        return plan


class RowAfterEnd(Bug):
    """The core overlooks that a sequence has finished and goes on scheduling it."""

    name = "row scheduled after its end"

    def core_result(self, session: Session, result: StepResult, plan: StepPlan) -> StepResult:
        books = books_of(session)
        if self.slot is None and len(result.finished_row) == 1:
            row = result.finished_row[0]
            slot = slots_of(plan, session)[row]
            if books.cols.upper[slot] < books.cols.limit[slot]:
                self.slot = slot
                del result.finished_row[:], result.finish_reason[:]
                # the core would notice the freed blocks otherwise
                result.num_blocks_in_use += len(books.tables.by_slot[slot])
        return result

    def plan(self, session: Session, plan: StepPlan) -> StepPlan:
        slots = slots_of(plan, session)
        if self.slot is not None and not self.fired_step and self.slot in slots:
            self.fired_step, self.row = plan.step_id, slots.index(self.slot)
        return plan


class SlotReusedEarly(Bug):
    """The core gives a slot away while a plan that names it is unanswered."""

    name = "slot reused too early"

    def before_schedule(self, session: Session, executor_id: int) -> None:
        books = books_of(session)
        named = {int(slot) for flight in books.in_flight for slot in flight.rows.slots}
        for slot in books.pending_freed:
            if not self.fired_step and slot in named and slot not in books.free_slots:
                heapq.heappush(books.free_slots, slot)

    def plan(self, session: Session, plan: StepPlan) -> StepPlan:
        again = {new.slot for new in plan.new_sequences} & set(plan.freed_slots)
        if again and not self.fired_step:
            self.fired_step, self.slot = plan.step_id, min(again)
            self.row = slots_of(plan, session).index(self.slot)
        return plan


class BudgetExceeded(Bug):
    """The core fills one step beyond its token budget."""

    name = "budget exceeded"

    def before_schedule(self, session: Session, executor_id: int) -> None:
        books = books_of(session)
        books.budget = 96 if books.next_step > 4 and not self.fired_step else 64

    def plan(self, session: Session, plan: StepPlan) -> StepPlan:
        if not self.fired_step and sum(plan.num_tokens) > 64:
            self.fired_step = plan.step_id
        return plan


class InFlightExceeded(Bug):
    """The core sends one plan more than its bound."""

    name = "in-flight bound exceeded"

    def before_schedule(self, session: Session, executor_id: int) -> None:
        books = books_of(session)
        bound = 3 if books.next_step > 9 and not self.fired_step else 2
        session.core.policy.plans_in_flight = lambda limits: bound  # type: ignore[method-assign]

    def plan(self, session: Session, plan: StepPlan) -> StepPlan:
        if not self.fired_step and len(books_of(session).in_flight) == 3:
            self.fired_step = plan.step_id
        return plan


class LateFree(Bug):
    """The core gives the slot of a finished sequence back one plan late."""

    name = "late free"
    kept: list[int] | None = None

    def before_schedule(self, session: Session, executor_id: int) -> None:
        books = books_of(session)
        if self.kept is None and books.pending_freed and books.next_step > 8 and (books.decoding or books.prefilling):
            if len(books.in_flight) < 2:
                self.kept, books.pending_freed = books.pending_freed, []
                self.fired_step, self.slot = books.next_step, self.kept[0]
        elif self.kept and books.next_step > self.fired_step:
            books.pending_freed, self.kept = self.kept + books.pending_freed, []


class LostToken(Bug):
    """The core forgets the last token of a preempted sequence."""

    name = "lost token"
    change = -1

    def before_schedule(self, session: Session, executor_id: int) -> None:
        resumed = [seq for seq in session.core.queue.resumed if seq.num_emitted > 1]
        if self.slot is None and resumed:
            if self.change < 0:
                resumed[0].tokens.pop()
            else:
                resumed[0].tokens.append(resumed[0].tokens[-1])
            self.slot, self.key = -1, resumed[0].key

    def plan(self, session: Session, plan: StepPlan) -> StepPlan:
        if self.slot == -1:
            seq = session.core.sequences[self.key]
            if seq.slot >= 0 and any(new.slot == seq.slot for new in plan.new_sequences):
                self.fired_step, self.slot = plan.step_id, seq.slot
                self.row = slots_of(plan, session).index(seq.slot)
        return plan


class DoubledToken(LostToken):
    """The core counts the last token of a preempted sequence twice."""

    name = "doubled token"
    change = 1


class WrongBasedOn(Bug):
    """A plan claims that it has not seen the last result."""

    name = "wrong based_on"

    def plan(self, session: Session, plan: StepPlan) -> StepPlan:
        if not self.fired_step and plan.step_id > 10:
            plan.based_on_result_step -= 1
            self.fired_step = plan.step_id
        return plan


class TenantsShare(Bug):
    """The core leaves the tenant out of the prefix cache's key."""

    name = "prefix hit on other content"

    def before_schedule(self, session: Session, executor_id: int) -> None:
        for seq in session.core.queue:
            object.__setattr__(seq.request, "tenant", "")

    def plan(self, session: Session, plan: StepPlan) -> StepPlan:
        for new in plan.new_sequences:
            seq = next(seq for seq in session.core.sequences.values() if seq.slot == new.slot)
            if not self.fired_step and seq.key == 2 and new.num_cached_tokens:
                self.fired_step, self.slot = plan.step_id, new.slot
                self.row = slots_of(plan, session).index(new.slot)
        return plan


ALL: tuple[type[Bug], ...] = (
    LeakedBlock,
    BlockOwnedTwice,
    SwappedRows,
    StaleLength,
    LostAbort,
    RowAfterEnd,
    SlotReusedEarly,
    BudgetExceeded,
    InFlightExceeded,
    LateFree,
    LostToken,
    DoubledToken,
    WrongBasedOn,
    ExecutorLeak,
    SkippedAlive,
    TenantsShare,
)
