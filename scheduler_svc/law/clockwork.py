"""Sequences that decode at given cache lengths: the real scheduler core, a virtual clock, and an executor that only counts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from scheduler_svc.core.paged import MAX_CONSIDERED
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import ExecutorInfo, Limits, Plan, Request, StepResult

STEP_NS = 20_000_000
"""Virtual length of a step; the law does not depend on it."""
BLOCK_SIZE = 16
MAX_TOKENS = 4096
"""No sequence ends while it is watched."""


@dataclass(slots=True)
class CountingExecutor:
    """Says one token per row and how long each row is; nothing is computed. `lengths`, `num_blocks`: by slot."""

    lengths: dict[int, int] = field(default_factory=dict)
    num_blocks: dict[int, int] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)

    def run(self, plan: Plan) -> StepResult:
        """One plan, in the contract's order."""
        for new in plan.new_sequences:
            self.lengths[new.slot] = self.num_blocks[new.slot] = 0
        self.slots = list(plan.slots) or self.slots
        for row in plan.block_rows:
            self.num_blocks[self.slots[row]] += 1
        counts = plan.num_tokens or [1] * len(self.slots)
        for slot, count in zip(self.slots, counts, strict=True):
            self.lengths[slot] += count
        lengths = [self.lengths[slot] for slot in self.slots]
        return StepResult(plan.step_id, (), [0] * len(lengths), lengths, num_blocks_in_use=sum(self.num_blocks.values()))


class Clockwork:
    """All sequences hold their caches and decode; `step` lets the scheduler decide who of them runs.

    The paged rule fills the caches, `MAX_CONSIDERED` newcomers a step; who enters earlier has decoded as many tokens more by the
    end, and is given a shorter prompt for it. The core then goes on from its own snapshot under the rule that is watched.
    """

    def __init__(self, lengths: Sequence[int], *, granted: bool) -> None:
        """`lengths`: of the caches. `granted`, what the executor declares, is all that the two columns of the law differ in."""
        self._executor = CountingExecutor()
        self._now_ns = 0
        core = Scheduler(_limits(lengths))
        core.add_executor(_info(lengths, granted=granted))
        num_steps = -(-len(lengths) // MAX_CONSIDERED)
        prompts = [length - (num_steps - 1 - key // MAX_CONSIDERED) for key, length in enumerate(lengths)]
        core.add_requests([Request(key, "law", [0] * length, MAX_TOKENS) for key, length in enumerate(prompts)])
        self._core = core
        for _ in range(num_steps):
            self.step()
        data = core.snapshot()
        data["limits"] = {**cast(dict[str, Any], data["limits"]), "admission": "ragged"}
        self._core = Scheduler.restore(data)

    def step(self) -> int:
        """One step; how many rows ran."""
        self._now_ns += STEP_NS
        self._core.tick(self._now_ns)
        plan = self._core.schedule(0)
        if plan is None:
            return 0
        self._core.update(0, self._executor.run(plan))
        return len(self._executor.slots)

    def lengths(self) -> list[int]:
        """Cache lengths by sequence. Raises InvariantViolation when the core's books contradict each other."""
        self._core.check_invariants()
        books = self._core.executors[0]
        return [int(books.cols.confirmed[seq.slot]) for _, seq in sorted(books.running.items())]


def _limits(lengths: Sequence[int]) -> Limits:
    total = sum(lengths)
    return Limits(
        max_waiting_requests=len(lengths),
        max_waiting_tokens=total,
        max_num_seqs=len(lengths),
        max_num_batched_tokens=total,
        enable_prefix_caching=False,
        plans_in_flight=1,
    )


def _info(lengths: Sequence[int], *, granted: bool) -> ExecutorInfo:
    most = max(lengths) + MAX_TOKENS
    return ExecutorInfo(
        executor_id=0,
        model_digest="law",
        block_size=BLOCK_SIZE,
        num_blocks=len(lengths) * (-(-most // BLOCK_SIZE)),
        max_model_len=most,
        max_num_seqs=len(lengths),
        max_num_batched_tokens=sum(lengths),
        ragged_granted=granted,
        ragged_reason="declared for the law" if granted else "refused for the law",
    )
