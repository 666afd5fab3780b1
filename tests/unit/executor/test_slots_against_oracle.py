"""Random plans, good and poisoned, through the columns and through the row-by-row oracle: nothing may differ."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from executor_svc.batch import Assembler, Step
from executor_svc.commit import commit
from executor_svc.drafter import Drafts
from executor_svc.plan import DECODE, PREFILL, PREFILL_LAST, NewSequence, Plan, Sampled, Sampling, StepResult
from executor_svc.slots import SlotLimits, Slots
from tests.support.executor_oracle import Oracle, Outcome

LIMITS = SlotLimits(
    num_slots=6, max_model_len=22, max_num_batched_tokens=1000, block_size=4, num_blocks=40, vocab_size=30, eos_token_ids=(0, 1)
)


def i32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


class Planner:
    """Makes plans that are mostly right, knowing what the oracle knows, and sometimes wrong on purpose."""

    def __init__(self, rng: random.Random, oracle: Oracle, *, poison: float, together: bool) -> None:
        self.rng, self.oracle, self.poison, self.together = rng, oracle, poison, together

    def is_wrong(self) -> bool:
        return self.rng.random() < self.poison

    def sequence(self, slot: int) -> NewSequence:
        rng = self.rng
        size = rng.randint(1, 24 if self.is_wrong() else 14)
        prompt = rng.randint(0 if self.is_wrong() else 1, size)
        max_tokens = rng.randint(0 if self.is_wrong() else size - prompt + 1, 30)
        bias_ids = (rng.randint(0, 31),) if self.is_wrong() else ()
        sampling = Sampling(
            max_tokens=max_tokens,
            min_tokens=rng.randint(0, 40) if self.is_wrong() else rng.randint(0, min(max_tokens, 5)),
            stop_token_ids=tuple(rng.choices(range(30), k=rng.randint(0, 3))) + ((99,) if self.is_wrong() else ()),
            ignore_eos=rng.random() < 0.3,
            prompt_logprobs=rng.random() < 0.2,
            bias_ids=bias_ids,
            bias_values=(1.0,) * len(bias_ids),
        )
        tokens = i32([rng.randint(-1, 31) if self.is_wrong() else rng.randint(0, 29) for _ in range(size)])
        return NewSequence(slot, tokens, prompt, rng.randint(0, size - 1) if rng.random() < 0.4 else 0, sampling)

    def plan(self, step_id: int) -> Plan:
        rng, held = self.rng, self.oracle.slots
        freed = [slot for slot, seq in held.items() if rng.random() < (0.5 if seq.over else 0.03)]
        aborted = [slot for slot in held if rng.random() < 0.05]
        free = [slot for slot in range(LIMITS.num_slots) if slot not in held or slot in freed or self.is_wrong()]
        new = [self.sequence(slot) for slot in free if rng.random() < 0.5]
        after = Oracle(LIMITS)
        after.slots = {slot: seq for slot, seq in held.items() if slot not in freed}
        for entering in new:
            after.enter(entering)
        if not new and self.oracle.last_slots and rng.random() < 0.4:
            return self.finish(step_id, freed=freed, aborted=aborted, new=new, after=after, rows=None)
        slots = [slot for slot in after.slots if rng.random() < 0.9] + ([rng.randint(-1, 8)] if self.is_wrong() else [])
        rng.shuffle(slots)
        rows = [(slot, *(self.row(after.slots[slot]) if slot in after.slots else (DECODE, 1, 0, 0))) for slot in slots]
        return self.finish(step_id, freed=freed, aborted=aborted, new=new, after=after, rows=rows)

    def row(self, seq: object) -> tuple[int, int, int, int]:
        left = len(seq.tokens) - seq.computed
        if self.is_wrong():
            return self.rng.randint(0, 4), self.rng.randint(0, 5), self.rng.randint(0, 5), self.rng.randint(0, 3)
        tail = left <= 5 and seq.computed >= seq.new.num_prompt_tokens if self.together else left == 1
        if tail and self.rng.random() < 0.9:
            drafts = self.rng.choice((0, 0, 1, 2, 4))
            return DECODE, left + drafts, 0, drafts
        if left > 1 and self.rng.random() < 0.5:
            return PREFILL, self.rng.randint(1, left - 1), seq.computed, 0
        return PREFILL_LAST, left, seq.computed, 0

    def finish(self, step_id: int, *, freed: list, aborted: list, new: list, after: Oracle, rows: list | None) -> Plan:
        pairs = []
        named = [row[0] for row in rows] if rows is not None else self.oracle.last_slots
        for index, slot in enumerate(named):
            fed = rows[index][2] if rows is not None else 1
            if slot in after.slots and not self.is_wrong():
                seq = after.slots[slot]
                need = -(-(seq.computed + fed) // LIMITS.block_size) - len(seq.blocks)
                pairs += [(index, self.rng.randint(0, 41 if self.is_wrong() else 39)) for _ in range(max(0, need))]
        columns = list(zip(*rows, strict=True)) if rows else [[], [], [], [], []]
        return Plan(
            step_id=step_id, session_epoch=1, grant_id=1, cohort_id=0, cache_op=1, layout=1, advance=1 if self.together else 2,
            freed_slots=freed, aborted_slots=aborted, new_sequences=new, repeat_rows=rows is None,
            slots=i32(columns[0]), row_kinds=i32(columns[1]), num_tokens=i32(columns[2]), starts=i32(columns[3]),
            block_rows=i32([row for row, _ in pairs]), block_ids=i32([block for _, block in pairs]),
            copy_src=i32([]), copy_dst=i32([]), draft_len=i32(columns[4] if any(columns[4]) else []),
        )  # fmt: skip


class IdeaDrafter:
    """Guesses what it was told to, slot by slot."""

    name = "idea"

    def __init__(self) -> None:
        self.ideas: dict[int, list[int]] = {}

    def observe(self, batch, hidden):
        """See `Drafter`."""

    def forget(self):
        """See `Drafter`."""

    def propose(self, slots: Slots, rows: np.ndarray, *, most: np.ndarray) -> Drafts:
        ideas = [self.ideas.get(slot, [])[:count] for slot, count in zip(rows.tolist(), most.tolist(), strict=True)]
        width = max((len(idea) for idea in ideas), default=0)
        token_ids = i32([idea + [0] * (width - len(idea)) for idea in ideas]).reshape(len(ideas), width)
        return Drafts(token_ids, i32([len(idea) for idea in ideas]))


def compare(step: Step, result: StepResult, expected: Outcome) -> None:
    batch = step.batch
    assert result.skipped == expected.skipped
    assert [row for row, _, _ in result.row_errors] == expected.failed
    fed: dict[int, list[tuple[int, int]]] = {}
    for place, row in enumerate(step.rows.tolist()):
        piece = slice(batch.query_start[place], batch.query_start[place + 1])
        fed[row] = list(zip(batch.positions[piece].tolist(), batch.token_ids[piece].tolist(), strict=True))
        table = batch.block_tables[place].tolist()
        assert [block for block in table if block >= 0] == expected.tables[row]
        assert table[: len(expected.tables[row])] == expected.tables[row]
        assert batch.context_len[place] == fed[row][-1][0] + 1
    assert fed == expected.fed
    assert [int(step.rows[row]) for row in batch.sample.rows] == expected.sampling
    emitted = iter(result.token_ids.tolist())
    assert {row: [next(emitted) for _ in range(count)] for row, count in enumerate(result.num_emitted) if count} == expected.emitted
    assert next(emitted, None) is None
    drafted = {row: count for row, count in expected.drafted.items() if count}
    assert {row: count for row, count in enumerate(result.num_drafted.tolist()) if count} == drafted
    accepted = {row: len(tokens) - 1 for row, tokens in expected.emitted.items() if len(tokens) > 1}
    assert {row: count for row, count in enumerate(result.num_accepted.tolist()) if count} == accepted
    assert result.finished == expected.finished
    assert result.lengths.tolist() == expected.lengths
    assert result.num_blocks_in_use == expected.blocks_in_use


def run(rng: random.Random, *, num_plans: int, poison: float, together: bool = False) -> tuple[int, int]:
    """Returns how many tokens were emitted, and how many of them were drafts. `together`: all rows move by the slowest."""
    slots, drafter = Slots(LIMITS), IdeaDrafter()
    assembler, oracle = Assembler(slots, drafter), Oracle(LIMITS)
    planner = Planner(rng, oracle, poison=poison, together=together)
    emitted = accepted = 0
    for step_id in range(1, num_plans + 1):
        plan = planner.plan(step_id)
        drafter.ideas = {slot: rng.choices(range(30), k=rng.randint(0, 5)) for slot in range(LIMITS.num_slots)}
        named = plan.slots.tolist() or oracle.last_slots
        tokens = {row: [rng.randint(0, 29) for _ in range(6)] for row in range(16)}
        for row, slot in enumerate(named):  # mostly what was guessed, as long as it lasts
            right = drafter.ideas.get(slot, [])
            tokens[row][: len(right)] = [idea if rng.random() < 0.7 else rng.randint(0, 29) for idea in right]
        broken = {row for row in range(16) if rng.random() < poison / 4}
        expected = oracle.apply(plan, tokens=tokens, broken=broken, ideas=drafter.ideas)
        step = assembler.apply(plan)
        at = step.batch.drafts_behind if len(step.batch.drafts_behind) else np.zeros(len(step.batch.sample.rows), np.int32)
        sizes = np.repeat(np.diff(step.starts), np.diff(step.starts))
        places = (sizes - 1 - at).tolist()
        sampled = Sampled(
            token_ids=i32([tokens[int(step.rows[row])][place] for row, place in zip(step.batch.sample.rows, places, strict=True)]),
            row_errors={place: ("internal", "broken") for place, row in enumerate(step.rows.tolist()) if row in broken},
        )
        result = commit(slots, step, sampled)
        compare(step, result, expected)
        assert slots.num_live == sum(not seq.over and not seq.refused for seq in oracle.slots.values())
        emitted += sum(map(len, expected.emitted.values()))
        accepted += sum(len(tokens) - 1 for tokens in expected.emitted.values())
    return emitted, accepted


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.sampled_from([0.0, 0.02, 0.2]), st.booleans())
def test_columns_equal_the_row_by_row_oracle(seed: int, num_plans: int, poison: float, together: bool) -> None:
    run(random.Random(seed), num_plans=num_plans, poison=poison, together=together)


def test_the_plans_do_real_work() -> None:
    """Else the comparison above would prove nothing."""
    for seed, poison, least, together in ((3, 0.0, 300, False), (4, 0.05, 150, False), (5, 0.0, 300, True)):
        emitted, accepted = run(random.Random(seed), num_plans=300, poison=poison, together=together)
        assert emitted > least
        assert accepted > least / 6
