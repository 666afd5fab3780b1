"""Runs sequences on a backend through the executor's own slots, with any drafter, and a drafter that knows how texts go on."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from executor_svc.backends.base import Backend
from executor_svc.batch import Assembler
from executor_svc.commit import commit
from executor_svc.drafter import Drafter, Drafts
from executor_svc.plan import COHORT, DECODE, PAGED, PER_SEQUENCE, PREFILL_LAST, Logprobs, NewSequence, Plan, Sampling
from executor_svc.service import slot_limits
from executor_svc.slots import Slots

EMPTY = np.zeros(0, np.int32)


@dataclass
class Output:
    """What one sequence emitted, and how its drafts fared."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: int = 0
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0


class KnowingDrafter:
    """Knows each slot's true continuation and says something else now and then."""

    name = "knowing"

    def __init__(self, truths: Sequence[Sequence[int]], *, luck: float, seed: int = 1) -> None:
        self._truths = truths
        self._luck = luck
        self._random = random.Random(seed)

    def observe(self, batch, hidden):
        """See `Drafter`."""

    def forget(self):
        """See `Drafter`."""

    def propose(self, slots: Slots, rows: np.ndarray, *, most: np.ndarray) -> Drafts:
        token_ids = np.zeros((len(rows), int(most.max(initial=0))), np.int32)
        for d, slot in enumerate(rows.tolist()):
            begin = int(slots.num_known[slot] - slots.num_prompt[slot])
            for i in range(int(most[d])):
                truth = self._truths[slot][begin + i] if begin + i < len(self._truths[slot]) else 5
                token_ids[d, i] = truth if self._random.random() < self._luck else (truth + 1) % 1000
        return Drafts(token_ids, most.astype(np.int32))


def run(
    backend: Backend,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[Sampling],
    *,
    drafter: Drafter | None = None,
    depth: int = 0,
    together: bool = False,
) -> list[Output]:
    """All prompts in one step, then decode rows with `depth` drafts each until every sequence has ended. Slot i is prompt i's.

    `together`: all rows move by the slowest; tails and drafts are at most depth + 1 tokens.
    """
    limits = slot_limits(backend.model, backend.info)
    slots = Slots(limits)
    assembler = Assembler(slots, drafter)
    outputs = [Output() for _ in prompts]
    longest = limits.max_model_len
    room = [min(len(prompt) + sampling.max_tokens + depth, longest) for prompt, sampling in zip(prompts, samplings, strict=True)]
    counts = [-(-tokens // limits.block_size) for tokens in room]
    blocks = np.random.default_rng(3).permutation(limits.num_blocks)[: sum(counts)].astype(np.int32)
    new = [
        NewSequence(slot, np.array(prompt, np.int32), len(prompt), 0, sampling)
        for slot, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]
    fed = [len(prompt) for prompt in prompts]
    given = (np.repeat(np.arange(len(prompts), dtype=np.int32), counts), blocks)
    plan = _plan(range(len(prompts)), PREFILL_LAST, fed, new=new, blocks=given)
    alive = list(range(len(prompts)))
    while alive:
        result = _apply(backend, slots, assembler, plan)
        if result.row_errors:
            raise ValueError(f"row {result.row_errors[0]}")
        _note(outputs, alive, result)
        gone = {row for row, _ in result.finished}
        alive = [slot for row, slot in enumerate(alive) if row not in gone]
        # as the scheduler does: no more than the blocks hold
        left = [room[slot] - len(prompts[slot]) - len(outputs[slot].tokens) for slot in alive]
        tails = [int(slots.num_known[slot] - slots.num_computed[slot]) for slot in alive]
        drafts = [min(depth + 1 - tail, max(0, tokens)) for tail, tokens in zip(tails, left, strict=True)]
        fed = [tail + count for tail, count in zip(tails, drafts, strict=True)]
        plan = _plan(alive, DECODE, fed, drafts=drafts, advance=COHORT if together else PER_SEQUENCE)
    return outputs


def _apply(backend, slots, assembler, plan):
    step = assembler.apply(plan)
    return commit(slots, step, backend.forward(step.batch))


def _note(outputs, alive, result) -> None:
    at = 0
    reasons = dict(result.finished)
    for row, slot in enumerate(alive):
        count, out = int(result.num_emitted[row]), outputs[slot]
        out.tokens += result.token_ids[at : at + count].tolist()
        at += count
        out.num_steps += 1
        scores: Logprobs | None = result.logprobs.get(row)
        if scores is not None:
            out.logprobs += scores.logprobs.tolist()
        if len(result.num_drafted):
            out.num_drafted += int(result.num_drafted[row])
            out.num_accepted += int(result.num_accepted[row])
        out.reason = reasons.get(row, 0)


def _plan(slots, kind, fed, *, drafts=(), new=(), blocks=(EMPTY, EMPTY), advance=PER_SEQUENCE) -> Plan:
    size = len(fed)

    def column(value) -> np.ndarray:
        return np.full(size, value, np.int32)

    return Plan(
        step_id=1, session_epoch=1, grant_id=1, cohort_id=0, cache_op=1, layout=PAGED, advance=advance,
        freed_slots=[], aborted_slots=[], new_sequences=list(new), repeat_rows=False,
        slots=np.array(list(slots), np.int32), row_kinds=column(kind), num_tokens=np.array(fed, np.int32), starts=column(0),
        block_rows=blocks[0], block_ids=blocks[1], copy_src=EMPTY, copy_dst=EMPTY,
        draft_len=np.array(drafts, np.int32),
    )  # fmt: skip
