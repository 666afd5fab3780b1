"""How a scripted executor runs one plan after the other, and what it checks of the contract of the seam meanwhile."""

from collections.abc import Callable

from drumline.common.v1 import common_pb2
from drumline.errors import PlanRejected
from drumline.executor.v1 import executor_pb2 as pb
from drumline.plan.v1 import plan_pb2
from tests.support.scripted_tokens import Resident, next_token

PREFILL, PREFILL_LAST, DECODE = 1, 2, 3


class Script:
    """What happens to rows; may be changed at any moment.

    Attributes:
        delay_s: time that each step takes.
        ends_early: (resident) -> bool, asked after each token: finish with STOP.
        fails: (resident) -> str, asked before each row: a message fails that row.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.ends_early: Callable[[Resident], bool] = lambda resident: False
        self.fails: Callable[[Resident], str] = lambda resident: ""


class Steps:
    """The slots of one session. `violations` is the executor's list; nothing is ever taken from it."""

    def __init__(self, script: Script, caps: pb.GetCapabilitiesResponse, violations: list[str]) -> None:
        self.residents: dict[int, Resident] = {}
        self.violations = violations
        self._script = script
        self._caps = caps
        self._last_step = 0
        self._rows: list[int] = []

    def _complain(self, plan: plan_pb2.StepPlan, what: str) -> None:
        self.violations.append(f"step {plan.step_id}: {what}")

    def apply(self, plan: plan_pb2.StepPlan, *, session_epoch: int) -> plan_pb2.StepResult:
        """Runs a plan; what is wrong with it lands in `violations`."""
        if plan.step_id != self._last_step + 1:
            raise PlanRejected(f"step {plan.step_id} after {self._last_step}")
        self._last_step = plan.step_id
        residents = self.residents
        for slot in plan.freed_slots:
            if residents.pop(slot, None) is None:
                self._complain(plan, f"frees empty slot {slot}")
        for slot in plan.aborted_slots:
            if residents.pop(slot, None) is None:
                self._complain(plan, f"aborts empty slot {slot}")
        for new in plan.new_sequences:
            if new.slot in residents:
                self._complain(plan, f"slot {new.slot} is taken")
            residents[new.slot] = Resident(list(new.token_ids), new.num_prompt_tokens, new.sampling, new.num_cached_tokens)
        slots, kinds, nums, starts = self._rows_of(plan)
        for row, block in zip(plan.block_row, plan.block_id, strict=True):
            if slots[row] in residents and not residents[slots[row]].ended:
                residents[slots[row]].blocks.append(block)
        if sum(nums) > self._caps.max_num_batched_tokens:
            self._complain(plan, f"{sum(nums)} tokens in one step")
        result = plan_pb2.StepResult(step_id=plan.step_id, session_epoch=session_epoch)
        emitted = [
            self._row(plan, result, row, *columns) for row, columns in enumerate(zip(slots, kinds, nums, starts, strict=True))
        ]
        if any(count != 1 for count in emitted):
            result.num_emitted.extend(emitted)
        self._check_blocks(plan)
        result.num_blocks_in_use = len(
            {block for resident in residents.values() for block in resident.blocks if not resident.ended}
        )
        result.timing.forward_ns = int(self._script.delay_s * 1e9)
        return result

    def _rows_of(self, plan: plan_pb2.StepPlan) -> tuple[list[int], list[int], list[int], list[int]]:
        if plan.repeat_rows:
            num = len(self._rows)
            return self._rows, [DECODE] * num, [1] * num, [0] * num
        self._rows = list(plan.slot) or self._rows
        return list(plan.slot), list(plan.row_kind), list(plan.num_tokens), list(plan.start)

    def _row(self, plan, result, row: int, slot: int, kind: int, num: int, start: int) -> int:
        """Runs one row; returns how many tokens it emitted."""
        resident = self.residents.get(slot)
        if resident is None or resident.ended:
            if resident is not None:
                resident.blocks = []
            result.skipped_row.append(row)
            result.length.append(0)
            return 0
        if message := self._script.fails(resident):
            return self._fail(result, row, resident, message)
        if not self._may_run(plan, resident, slot, kind, num, start):
            return self._fail(result, row, resident, "start mismatch")
        resident.length += num
        result.length.append(resident.length)
        if kind == PREFILL or not resident.sampling.max_tokens:
            if kind == PREFILL_LAST:
                self._finish(result, row, resident, common_pb2.FINISH_REASON_LENGTH)
            return 0
        token = next_token(resident.tokens, resident.sampling.seed)
        resident.tokens.append(token)
        result.token_ids.append(token)
        if resident.sampling.logprobs:
            result.logprobs.add(row=row, token_ids=[token], logprobs=[-0.5])
        if token in resident.sampling.stop_token_ids or self._script.ends_early(resident):
            self._finish(result, row, resident, common_pb2.FINISH_REASON_STOP)
        elif resident.num_emitted >= resident.sampling.max_tokens:
            self._finish(result, row, resident, common_pb2.FINISH_REASON_LENGTH)
        return 1

    def _may_run(self, plan, resident: Resident, slot: int, kind: int, num: int, start: int) -> bool:
        """Complains about a row that starts in the wrong place or outgrows its blocks; a chunk in the wrong place cannot run."""
        if resident.length + num > len(resident.blocks) * self._caps.block_size:
            self._complain(plan, f"slot {slot} is longer than its blocks")
        if kind == DECODE:
            if resident.length != len(resident.tokens) - 1:
                self._complain(plan, f"decodes slot {slot} before its prefill is done")
            return True
        if start == resident.length and start + num <= len(resident.tokens):
            return True
        self._complain(plan, f"chunk {start}+{num} of slot {slot} at length {resident.length}")
        return False

    def _fail(self, result, row: int, resident: Resident, message: str) -> int:
        resident.ended = True
        result.length.append(resident.length)
        result.row_errors.add(row=row, error=common_pb2.SequenceError(code="internal", message=message))
        return 0

    def _finish(self, result, row: int, resident: Resident, reason: int) -> None:
        resident.ended = True
        result.finished_row.append(row)
        result.finish_reason.append(reason)

    def _check_blocks(self, plan) -> None:
        """A block is written by one sequence only: full prompt blocks may be shared, the rest may not."""
        owners: dict[int, int] = {}
        size = self._caps.block_size
        for slot, resident in self.residents.items():
            for index, block in enumerate(resident.blocks):
                if block >= self._caps.num_blocks:
                    self._complain(plan, f"block {block} does not exist")
                shared = (index + 1) * size <= resident.length
                if not shared and not resident.ended and owners.setdefault(block, slot) != slot:
                    self._complain(plan, f"block {block} is written by slots {owners[block]} and {slot}")
