"""Judges plans: membership, order, bounds, budget. Blocks are judged in `audit_blocks`."""

from collections.abc import Sequence
from typing import Any

from drumline.plan.v1.plan_pb2 import ADVANCE_COHORT, StepPlan
from scheduler_svc.replay.audit_blocks import BlockAudit
from scheduler_svc.replay.books import DECODE, PREFILL, PREFILL_LAST, Books, Desk, Life, Resident, Row, Step, settings_of
from scheduler_svc.replay.findings import Finding, Name


class PlanAudit:
    """Applies inputs and plans to the books and names what is wrong with them."""

    def __init__(self, books: Books, findings: list[Finding], *, settings: dict[str, Any]) -> None:
        self._books = books
        self._findings = findings
        self._in_flight = settings_of(settings, "plans_in_flight", 8)
        self._budget = settings_of(settings, "max_num_batched_tokens", 2**31)
        mixes = settings.get("limits", {}).get("admission", "paged") == "paged"
        self._blocks = BlockAudit(books, findings, budget=self._budget, mixes=mixes)
        self._max_seqs = settings_of(settings, "max_num_seqs", 2**31)
        self._aborts: dict[int, dict[int, Life]] = {}
        self._now_ns = 0

    def abort(self, keys: Sequence[int]) -> None:
        """Requests are withdrawn: a waiting one ends, a resident one must be withdrawn by the next plan of its executor."""
        for key in keys:
            life = self._books.lives.get(key)
            if life is None or life.state == "ended":
                continue
            life.aborted = True
            if life.state == "waiting":
                life.state, life.end = "ended", "aborted"
                continue
            for desk in self._books.desks.values():
                for resident in desk.residents.values():
                    if resident.life is life:
                        self._aborts.setdefault(desk.executor_id, {})[resident.slot] = life

    def tick(self, executor_id: int, *, now_ns: int) -> None:
        """Time passes."""
        del executor_id
        self._now_ns = now_ns

    def lost(self, executor_id: int) -> None:
        """An executor leaves."""
        self._aborts.pop(executor_id, None)
        self._blocks.lost(executor_id)
        self._books.lost(executor_id)

    def plan(self, executor_id: int, plan: StepPlan, *, t_ns: int) -> Step | None:
        """One plan, in the contract's order: frees and aborts, then entries, then rows."""
        desk = self._books.desks.get(executor_id)
        if desk is None:
            self._name(Name.WRONG_STEP, executor_id, plan, None, None, "a plan for an executor that never joined")
            return None
        self._check_order(desk, plan)
        self._check_aborts(desk, plan)
        self._free(desk, plan)
        for new in plan.new_sequences:
            self._check_slot(desk, plan, new.slot)
            resident, matched = self._books.enter(desk, new, step=int(plan.step_id))
            self._check_entry(desk, plan, resident, matched, list(new.token_ids))
        uppers = {slot: (resident.upper, resident.last_step) for slot, resident in desk.residents.items()}
        step = Step(executor_id, plan, list(self._books.rows(desk, plan)), t_ns)
        self._check_rows(desk, step, uppers)
        self._blocks.plan(desk, step)
        desk.outstanding.append(step)
        desk.last_step = int(plan.step_id)
        if step.rows:
            desk.last_rows_step = desk.last_step
        return step

    def answered(self, step: Step) -> None:
        """A result came: what it confirmed can be hit from now on."""
        self._blocks.answered(step)

    def _check_order(self, desk: Desk, plan: StepPlan) -> None:
        def wrong(name: Name, detail: str) -> None:
            self._name(name, desk.executor_id, plan, None, None, detail)

        if plan.step_id != desk.last_step + 1:
            wrong(Name.WRONG_STEP, f"step {plan.step_id} follows step {desk.last_step}")
        desk.epoch = desk.epoch or int(plan.session_epoch)
        if plan.session_epoch != desk.epoch:
            wrong(Name.WRONG_EPOCH, f"session epoch {plan.session_epoch}, the executor's first plan had {desk.epoch}")
        if plan.based_on_result_step != desk.last_result:
            wrong(Name.WRONG_BASED_ON, f"based on result {plan.based_on_result_step}; the last one consumed was {desk.last_result}")
        bound = 1 if plan.advance == ADVANCE_COHORT and plan.draft_len else self._in_flight
        if len(desk.outstanding) >= bound:
            wrong(Name.IN_FLIGHT_EXCEEDED, f"{len(desk.outstanding) + 1} plans in flight, the bound is {bound}")

    def _check_aborts(self, desk: Desk, plan: StepPlan) -> None:
        named = {*plan.aborted_slots, *plan.freed_slots}
        for slot, life in self._aborts.pop(desk.executor_id, {}).items():
            resident = desk.residents.get(slot)
            if slot not in named and resident is not None and resident.life is life and not resident.ended_step:
                row = self._row_of(desk, plan, slot)
                detail = "withdrawn before this plan, which neither aborts nor frees it"
                self._name(Name.LOST_ABORT, desk.executor_id, plan, row, resident, detail)

    def _free(self, desk: Desk, plan: StepPlan) -> None:
        for slot in plan.freed_slots:
            resident = desk.residents.get(slot)
            if resident is not None and resident.num_unanswered and not resident.ended_step and not resident.life.aborted:
                detail = f"{resident.num_unanswered} plans that name it are unanswered"
                self._name(Name.FREED_IN_FLIGHT, desk.executor_id, plan, None, resident, detail)
        for slot in (*plan.freed_slots, *plan.aborted_slots):
            withdrawn = slot in plan.aborted_slots
            resident = self._books.free(desk, slot, step=int(plan.step_id), now_ns=self._now_ns, withdrawn=withdrawn)
            if resident is None:
                self._name(Name.UNKNOWN_SLOT, desk.executor_id, plan, None, None, f"slot {slot} is given back, but nobody holds it")
            elif resident is not None:
                self._blocks.freed(desk, plan, resident)
        for resident in desk.residents.values():
            if resident.ended_step and self._row_of(desk, plan, resident.slot) is None:
                detail = f"its end came with the result of step {resident.ended_step}, but this plan does not free its slot"
                self._name(Name.LATE_FREE, desk.executor_id, plan, None, resident, detail)

    def _check_slot(self, desk: Desk, plan: StepPlan, slot: int) -> None:
        holder = desk.residents.get(slot)
        if holder is not None and not holder.assumed:
            row = self._row_of(desk, plan, slot)
            self._name(Name.SLOT_OCCUPIED, desk.executor_id, plan, row, holder, f"since step {holder.joined_step}")
        for step in desk.outstanding:
            if any(row.resident.slot == slot for row in step.rows):
                row_index = self._row_of(desk, plan, slot)
                detail = f"step {step.plan.step_id}, which names it, is unanswered"
                self._name(Name.SLOT_REUSED_EARLY, desk.executor_id, plan, row_index, None, detail, slot=slot)
                break

    def _check_entry(self, desk: Desk, plan: StepPlan, resident: Resident, matched: Life | None, tokens: list[int]) -> None:
        row = self._row_of(desk, plan, resident.slot)

        def wrong(name: Name, detail: str) -> None:
            self._name(name, desk.executor_id, plan, row, resident, detail)

        if desk.draining:
            wrong(Name.DRAINING_PLACED, "this executor drains")
        if len(desk.residents) > min(self._max_seqs, desk.caps.max_num_seqs):
            wrong(Name.BUDGET_EXCEEDED, f"{len(desk.residents)} residents, at most {self._max_seqs} are allowed")
        if matched is None:
            wrong(self._why_unknown(resident), "no waiting request has this prompt and sampling")
            return
        known = matched.tokens
        if tokens == known:
            return
        agree = next((i for i, (a, b) in enumerate(zip(tokens, known, strict=False)) if a != b), min(len(tokens), len(known)))
        if agree < min(len(tokens), len(known)):
            wrong(Name.CHANGED_TOKEN, f"token {agree} is {tokens[agree]}, results emitted {known[agree]}")
        elif len(tokens) > len(known):
            wrong(Name.DOUBLED_TOKEN, f"enters with {len(tokens)} tokens, prompt and results made {len(known)}")
        else:
            wrong(Name.LOST_TOKEN, f"enters with {len(tokens)} tokens, prompt and results made {len(known)}")

    def _why_unknown(self, resident: Resident) -> Name:
        twins = [
            life for life in self._books.lives.values() if life.sampling == resident.life.sampling and life is not resident.life
        ]
        return Name.ABORTED_PLACED if any(life.aborted for life in twins) else Name.UNKNOWN_SEQUENCE

    def _check_rows(self, desk: Desk, step: Step, uppers: dict[int, tuple[int, int]]) -> None:
        plan, seen = step.plan, set[int]()
        for index, row in enumerate(step.rows):
            resident = row.resident
            if resident.slot in seen:
                self._name(Name.ROW_TWICE, desk.executor_id, plan, index, resident, "named by an earlier row of this plan")
            seen.add(resident.slot)
            if resident.assumed and resident.slot not in uppers:
                self._name(Name.UNKNOWN_SLOT, desk.executor_id, plan, index, resident, "no sequence entered it")
                continue
            if resident.ended_step:
                detail = f"its end came with the result of step {resident.ended_step}, before this plan"
                self._name(Name.ROW_AFTER_END, desk.executor_id, plan, index, resident, detail)
            elif not resident.assumed:
                self._check_row(desk, plan, index, row, upper=uppers[resident.slot][0])
        num_tokens = sum(row.num_tokens for row in step.rows)
        bound = min(self._budget, desk.caps.max_num_batched_tokens)
        if num_tokens > bound:
            self._name(Name.BUDGET_EXCEEDED, desk.executor_id, plan, None, None, f"{num_tokens} tokens, the budget is {bound}")

    def _check_row(self, desk: Desk, plan: StepPlan, index: int, row: Row, *, upper: int) -> None:
        resident = row.resident
        end = row.start + row.num_tokens
        if row.kind != DECODE and row.start != upper:
            detail = f"starts at {row.start}; plans before it reach {upper}"
            self._name(Name.WRONG_START, desk.executor_id, plan, index, resident, detail)
        fits = {PREFILL: end < resident.num_known, PREFILL_LAST: end == resident.num_known, DECODE: upper >= resident.num_known}
        if not fits.get(row.kind, False):
            detail = f"kind {row.kind} over {row.start}..{end} of {resident.num_known} known tokens"
            self._name(Name.WRONG_KIND, desk.executor_id, plan, index, resident, detail)

    def _row_of(self, desk: Desk, plan: StepPlan, slot: int) -> int | None:
        slots = desk.row_slots if plan.repeat_rows else list(plan.slot)
        return slots.index(slot) if slot in slots else None

    def _name(
        self,
        name: Name,
        executor_id: int,
        plan: StepPlan,
        row: int | None,
        resident: Resident | None,
        detail: str,
        *,
        slot: int | None = None,
    ) -> None:
        slot = resident.slot if resident else slot
        request_id = resident.life.request_id if resident else ""
        self._findings.append(Finding(name, executor_id, int(plan.step_id), row, slot, request_id, detail))
