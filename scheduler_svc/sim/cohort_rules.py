"""What a dense executor demands of the plans it gets under the bucketed and the ragged rule, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_svc.core.types import CacheOp, Layout, Plan, RowKind

Row = tuple[int, int, int, int]
"""slot, kind, num_tokens, start."""


@dataclass(slots=True)
class CohortRules:
    """Judges one executor's plans in order. `granted`: its grant; `cohort`: slots of the batched cache, empty = none."""

    granted: bool
    cohort: list[int] = field(default_factory=list)

    def complaint(self, plan: Plan, rows: Sequence[Row], lengths: Sequence[int]) -> str:
        """What is wrong with a plan, "" if nothing; `lengths` are the rows' own before the step."""
        if not rows:
            return "" if plan.cache_op is CacheOp.NOTHING else "a plan without rows touches the batched cache"
        decodes = [row[1] == RowKind.DECODE for row in rows]
        if any(decodes) and not all(decodes):
            return "completions and prompts share a step"
        if len({row[2] for row in rows}) > 1:
            return "rows of one step feed different numbers of tokens"
        if all(decodes):
            return self._decode(plan, [row[0] for row in rows], lengths)
        return self._prompt(plan, rows)

    def _decode(self, plan: Plan, slots: list[int], lengths: Sequence[int]) -> str:
        if not self.granted and len(set(lengths)) > 1:
            return f"lengths {sorted(set(lengths))} share a step without a grant"
        same, self.cohort = self.cohort == slots, slots
        if plan.layout is Layout.PAGED:
            return "" if plan.cache_op is CacheOp.NOTHING else "paged rows are assembled"
        wanted = CacheOp.NOTHING if same and plan.layout is Layout.ALIGNED else CacheOp.IN
        found = f"{plan.cache_op.name} for a decode step of {plan.layout.name}"
        return "" if plan.cache_op is wanted else f"{found}, expected {wanted.name}"

    def _prompt(self, plan: Plan, rows: Sequence[Row]) -> str:
        self.cohort = []
        if len({row[3] for row in rows}) > 1:
            return "prompts of one step begin at different places"
        if plan.layout is Layout.PAGED:
            return "" if plan.cache_op is CacheOp.NOTHING else "paged rows are assembled"
        wanted = CacheOp.IN if rows[0][3] else CacheOp.RESET
        return "" if plan.cache_op is wanted else f"{plan.cache_op.name} for a prompt step, expected {wanted.name}"
