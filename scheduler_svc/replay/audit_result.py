"""Judges results: order, lengths, tokens, ends, skips. A result is held against its plan and against what earlier results said."""

from drumline.plan.v1.plan_pb2 import ADVANCE_COHORT, StepResult
from scheduler_svc.replay.books import DECODE, PREFILL, Books, Desk, Row, Step
from scheduler_svc.replay.findings import Finding, Name

FINISH_LENGTH = 2


class ResultAudit:
    """Applies results to the books and names what is wrong with them."""

    def __init__(self, books: Books, findings: list[Finding]) -> None:
        self._books = books
        self._findings = findings

    def result(self, executor_id: int, result: StepResult, *, t_ns: int) -> Step | None:
        """One result; the step it answers, or None where it answers none."""
        desk = self._books.desks.get(executor_id)
        if desk is None:
            return None
        if not desk.outstanding or desk.outstanding[0].plan.step_id != result.step_id:
            want = desk.outstanding[0].plan.step_id if desk.outstanding else "none"
            self._name(
                Name.WRONG_STEP, executor_id, result.step_id, None, None, f"result of step {result.step_id}, expected {want}"
            )
            return None
        step = desk.outstanding.popleft()
        step.result, step.result_t_ns = result, t_ns
        desk.last_result = int(result.step_id)
        self._check_rows(step, result)
        in_use = self._follow_tables(desk, step, result)
        if result.num_blocks_in_use != in_use:
            name = Name.LEAKED_BLOCK if result.num_blocks_in_use > in_use else Name.BLOCKS_TOO_SHORT
            detail = f"the executor's tables name {result.num_blocks_in_use} blocks, by the plans it is {in_use}"
            self._name(name, executor_id, int(result.step_id), None, None, detail)
        desk.leaving = [resident for resident in desk.leaving if resident.num_unanswered]
        return step

    def _follow_tables(self, desk: Desk, step: Step, result: StepResult) -> int:
        """What the executor's own tables must be after this step; the number of blocks they name."""
        plan, skipped = step.plan, set(result.skipped_row)
        for slot in (*plan.freed_slots, *plan.aborted_slots):
            desk.live.pop(slot, None)
        for new in plan.new_sequences:
            desk.live[new.slot] = []
        for row, block in zip(plan.block_row, plan.block_id, strict=False):
            if row < len(step.rows) and row not in skipped:
                desk.live.setdefault(step.rows[row].resident.slot, []).append(block)
        for row in (*result.finished_row, *skipped, *(error.row for error in result.row_errors)):
            if row < len(step.rows):
                desk.live.pop(step.rows[row].resident.slot, None)
        return len({block for blocks in desk.live.values() for block in blocks})

    def _check_rows(self, step: Step, result: StepResult) -> None:
        skipped = set(result.skipped_row)
        errors = {error.row: error for error in result.row_errors}
        ends = dict(zip(result.finished_row, result.finish_reason, strict=False))
        counts = list(result.num_emitted) or [1] * len(step.rows)
        at = 0
        expected = self._expected_lengths(step, result)
        for index, row in enumerate(step.rows):
            row.resident.num_unanswered -= 1
            count = counts[index] if index < len(counts) else 0
            tokens = list(result.token_ids[at : at + count])
            at += count
            if index in skipped:
                self._skipped(step, index, row)
                continue
            if row.resident.ended_step:
                detail = f"its sequence ended in step {row.resident.ended_step}"
                self._row(Name.RAN_AFTER_END, step, index, detail)
                continue
            if index not in errors:
                self._length(step, index, expected, result)
                self._tokens(step, index, row, tokens, ends=ends)
            if not (row.resident.discarded or row.resident.life.aborted):
                row.resident.life.tokens.extend(tokens)
            if index in errors or index in ends:
                how = errors[index].error.code if index in errors else ("stop" if ends[index] != FINISH_LENGTH else "length")
                self._books.end(row.resident, how, step=int(result.step_id))

    def _skipped(self, step: Step, index: int, row: Row) -> None:
        resident = row.resident
        if not resident.ended_step and not resident.freed_step and not resident.assumed:
            self._row(Name.SKIPPED_ALIVE, step, index, "no earlier result ended its sequence and no plan withdrew it")

    def _expected_lengths(self, step: Step, result: StepResult) -> list[int | None]:
        """Of each row, None where nobody knows it; what a decode row keeps of its plan's tokens comes off its `upper`."""
        size, plan = len(step.rows), step.plan
        drafts = list(plan.draft_len) or [0] * size
        accepted = list(result.num_accepted) or [0] * size
        kept = [row.num_tokens - drafts[index] + accepted[index] for index, row in enumerate(step.rows)]
        idle = {*result.skipped_row, *(error.row for error in result.row_errors)}
        decodes = [index for index, row in enumerate(step.rows) if row.kind == DECODE]
        if plan.advance == ADVANCE_COHORT:  # all move by the slowest
            least = min((kept[index] for index in decodes if index not in idle), default=0)
            kept = [least if row.kind == DECODE else own for row, own in zip(step.rows, kept, strict=True)]
        for index in decodes:
            step.rows[index].resident.upper -= step.rows[index].num_tokens - kept[index]
        begins = [row.resident.length if row.kind == DECODE else row.start for row in step.rows]
        unknown = [row.resident.assumed and row.kind == DECODE for row in step.rows]
        return [None if lost else begin + own for lost, begin, own in zip(unknown, begins, kept, strict=True)]

    def _length(self, step: Step, index: int, expected: list[int | None], result: StepResult) -> None:
        """Names a length by what it looks like: another row's, the one before this step, or merely wrong."""
        want, resident = expected[index], step.rows[index].resident
        got = result.length[index] if index < len(result.length) else None
        if want is None:
            resident.assumed = resident.assumed and got is None
            resident.length = resident.upper = got or 0
            return
        before, resident.length = resident.length, want
        if got == want:
            return
        other = next((i for i, length in enumerate(result.length) if length == want and expected[i] == got and i != index), None)
        if other is not None:
            self._row(Name.SWAPPED_ROWS, step, index, f"length {got} belongs to row {other}, whose result has this row's {want}")
        elif got == before:
            self._row(Name.STALE_LENGTH, step, index, f"length {got} is the one before this step; expected {want}")
        else:
            self._row(Name.WRONG_LENGTH, step, index, f"length {got}, expected {want}")

    def _tokens(self, step: Step, index: int, row: Row, tokens: list[int], *, ends: dict[int, int]) -> None:
        life = row.resident.life
        if row.resident.assumed or not life.sampling:
            return
        want = 0 if row.kind == PREFILL or life.max_tokens == 0 else 1
        if len(tokens) < want:
            self._row(Name.LOST_TOKEN, step, index, f"emitted {len(tokens)} tokens, expected {want}")
        elif len(tokens) > want + (step.plan.draft_len[index] if want and index < len(step.plan.draft_len) else 0):
            self._row(Name.DOUBLED_TOKEN, step, index, f"emitted {len(tokens)} tokens, expected {want}")
        if life.aborted:
            return  # an executor that has not heard of it yet goes on; nobody counts what it emits
        num_emitted = life.num_emitted + len(tokens)
        if num_emitted > life.max_tokens:
            self._row(Name.TOO_MANY_TOKENS, step, index, f"{num_emitted} tokens, max_tokens is {life.max_tokens}")
        full = len(life.tokens) + len(tokens) >= self._books.desks[step.executor_id].caps.max_model_len
        if ends.get(index) == FINISH_LENGTH and num_emitted < life.max_tokens and not full:
            self._row(Name.ENDED_EARLY, step, index, f"ended for length after {num_emitted} of {life.max_tokens} tokens")

    def _row(self, name: Name, step: Step, index: int, detail: str) -> None:
        resident = step.rows[index].resident
        self._name(name, step.executor_id, int(step.plan.step_id), index, resident.slot, detail, resident.life.request_id)

    def _name(
        self, name: Name, executor_id: int, step: int, row: int | None, slot: int | None, detail: str, request_id: str = ""
    ) -> None:
        self._findings.append(Finding(name, executor_id, int(step), row, slot, request_id, detail))
