"""Bugs planted into the executor: what it reports is not what it did. See `planted_bugs`."""

from drumline.plan.v1.plan_pb2 import StepPlan, StepResult
from tests.support.recorded_session import Bug, Session, slots_of

DECODE = 3


class SwappedRows(Bug):
    """The executor gives two rows each other's result."""

    name = "swapped rows"

    def result(self, session: Session, result: StepResult, plan: StepPlan) -> StepResult:
        if (
            not self.fired_step
            and plan.step_id > 8
            and len(result.length) > 1
            and len(set(result.length[:2])) == 2
            and not result.skipped_row
        ):
            result.length[0], result.length[1] = result.length[1], result.length[0]
            self.fired_step, self.row, self.slot = plan.step_id, 0, slots_of(plan, session)[0]
        return result


class StaleLength(Bug):
    """The executor reports a row's length from before the step."""

    name = "stale length"

    def result(self, session: Session, result: StepResult, plan: StepPlan) -> StepResult:
        if not self.fired_step and plan.step_id > 8 and len(result.length) > 1 and not result.skipped_row:
            kinds = list(plan.row_kind) or [DECODE] * len(result.length)
            if kinds[1] == DECODE:
                result.length[1] -= 1
                self.fired_step, self.row, self.slot = plan.step_id, 1, slots_of(plan, session)[1]
        return result


class ExecutorLeak(Bug):
    """The executor keeps a block of a sequence that ended."""

    name = "leaked block"

    def result(self, session: Session, result: StepResult, plan: StepPlan) -> StepResult:
        if not self.fired_step and plan.step_id > 8 and plan.freed_slots:
            result.num_blocks_in_use += 1
            self.fired_step = plan.step_id
        return result


class SkippedAlive(Bug):
    """The executor skips a row whose sequence lives."""

    name = "row skipped while alive"

    def result(self, session: Session, result: StepResult, plan: StepPlan) -> StepResult:
        if not self.fired_step and plan.step_id > 8 and len(result.length) > 1 and not (result.skipped_row or result.finished_row):
            counts = list(result.num_emitted) or [1] * len(result.length)
            if counts[0]:
                del result.token_ids[0]
            counts[0] = 0
            del result.num_emitted[:]
            result.num_emitted.extend(counts)
            result.length[0] = 0
            result.skipped_row.append(0)
            self.fired_step, self.row, self.slot = plan.step_id, 0, slots_of(plan, session)[0]
        return result
