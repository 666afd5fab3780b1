"""Judges blocks: who owns them, what they hold, whether rows are covered, and whether any got lost."""

from dataclasses import dataclass
from hashlib import blake2b

from drumline.plan.v1.plan_pb2 import StepPlan
from scheduler_svc.replay.books import DECODE, Books, Desk, Resident, Row, Step
from scheduler_svc.replay.findings import Finding, Name


@dataclass(frozen=True, slots=True)
class _Release:
    """When a block became free, and by whom."""

    step: int
    slot: int
    request_id: str


class BlockAudit:
    """Keeps every block's owners (in the desks), content and last release. `mixes`: every row that can run is in every step."""

    def __init__(self, books: Books, findings: list[Finding], *, budget: int, mixes: bool = True) -> None:
        self._mixes = mixes
        self._books = books
        self._findings = findings
        self._content: dict[tuple[int, int], bytes] = {}
        self._released: dict[tuple[int, int], _Release] = {}
        self._freed_now: list[Resident] = []
        self._leaked: set[tuple[int, int]] = set()
        self._budget = budget

    def lost(self, executor_id: int) -> None:
        """An executor leaves with its cache."""
        self._content = {key: value for key, value in self._content.items() if key[0] != executor_id}
        self._released = {key: value for key, value in self._released.items() if key[0] != executor_id}

    def freed(self, desk: Desk, plan: StepPlan, resident: Resident) -> None:
        """A slot was given back by this plan."""
        self._freed_now.append(resident)
        for block in resident.blocks:
            if block not in desk.owners:
                release = _Release(int(plan.step_id), resident.slot, resident.life.request_id)
                self._released[(desk.executor_id, block)] = release

    def plan(self, desk: Desk, step: Step) -> None:
        """Blocks that this plan appends, then what its prompt chunks publish for later plans."""
        for source, target in zip(step.plan.copy_src, step.plan.copy_dst, strict=False):
            if (key := self._content.get((desk.executor_id, source))) is not None:
                self._content[(desk.executor_id, target)] = key
        for row_index, block in zip(step.plan.block_row, step.plan.block_id, strict=False):
            if row_index < len(step.rows):
                self._append(desk, step, row_index, block)
        for index, row in enumerate(step.rows):
            self._check_cover(desk, step, index, row)
        self._check_leak(desk, step)
        self._freed_now.clear()
        for row in step.rows:
            if row.kind != DECODE:
                self._publish(desk, row.resident, min(row.resident.upper, row.resident.num_known))

    def answered(self, step: Step) -> None:
        """Confirmed tokens fill blocks; rows that did not run take back what they promised."""
        desk = self._books.desks.get(step.executor_id)
        if desk is None or step.result is None:
            return
        failed = {*step.result.skipped_row, *(error.row for error in step.result.row_errors)}
        for index, row in enumerate(step.rows):
            resident = row.resident
            if index in failed and row.kind != DECODE:
                self._withdraw(desk, resident)
            elif index not in failed and not resident.freed_step:
                self._publish(desk, resident, resident.length)

    def _withdraw(self, desk: Desk, resident: Resident) -> None:
        """What it promised and did not compute holds nothing; whoever read it is discarded, and so on."""
        suspects = [resident]
        while suspects:
            source = suspects.pop()
            first = source.length // desk.caps.block_size
            promised = set(source.blocks[first : source.num_published])
            for block in promised:
                self._content.pop((desk.executor_id, block), None)
            for reader in desk.residents.values():
                shared = reader.blocks[: reader.num_cached // desk.caps.block_size]
                if reader is not source and not reader.discarded and not promised.isdisjoint(shared):
                    reader.discarded = True
                    reader.length = min(reader.length, first * desk.caps.block_size)
                    suspects.append(reader)

    def _append(self, desk: Desk, step: Step, index: int, block: int) -> None:
        resident = step.rows[index].resident
        place = len(resident.blocks)
        holders = desk.owners.setdefault(block, [])
        key = (desk.executor_id, block)
        if block >= desk.caps.num_blocks:
            self._name(Name.BLOCK_OUT_OF_RANGE, step, index, f"block {block}; the executor has {desk.caps.num_blocks}")
        elif place < resident.num_cached // desk.caps.block_size:
            if self._content.get(key) != self._chain(desk, resident, place) and block not in desk.unjudged:
                detail = f"block {block} at place {place} does not hold this sequence's tokens"
                self._name(Name.WRONG_PREFIX_HIT, step, index, detail)
        else:
            if holders:
                others = ", ".join(f"slot {one.slot} since step {one.joined_step}" for one in holders)
                self._name(Name.BLOCK_OWNED_TWICE, step, index, f"block {block} belongs to {others}")
            self._content.pop(key, None)
            desk.unjudged.discard(block)
        holders.append(resident)
        resident.blocks.append(block)
        self._released.pop(key, None)

    def _check_cover(self, desk: Desk, step: Step, index: int, row: Row) -> None:
        resident = row.resident
        covered = len(resident.blocks) * desk.caps.block_size
        end = min(resident.upper, desk.caps.max_model_len)
        if covered < end and not resident.assumed and not resident.ended_step:
            self._name(Name.BLOCKS_TOO_SHORT, step, index, f"{len(resident.blocks)} blocks cover {covered} of {end} tokens")

    def _check_leak(self, desk: Desk, step: Step) -> None:
        """A decode row drops out although the books have blocks for everybody who was left out: some blocks never came back."""
        plan = step.plan
        bound = min(self._budget, desk.caps.max_num_batched_tokens)
        if not self._mixes or sum(row.num_tokens for row in step.rows) >= bound:
            return
        absent = [one for one in desk.residents.values() if one.last_step < plan.step_id and self._may_run(desk, one)]
        dropped = [one for one in absent if one.upper >= one.num_known and one.last_step == desk.last_rows_step]
        preempted_now = any(self._books.is_preempted(one) for one in self._freed_now)
        known = sum(1 for executor_id, _ in self._leaked if executor_id == desk.executor_id)
        need = max((self._need(desk, one) for one in absent), default=0)
        if not dropped or preempted_now or desk.num_free_blocks - known < max(need, 1):
            return
        free = {
            block: self._released[key]
            for key in self._released
            if (block := key[1]) not in desk.owners and key[0] == desk.executor_id
        }
        oldest = min(free.values(), key=lambda release: release.step, default=_Release(int(plan.step_id), dropped[0].slot, ""))
        self._leaked.update((desk.executor_id, block) for block in free)
        blocks = ", ".join(map(str, sorted(free)[:8]))
        detail = f"blocks {blocks} were given back here and never handed out again, yet step {plan.step_id} ran short of blocks"
        self._findings.append(
            Finding(Name.LEAKED_BLOCK, desk.executor_id, oldest.step, None, oldest.slot, oldest.request_id, detail)
        )

    def _may_run(self, desk: Desk, resident: Resident) -> bool:
        """It has not ended, and a row of it would not go beyond max_tokens or the context."""
        life = resident.life
        limit = min(life.num_prompt + max(life.max_tokens, 1) - 1, desk.caps.max_model_len)
        return not (resident.ended_step or resident.discarded or resident.assumed or life.aborted) and resident.upper < limit

    def _need(self, desk: Desk, resident: Resident) -> int:
        """Blocks that its next row cannot do without."""
        end = resident.upper + 1 if resident.upper >= resident.num_known else resident.num_known
        return max(0, -(-end // desk.caps.block_size) - len(resident.blocks))

    def _publish(self, desk: Desk, resident: Resident, end: int) -> None:
        if resident.assumed:
            return
        while (resident.num_published + 1) * desk.caps.block_size <= min(end, len(resident.life.tokens)):
            place = resident.num_published
            if place >= len(resident.blocks):
                return
            self._content[(desk.executor_id, resident.blocks[place])] = self._chain(desk, resident, place)
            resident.num_published += 1

    def _chain(self, desk: Desk, resident: Resident, place: int) -> bytes:
        """What block `place` of this sequence must hold: its tokens, all before it, and whose they are."""
        size = desk.caps.block_size
        while len(resident.chain) <= place:
            at = len(resident.chain)
            before = resident.chain[-1] if resident.chain else repr(resident.life.salt).encode()
            block = resident.life.tokens[at * size : (at + 1) * size]
            resident.chain.append(blake2b(before + repr(block).encode(), digest_size=16).digest())
        return resident.chain[place]

    def _name(self, name: Name, step: Step, index: int, detail: str) -> None:
        resident = step.rows[index].resident
        self._findings.append(
            Finding(name, step.executor_id, int(step.plan.step_id), index, resident.slot, resident.life.request_id, detail)
        )
