"""An executor made of bookkeeping: it keeps every sentence of the step plan's contract and remembers what its cache would hold.

It owns token values and true lengths. The next token is a pure function of the tokens before it, so an interrupted sequence must go
on as if nothing had happened. For each (block, offset) it remembers which token prefix was written there, and before a row runs it
checks that the row's block table holds exactly the row's own prefix: a swapped row, a stale block or a premature hit cannot hide.
Only a row that relied on a row that failed may find something else, and only in plans sent before the scheduler could know; it then
emits GARBAGE, which must never be delivered.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from scheduler_svc.core.types import Advance, ExecutorInfo, FinishReason, NewSequence, Plan, RowKind, StepResult
from scheduler_svc.sim.cohort_rules import CohortRules

GARBAGE = 0
END_TOKEN = 1
VOCAB = 50


class ContractBroken(Exception):
    """The scheduler sent a plan that the contract forbids, or a row would have read another sequence's keys and values."""


@dataclass(frozen=True, slots=True)
class SimSampling:
    """What the model executor needs to know of a sequence. `end_after`: emits END_TOKEN as its n-th token; 0 = by chance."""

    seed: int = 0
    max_tokens: int = 16
    end_after: int = 0
    prompt_logprobs: bool = False


def prefix_digest(tokens: Sequence[int]) -> bytes:
    """What a cache position holds: everything up to and with it."""
    return blake2b(b",".join(b"%d" % token for token in tokens), digest_size=8).digest()


def next_token(sampling: SimSampling, prompt: Sequence[int], output: Sequence[int]) -> int:
    """The model: a pure function of prompt, position and seed."""
    if sampling.end_after:
        if len(output) + 1 == sampling.end_after:
            return END_TOKEN
        floor = END_TOKEN + 1
    else:
        floor = END_TOKEN
    noise = int.from_bytes(
        blake2b(prefix_digest(prompt) + b"%d/%d" % (sampling.seed, len(output)), digest_size=4).digest(), "little"
    )
    return floor + noise % (VOCAB - floor)


def full_output(sampling: SimSampling, prompt: Sequence[int]) -> list[int]:
    """What an undisturbed run emits."""
    output: list[int] = []
    while len(output) < sampling.max_tokens:
        output.append(next_token(sampling, prompt, output))
        if output[-1] == END_TOKEN:
            break
    return output


def _chance(luck: int) -> int:
    return blake2b(b"%d" % luck, digest_size=2).digest()[0]


@dataclass(slots=True)
class _Slot:
    """One sequence on the executor. `ended` until freed."""

    tokens: list[int]
    num_prompt: int
    sampling: SimSampling
    length: int
    num_scored: int
    num_planned: int
    blocks: list[int] = field(default_factory=list)
    ended: bool = False

    def score(self, start: int, count: int) -> list[int]:
        """Prompt positions whose log-probabilities a chunk yields, without those delivered before."""
        return [position for position in range(start + 1, start + count + 1) if self.num_scored < position < self.num_prompt]


