"""The scheduler at one moment as plain data, for status, metrics and the throughput line.

Nothing is counted twice: the core counts sequences and tokens, the engine counts sessions and time, and a view reads both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler_svc.accounts import StepAccounts
from scheduler_svc.core.drafting import DraftTotals
from scheduler_svc.core.stats import ExecutorStats, Stats
from scheduler_svc.engine import Engine
from scheduler_svc.executor_client import ExecutorClient
from scheduler_svc.executor_link import ExecutorLink


@dataclass(frozen=True, slots=True)
class ExecutorView:
    """One address at one moment. Block counts are 0 while no session is open."""

    address: str
    state: str
    accounts: StepAccounts
    instance_id: str = ""
    num_resident: int = 0
    num_scheduled: int = 0
    plans_in_flight: int = 0
    num_blocks: int = 0
    num_blocks_used: int = 0
    num_blocks_cached: int = 0
    ragged_granted: bool = False
    ragged_reason: str = ""
    layout: str = ""
    grant_id: int = 0
    device: str = ""
    precision: str = ""
    kv_cache_dtype: str = ""
    drafts: DraftTotals | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The scheduler at one moment, totals of tokens and events only rise."""

    num_waiting: int
    num_waiting_tokens: int
    num_resident: int
    num_scheduled: int
    num_admitted: int
    num_preemptions: int
    num_prompt_tokens: int
    num_generated_tokens: int
    prefix_queries: int
    prefix_hits: int
    num_late_dropped: int
    num_executors_lost: int
    num_gateways_dropped: int
    draining: bool
    executors: Sequence[ExecutorView]
    admission: str = "paged"
    num_decisions: int = 0
    num_buckets: int = 0
    num_rows_offered: int = 0
    num_rows_chosen: int = 0


def view_of(stats: Stats, engine: Engine, *, clients: Iterable[ExecutorClient], num_gateways_dropped: int) -> View:
    """Everything, now."""
    links = {link.address: link for link in engine.links.values()}
    books = {one.executor_id: one for one in stats.executors}
    totals = stats.counters
    return View(
        num_waiting=stats.num_waiting,
        num_waiting_tokens=stats.num_waiting_tokens,
        num_resident=stats.num_running,
        num_scheduled=stats.num_scheduled,
        num_admitted=engine.num_admitted,
        num_preemptions=totals.num_preemptions,
        num_prompt_tokens=totals.num_prompt_tokens,
        num_generated_tokens=totals.num_generated_tokens,
        prefix_queries=totals.prefix_queries,
        prefix_hits=totals.prefix_hits,
        num_late_dropped=totals.num_late_results + engine.num_late_results + engine.routes.num_late,
        num_executors_lost=engine.num_lost,
        num_gateways_dropped=num_gateways_dropped,
        draining=engine.draining,
        admission=stats.policy,
        num_decisions=totals.num_decisions,
        num_buckets=totals.num_buckets,
        num_rows_offered=totals.num_rows_offered,
        num_rows_chosen=totals.num_rows_chosen,
        executors=[_executor(client, links.get(client.address), books, engine) for client in clients],
    )


def _executor(client: ExecutorClient, link: ExecutorLink | None, books: dict[int, ExecutorStats], engine: Engine) -> ExecutorView:
    accounts = engine.accounts.get(client.address) or StepAccounts()
    if link is None or link.executor_id not in books:
        state = "connecting" if client.state == "connecting" else "lost"
        return ExecutorView(address=client.address, state=state, accounts=accounts)
    stats = books[link.executor_id]
    return ExecutorView(
        address=client.address,
        state="draining" if link.draining else "ready",
        accounts=accounts,
        instance_id=link.capabilities.instance_id,
        num_resident=stats.num_resident,
        num_scheduled=stats.num_scheduled,
        plans_in_flight=stats.plans_in_flight,
        num_blocks=stats.num_blocks,
        num_blocks_used=stats.num_blocks_used,
        num_blocks_cached=stats.num_blocks_cached,
        ragged_granted=stats.grant.granted,
        ragged_reason=stats.grant.reason,
        layout=stats.grant.layout.name.lower(),
        grant_id=stats.grant_id,
        device=link.capabilities.device,
        precision=link.capabilities.precision,
        kv_cache_dtype=link.capabilities.kv_cache_dtype,
        drafts=stats.drafts,
    )
