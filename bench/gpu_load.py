"""Steps as the service runs them, plan application and commit included, without a scheduler."""

import time
from collections.abc import Sequence

import numpy as np

from executor_svc.backends.base import Backend
from executor_svc.batch import Assembler
from executor_svc.commit import commit
from executor_svc.plan import CACHE_NOTHING, DECODE, I32, PAGED, PER_SEQUENCE, PREFILL, PREFILL_LAST, NewSequence, Plan, Sampling
from executor_svc.slots import SlotLimits, Slots


class Steps:
    """R sequences in the slots 0..R-1, with blocks for their whole life."""

    def __init__(self, backend: Backend, prompts: Sequence[I32], *, num_cached: int, num_output: int) -> None:
        info = backend.info
        self._backend = backend
        self._slots = Slots(
            SlotLimits(
                num_slots=len(prompts),
                max_model_len=backend.model.max_model_len,
                max_num_batched_tokens=info.max_num_batched_tokens,
                block_size=info.block_size,
                num_blocks=info.num_blocks,
                vocab_size=backend.model.vocab_size,
                eos_token_ids=(),
            )
        )
        self._assembler = Assembler(self._slots)
        self._prompts = prompts
        self._step_id = 0
        self._budget = info.max_num_batched_tokens
        self._num_cached = num_cached
        self._sampling = Sampling(max_tokens=num_output, ignore_eos=True)
        blocks = [-(-(len(prompt) + num_output) // info.block_size) for prompt in prompts]
        if sum(blocks) > info.num_blocks:
            raise ValueError(f"the rows need {sum(blocks)} KV blocks, the cache has {info.num_blocks}")
        self._block_rows = np.repeat(np.arange(len(prompts), dtype=np.int32), blocks)
        self._block_ids = np.random.default_rng(0).permutation(info.num_blocks)[: sum(blocks)].astype(np.int32)

    def prefill(self) -> int:
        """All prompts, as many tokens a step as the backend takes, in order; each then has its first token. Returns steps."""
        entering = [
            NewSequence(slot, prompt, len(prompt), self._num_cached, self._sampling) for slot, prompt in enumerate(self._prompts)
        ]
        done = [self._num_cached] * len(self._prompts)
        count = 0
        while rows := self._chunks(done):
            slots, fed, kinds = (np.array(column, np.int32) for column in zip(*rows, strict=True))
            starts = np.array([done[slot] for slot in slots], np.int32)
            self._run(entering, slots, kinds, fed, starts, first=not count)
            for slot, num_tokens, _ in rows:
                done[slot] += num_tokens
            entering, count = [], count + 1
        return count

    def _chunks(self, done: list[int]) -> list[tuple[int, int, int]]:
        """(slot, tokens, kind) of the next step."""
        left, rows = self._budget, []
        for slot, prompt in enumerate(self._prompts):
            fed = min(left, len(prompt) - done[slot])
            if fed:
                rows.append((slot, fed, PREFILL_LAST if done[slot] + fed == len(prompt) else PREFILL))
                left -= fed
        return rows

    def decode(self, num_steps: int) -> list[float]:
        """So many steps of one token for each row: seconds of each. Plans behind the first repeat its rows, as a scheduler's do."""
        slots = np.arange(len(self._prompts), dtype=np.int32)
        columns = (slots, np.full(len(slots), DECODE, np.int32), np.ones(len(slots), np.int32), self._slots.num_computed[slots])
        times = []
        for step in range(num_steps):
            began = time.perf_counter()
            self._run([], *(columns if not step else (slots[:0],) * 4), first=False)
            times.append(time.perf_counter() - began)
        return times

    def _run(self, entering: list[NewSequence], slots: I32, kinds: I32, fed: I32, starts: I32, *, first: bool) -> None:
        none = np.zeros(0, np.int32)
        self._step_id += 1
        plan = Plan(
            step_id=self._step_id,
            session_epoch=0,
            grant_id=0,
            cohort_id=0,
            cache_op=CACHE_NOTHING,
            layout=PAGED,
            advance=PER_SEQUENCE,
            freed_slots=[],
            aborted_slots=[],
            new_sequences=entering,
            repeat_rows=not len(slots),
            slots=slots,
            row_kinds=kinds,
            num_tokens=fed,
            starts=starts,
            block_rows=self._block_rows if first else none,
            block_ids=self._block_ids if first else none,
            copy_src=none,
            copy_dst=none,
        )
        step = self._assembler.apply(plan)
        result = commit(self._slots, step, self._backend.forward(step.batch))
        if result.row_errors or result.skipped:
            raise RuntimeError(f"rows failed: {result.row_errors or result.skipped}")