class ModelExecutor:
    """One device. `run` takes plans in order and answers each at once; the caller delays, loses or kills.

    Attributes:
        info: its handshake.
        plans_in_flight: the scheduler's bound: how far it may plan without knowing of a failure.
        fail_row: called with (step_id, row, key); True makes that row fail alone.
        num_fed: tokens fed so far.
        rules: what it demands of a cohort; None = rows of any kind and length may mix.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        *,
        fail_row: Callable[[int, int, int], bool] | None = None,
        plans_in_flight: int = 2,
        rules: CohortRules | None = None,
    ) -> None:
        self.info = info
        self.rules = rules
        self._blind_until = 0
        self._plans_in_flight = plans_in_flight
        self.fail_row = fail_row or (lambda step_id, row, key: False)
        self.num_fed = 0
        self._slots: dict[int, _Slot] = {}
        self._keys: dict[int, int] = {}
        self._written: dict[tuple[int, int], bytes] = {}
        self._last_slots: list[int] = []
        self._next_step = 1

    def run(self, plan: Plan, *, withdrawn: Collection[int] = ()) -> StepResult:
        """Applies one plan: frees and aborts, then new sequences, then blocks, then rows.

        `withdrawn`: slots that a plan already received, behind this one, aborts: their rows in this plan are skipped.
        """
        self._demand(plan.step_id == self._next_step, f"step {plan.step_id}, expected {self._next_step}")
        self._demand(plan.grant_id == self.info.executor_id + 1, "stale grant")
        self._next_step += 1
        for slot in (*plan.freed_slots, *plan.aborted_slots):
            self._demand(slot in self._slots, f"slot {slot} is given back twice")
            del self._slots[slot]
        for new in plan.new_sequences:
            self._enter(new)
        rows = self._rows(plan)
        if self.rules is not None:
            complaint = self.rules.complaint(plan, rows, [self._slots[row[0]].length for row in rows])
            self._demand(not complaint, complaint)
        self._withdraw({row[0] for row in rows} & set(withdrawn), step_id=plan.step_id)
        self._append_blocks(plan, rows)
        result = StepResult(step_id=plan.step_id)
        finished: list[tuple[int, FinishReason]] = []
        skipped, emitted, lengths, tokens, errors = [], [], [], [], []
        drafts = plan.draft_len or [0] * len(rows)
        drafted = [0] * len(rows)
        together = plan.advance is Advance.COHORT
        before = [self._slots[row[0]].length for row in rows]
        for row, (slot, kind, count, start) in enumerate(rows):
            state = self._slots[slot]
            state.num_planned += count
            most = state.num_prompt + max(1, state.sampling.max_tokens) - 1
            self._demand(state.num_planned <= most, f"rows for {state.num_planned} tokens of a sequence that may have {most}")
            made: list[int] = []
            if state.ended:
                skipped.append(row)
            elif self.fail_row(plan.step_id, row, self._keys[slot]):
                self._end(state)
                self._blind_until = plan.step_id + self._plans_in_flight - 1
                errors.append((row, "internal", "the row failed"))
            else:
                drafted[row] = self._num_drafted(state, drafts[row], luck=plan.step_id * 31 + slot)
                made = self._run_row(state, kind, count - drafts[row], start, together=together)
                made += self._verify(state, drafted[row], first=made, luck=plan.step_id * 37 + slot)
                state.num_planned -= 1 + drafts[row] - len(made) if drafts[row] and not together else 0
                reason = self._finish(state, kind)
                if reason is not None:
                    finished.append((row, reason))
                if state.sampling.prompt_logprobs and kind != RowKind.DECODE:
                    result.prompt_logprobs[row] = state.score(start, count)
            emitted.append(len(made))
            lengths.append(0 if row in skipped else state.length)
            tokens += made
        if together:
            self._keep_the_least(rows, before, lengths)
        result.finished, result.skipped, result.errors, result.lengths = finished, skipped, errors, lengths
        result.token_ids, result.num_emitted = tokens, () if emitted.count(1) == len(emitted) else emitted
        for row, _ in finished:
            self._end(self._slots[rows[row][0]])
        live = {block for state in self._slots.values() if not state.ended for block in state.blocks}
        result.num_blocks_in_use = len(live)
        result.num_drafted = drafted if any(drafted) else ()
        result.device_ns = 1000 + 300 * sum(row[2] for row in rows)
        return result

    def _withdraw(self, slots: Collection[int], *, step_id: int) -> None:
        for state in (self._slots[slot] for slot in slots):
            if not state.ended:
                self._end(state)
                self._blind_until = step_id + self._plans_in_flight - 1

    def _demand(self, holds: object, what: str) -> None:
        if not holds:
            raise ContractBroken(f"executor {self.info.executor_id}: {what}")

    def _enter(self, new: NewSequence) -> None:
        self._demand(new.slot not in self._slots, f"slot {new.slot} is reused before it was freed")
        self._demand(0 <= new.slot < self.info.max_num_seqs, f"slot {new.slot} does not exist")
        self._demand(new.num_cached_tokens < len(new.token_ids), "no token is left to feed")
        sampling = new.sampling
        if not isinstance(sampling, SimSampling):
            raise ContractBroken("sampling is not SimSampling")
        self._slots[new.slot] = _Slot(
            tokens=list(new.token_ids),
            num_prompt=new.num_prompt_tokens,
            sampling=sampling,
            length=new.num_cached_tokens,
            num_scored=new.num_prompt_logprobs_done,
            num_planned=new.num_cached_tokens,
        )
        self._keys[new.slot] = new.key

    def _rows(self, plan: Plan) -> list[tuple[int, int, int, int]]:
        if plan.repeat_rows:
            self._demand(not plan.slots and not plan.row_kinds, "repeat_rows with row columns")
            return [(slot, int(RowKind.DECODE), 1, 0) for slot in self._last_slots]
        rows = list(zip(plan.slots, plan.row_kinds, plan.num_tokens, plan.starts, strict=True))
        for count, kind, fed in zip(plan.draft_len, plan.row_kinds, plan.num_tokens, strict=bool(plan.draft_len)):
            self._demand(0 <= count <= self.info.mtp_depth, f"{count} drafts; mtp_depth is {self.info.mtp_depth}")
            tail = fed > count if plan.advance is Advance.COHORT else fed == 1 + count
            self._demand(not count or (kind == RowKind.DECODE and tail), f"{count} drafts in a row that feeds {fed}")
        self._demand(len({row[0] for row in rows}) == len(rows), "a slot has two rows")
        self._demand(sum(row[2] for row in rows) <= self.info.max_num_batched_tokens, "the token budget is exceeded")
        if rows:
            self._last_slots = [row[0] for row in rows]
        return rows

    def _append_blocks(self, plan: Plan, rows: list[tuple[int, int, int, int]]) -> None:
        for row, block in zip(plan.block_rows, plan.block_ids, strict=True):
            self._demand(0 <= block < self.info.num_blocks, f"block {block} does not exist")
            state = self._slots[rows[row][0]]
            if not state.ended:
                state.blocks.append(block)

    def _keep_the_least(self, rows: list[tuple[int, int, int, int]], before: list[int], lengths: list[int]) -> None:
        """Decode rows move together from the lengths before: each keeps what the slowest does and feeds the rest again."""
        states = [self._slots[row[0]] for row in rows]
        ran = [row for row, state in enumerate(states) if rows[row][1] == RowKind.DECODE and not state.ended]
        kept = min((states[row].length - before[row] for row in ran), default=0)
        for row in ran:
            states[row].num_planned -= rows[row][2] - kept
            states[row].length = lengths[row] = before[row] + kept

    def _run_row(self, state: _Slot, kind: int, count: int, start: int, *, together: bool = False) -> list[int]:
        known = len(state.tokens)
        if kind == RowKind.DECODE:
            tail = count if together else 1
            self._demand(tail > 0 and state.length == known - tail, f"a decode row at {state.length} with {known} tokens")
            start = state.length
        self._demand(start == state.length, f"a chunk starts at {start}, the sequence is at {state.length}")
        self._demand((start + count == known) == (kind != RowKind.PREFILL), "a chunk's kind and its end disagree")
        self._demand(len(state.blocks) * self.info.block_size >= start + count, "blocks do not cover the row")
        intact = all(
            self._written.get(self._place(state, position)) == prefix_digest(state.tokens[: position + 1])
            for position in range(start)
        )
        self._demand(intact or self._next_step - 1 <= self._blind_until, f"a row of {start} tokens would read another prefix")
        for position in range(start, start + count):
            self._written[self._place(state, position)] = prefix_digest(state.tokens[: position + 1]) if intact else b"garbage"
        state.length += count
        self.num_fed += count
        if kind == RowKind.PREFILL or state.sampling.max_tokens == 0:
            return []
        prompt, output = state.tokens[: state.num_prompt], state.tokens[state.num_prompt :]
        state.tokens.append(next_token(state.sampling, prompt, output) if intact else GARBAGE)
        return [state.tokens[-1]]

    def _num_drafted(self, state: _Slot, most: int, *, luck: int) -> int:
        """How many drafts it has an idea for: none behind the last token that may be emitted."""
        known = len(state.tokens)
        left = min(state.num_prompt + state.sampling.max_tokens, self.info.max_model_len) - known - 1
        return max(0, min(most - _chance(luck) % 2, left))

    def _verify(self, state: _Slot, num_drafted: int, *, first: list[int], luck: int) -> list[int]:
        """Drafts behind the row's own token: some are right and emitted; what wrong ones left in the cache means nothing."""
        made: list[int] = []
        num_right = _chance(luck) % (num_drafted + 1)
        for _ in range(num_drafted):
            self._demand(len(state.blocks) * self.info.block_size > state.length + len(made), "blocks do not cover a draft")
        for place in range(state.length, state.length + num_drafted):
            self._written[self._place(state, place)] = b"draft"
        while len(made) < num_right and (first + made)[-1] != END_TOKEN:
            made += self._run_row(state, int(RowKind.DECODE), 1, 0)
        return made

    def _place(self, state: _Slot, position: int) -> tuple[int, int]:
        return state.blocks[position // self.info.block_size], position % self.info.block_size

    def _finish(self, state: _Slot, kind: int) -> FinishReason | None:
        emitted = len(state.tokens) - state.num_prompt
        if kind == RowKind.PREFILL:
            return None
        if emitted and state.tokens[-1] == END_TOKEN:
            return FinishReason.STOP
        if emitted >= state.sampling.max_tokens or len(state.tokens) >= self.info.max_model_len:
            return FinishReason.LENGTH
        return None

    def _end(self, state: _Slot) -> None:
        state.ended = True
        state.blocks = []
