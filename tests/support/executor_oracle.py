"""The executor's rules again, row by row in plain Python, as simple as they read in step_plan.md: an oracle for the columns."""

from dataclasses import dataclass, field

from executor_svc.plan import COHORT, DECODE, FINISH_LENGTH, FINISH_STOP, PREFILL, PREFILL_LAST, NewSequence, Plan
from executor_svc.slots import SlotLimits


@dataclass
class Seq:
    """A sequence in a slot; `refused` until its first row has said so, `over` once it ended."""

    new: NewSequence
    tokens: list[int]
    computed: int
    blocks: list[int] = field(default_factory=list)
    over: bool = False
    refused: bool = False


@dataclass
class Outcome:
    """What a plan did. `fed`: row -> [(position, token)], `tables`: row -> block table, `sampling`: rows that want a token, as
    often as they want one. `drafted`: row -> drafts verified."""

    skipped: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    fed: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    sampling: list[int] = field(default_factory=list)
    emitted: dict[int, list[int]] = field(default_factory=dict)
    drafted: dict[int, int] = field(default_factory=dict)
    finished: list[tuple[int, int]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    blocks_in_use: int = 0


class Oracle:
    """One session."""

    def __init__(self, limits: SlotLimits) -> None:
        self.limits = limits
        self.slots: dict[int, Seq] = {}
        self.last_slots: list[int] = []
        self.together = False

    def enter(self, new: NewSequence) -> None:
        if not 0 <= new.slot < self.limits.num_slots:
            return
        held = self.slots.get(new.slot)
        seq = Seq(new, [int(token) for token in new.token_ids], new.num_cached_tokens)
        seq.refused = (held is not None and not held.over and not held.refused) or not self.is_good(new)
        self.slots[new.slot] = seq

    def is_good(self, new: NewSequence) -> bool:
        known, params, vocab = len(new.token_ids), new.sampling, self.limits.vocab_size
        return (
            all(0 <= token < vocab for token in (*new.token_ids, *params.stop_token_ids, *params.bias_ids))
            and 1 <= new.num_prompt_tokens <= known
            and 0 <= new.num_cached_tokens < known
            and params.min_tokens <= params.max_tokens
            and (params.max_tokens > 0 or params.prompt_logprobs)
            and known - new.num_prompt_tokens < max(1, params.max_tokens)
            and known + (params.max_tokens > 0) <= self.limits.max_model_len
        )

    def apply(self, plan: Plan, *, tokens: dict[int, list[int]], broken: set[int], ideas: dict[int, list[int]]) -> Outcome:
        """`tokens`: row -> what the sampler will say, place by place; `broken`: rows that the backend gives up; `ideas`: slot ->
        what the drafter thinks."""
        for slot in plan.freed_slots:
            self.slots.pop(slot, None)
        for slot in plan.aborted_slots:
            if slot in self.slots:
                self.slots[slot].over = True
        for new in plan.new_sequences:
            self.enter(new)
        if plan.repeat_rows:
            rows = [(slot, DECODE, 1, 0, 0) for slot in self.last_slots]
        else:
            drafts = plan.draft_len if len(plan.draft_len) else [0] * len(plan.slots)
            columns = (plan.slots, plan.row_kinds, plan.num_tokens, plan.starts, drafts)
            rows = [tuple(map(int, row)) for row in zip(*columns, strict=True)]
            self.last_slots = [row[0] for row in rows] or self.last_slots
        given: dict[int, list[int]] = {}
        for row, block in zip(plan.block_rows, plan.block_ids, strict=True):
            given.setdefault(int(row), []).append(int(block))
        out = Outcome(lengths=[0] * len(rows))
        named = [row[0] for row in rows]
        self.together = plan.advance == COHORT
        running = [index for index, row in enumerate(rows) if self.may_run(index, row, given.get(index, []), named, out)]
        for row in out.failed:
            if named[row] in self.slots:
                self.slots[named[row]].over = True
        begun = {row: self.slots[named[row]].computed for row in running if rows[row][1] == DECODE}
        for row in running:
            idea = ideas.get(named[row], [])[: rows[row][4]]
            self.run(row, rows[row], out, tokens=tokens[row], broken=row in broken, idea=idea)
        if self.together:
            moved = {row: self.slots[named[row]].computed - start for row, start in begun.items() if row not in out.failed}
            for row in moved:
                self.slots[named[row]].computed = out.lengths[row] = begun[row] + min(moved.values())
        live = [seq for seq in self.slots.values() if not seq.over and not seq.refused]
        out.blocks_in_use = len({block for seq in live for block in seq.blocks})
        out.failed.sort()
        return out

    def may_run(self, index: int, row: tuple[int, ...], blocks: list[int], named: list[int], out: Outcome) -> bool:
        slot, kind, num_tokens, start, drafts = row
        seq = self.slots.get(slot)
        if seq is not None and seq.over:
            out.skipped.append(index)
            return False
        good = seq is not None and not seq.over and not seq.refused and named.count(slot) == 1
        if good:
            good = all(0 <= block < self.limits.num_blocks for block in blocks)
            good = good and len(seq.blocks) + len(blocks) <= -(-self.limits.max_model_len // self.limits.block_size)
        if good:
            seq.blocks += blocks
            left = len(seq.tokens) - seq.computed
            good = {
                DECODE: num_tokens == left + drafts and (left == 1 or (left > 1 and self.is_tail(seq))),
                PREFILL: start == seq.computed and 1 <= num_tokens < left and not drafts,
                PREFILL_LAST: start == seq.computed and num_tokens == left and not drafts,
            }.get(kind, False)
            good = good and seq.computed + num_tokens <= len(seq.blocks) * self.limits.block_size
        if not good:
            out.failed.append(index)
        return good

    def is_tail(self, seq: Seq) -> bool:
        return self.together and seq.computed >= seq.new.num_prompt_tokens

    def run(self, index: int, row: tuple[int, ...], out: Outcome, *, tokens: list[int], broken: bool, idea: list[int]) -> None:
        slot, kind, num_tokens, _, drafts = row
        seq = self.slots[slot]
        room = min(seq.new.num_prompt_tokens + seq.new.sampling.max_tokens, self.limits.max_model_len) - len(seq.tokens)
        idea = idea[: max(0, room - 1)]
        end = seq.computed + num_tokens - drafts
        fed = seq.tokens[seq.computed : end] + idea
        out.fed[index] = list(enumerate(fed, seq.computed))
        out.tables[index] = list(seq.blocks)
        samples = kind != PREFILL and seq.new.sampling.max_tokens > 0
        if samples:
            out.sampling += [index] * (1 + len(idea))
        if broken:
            out.failed.append(index)
            seq.over = True
            return
        seq.computed = end
        reason = 0 if kind == PREFILL or samples else FINISH_LENGTH
        if samples:
            emitted, guesses = [tokens[0]], iter(idea)
            reason = self.emit(seq, tokens[0])
            while not reason and next(guesses, None) == emitted[-1]:
                seq.computed += 1
                emitted.append(tokens[len(emitted)])
                reason = self.emit(seq, emitted[-1])
            out.emitted[index] = emitted
            out.drafted[index] = len(idea)
        out.lengths[index] = seq.computed
        if reason:
            out.finished.append((index, reason))
            seq.over = True

    def emit(self, seq: Seq, token: int) -> int:
        params = seq.new.sampling
        position = len(seq.tokens) - seq.new.num_prompt_tokens
        seq.tokens.append(token)
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(self.limits.eos_token_ids))
        if token in ends and position >= params.min_tokens:
            return FINISH_STOP
        full = position + 1 >= params.max_tokens or len(seq.tokens) >= self.limits.max_model_len
        return FINISH_LENGTH if full else 0
