"""What the core can say about itself, as frozen plain data, for status and metrics."""

from dataclasses import dataclass, replace

from scheduler_svc.core.counters import Counters
from scheduler_svc.core.drafting import DraftTotals
from scheduler_svc.core.grant import RaggedGrant
from scheduler_svc.core.state import CoreState
from scheduler_svc.core.types import Limits


@dataclass(frozen=True, slots=True)
class ExecutorStats:
    """One executor. `num_scheduled`: rows of its last plan. Blocks: held by sequences, or kept only for prefix hits. `drafts`:
    None = it drafts nothing."""

    executor_id: int
    draining: bool
    num_resident: int
    num_scheduled: int
    plans_in_flight: int
    num_blocks: int
    num_blocks_used: int
    num_blocks_cached: int
    grant: RaggedGrant
    grant_id: int
    drafts: DraftTotals | None


@dataclass(frozen=True, slots=True)
class Stats:
    """The whole core. `counters` is a copy: name -> total. `num_waiting_tokens`: prompt tokens of arrivals that wait."""

    policy: str
    limits: Limits
    num_waiting: int
    num_running: int
    num_scheduled: int
    num_waiting_tokens: int
    counters: Counters
    executors: tuple[ExecutorStats, ...]


def collect(core: CoreState) -> Stats:
    """Reads the books."""
    executors = tuple(
        ExecutorStats(
            executor_id=books.executor_id,
            draining=books.draining,
            num_resident=books.num_resident,
            num_scheduled=len(books.in_flight[-1].rows) if books.in_flight else 0,
            plans_in_flight=len(books.in_flight),
            num_blocks=books.info.num_blocks,
            num_blocks_used=books.kv.pool.num_held,
            num_blocks_cached=len(books.kv.pool.cached),
            grant=books.grant,
            grant_id=books.grant_id,
            drafts=books.drafting.totals.copy() if books.drafting is not None else None,
        )
        for books in core.executors.values()
    )
    totals = core.counters
    return Stats(
        policy=core.policy.name,
        limits=core.limits,
        num_waiting=len(core.queue),
        num_running=sum(one.num_resident for one in executors),
        num_scheduled=sum(one.num_scheduled for one in executors),
        num_waiting_tokens=core.queue.num_fresh_tokens,
        counters=replace(totals),
        executors=executors,
    )
