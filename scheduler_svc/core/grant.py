"""The ragged grant: whether rows of different lengths may share a step of one executor, decided once at its handshake.

Nobody holds it in a global: it is kept with the executor's books, travels in `OpenSession`, and every plan carries its id. The
executor declares, the scheduler decides, and a refusal keeps its reason: the absence of a grant must never look like an accident.
"""

from dataclasses import dataclass

from scheduler_svc.core.types import ExecutorInfo, Layout, Limits

BUCKETED_REASON = "this scheduler runs the admission policy `bucketed`, which refuses ragged cohorts whatever executors declare"


def grant_id_of(executor_id: int) -> int:
    """What plans for this executor and its session call the decision; never 0, which means none."""
    return executor_id + 1


@dataclass(frozen=True, slots=True)
class RaggedGrant:
    """A decision. Make one with `decide` or `refused`.

    Attributes:
        granted: rows of different lengths may share a step.
        reason: why, or why not; never empty.
        layout: how the executor keeps a cohort's rows. Never STRIPPED in a refusal: rows of one length have nothing to strip.
    """

    granted: bool
    reason: str
    layout: Layout

    @classmethod
    def refused(cls, reason: str, *, layout: Layout) -> "RaggedGrant":
        """A refusal and whose words it has."""
        one_width = Layout.ALIGNED if layout is Layout.STRIPPED else layout
        return cls(granted=False, reason=reason or "refused without a reason", layout=one_width)

    @classmethod
    def decide(cls, *, declared: bool, reason: str, layout: Layout) -> "RaggedGrant":
        """What an executor's declaration comes to."""
        if not declared:
            return cls.refused(reason, layout=layout)
        return cls(granted=True, reason=reason or "declared without a reason", layout=layout)

    @property
    def refusal(self) -> str:
        """Why not; "" when granted."""
        return "" if self.granted else self.reason

    def buckets_by_cache_length(self) -> bool:
        """Whether only rows of one length may share a step."""
        return not self.granted

    def assembles_every_step(self) -> bool:
        """Whether the batched cache is built anew for every decode step: rows that are stripped each step have to be joined again.

        A refused run never does: rows that never diverge gain nothing from it. Aligned rows keep their alignment while membership
        stays, and paged rows are never assembled.
        """
        return self.granted and self.layout is Layout.STRIPPED


def grant_for(info: ExecutorInfo, *, limits: Limits) -> RaggedGrant:
    """The decision for one executor under the scheduler's settings."""
    layout = Layout[limits.layout.upper()]
    if limits.admission == "bucketed":
        return RaggedGrant.refused(BUCKETED_REASON, layout=layout)
    return RaggedGrant.decide(declared=info.ragged_granted, reason=info.ragged_reason, layout=layout)


def drafts_here(info: ExecutorInfo, *, limits: Limits) -> bool:
    """Whether an executor's rows may have drafts: in the paged layout, where it makes some and nobody said `off`."""
    return bool(info.mtp_depth) and limits.drafts != "off" and limits.layout == limits.admission == "paged"


def rows_move_together(info: ExecutorInfo, grant: RaggedGrant, *, limits: Limits) -> bool:
    """Whether decode rows all move by the slowest: as set, or because an executor that drafts was not granted more."""
    return drafts_here(info, limits=limits) and (limits.advance == "cohort" or not grant.granted)
