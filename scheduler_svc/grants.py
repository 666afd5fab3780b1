"""The ragged grant at the scheduler's edge: who may join under the settings, and what the log says of each decision."""

import logging

from drumline.errors import ProtocolMismatch
from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from scheduler_svc import wire
from scheduler_svc.core.grant import RaggedGrant, grant_for, rows_move_together
from scheduler_svc.core.types import ExecutorInfo, Layout, Limits

_LOG = logging.getLogger(__name__)


def decide(executor_id: int, caps: GetCapabilitiesResponse, *, limits: Limits) -> RaggedGrant:
    """The decision for one session, from its handshake. Raises ProtocolMismatch when the executor lacks the layout."""
    info = wire.executor_info(executor_id, caps)
    grant = grant_for(info, limits=limits)
    for layout in (Layout[limits.layout.upper()], grant.layout):
        if layout not in info.layouts:
            served = ", ".join(one.name.lower() for one in info.layouts) or "none"
            raise ProtocolMismatch(f"this scheduler runs layout {layout.name.lower()}; the executor serves {served}")
    return grant


def announce(address: str, grant: RaggedGrant, *, limits: Limits) -> None:
    """Says what was decided. A refusal of what was asked for is a warning, so that its absence never looks like an accident."""
    how = f"admission={limits.admission} layout={grant.layout.name.lower()}"
    if grant.granted:
        _LOG.info("Ragged batch admission is ON executor=%s %s reason=%s", address, how, grant.reason)
        return
    _LOG.debug("Ragged batch admission is off executor=%s %s reason=%s", address, how, grant.refusal)
    if limits.admission == "ragged":
        _LOG.warning("admission `ragged` was asked for, executor=%s cannot honour it: %s", address, grant.refusal)


def announce_advance(address: str, info: ExecutorInfo, grant: RaggedGrant, *, limits: Limits) -> None:
    """Says when rows with drafts move by the slowest: it costs most of what drafts bring. A warning where nobody asked for it."""
    if rows_move_together(info, grant, limits=limits):
        level, why = (logging.INFO, "as set") if limits.advance == "cohort" else (logging.WARNING, grant.refusal)
        _LOG.log(level, "rows with drafts move by the slowest (COHORT), one plan in flight, executor=%s: %s", address, why)


def late_change(before: GetCapabilitiesResponse, now: GetCapabilitiesResponse) -> str:
    """What to say when an executor declares something else in the middle of a session; "" when it does not.

    The session keeps what was decided at its handshake: a cohort must not change under a rule that changes.
    """
    if before.ragged == now.ragged:
        return ""
    word = "granted" if now.ragged.granted else "refused"
    return f"ragged cohorts are now declared {word} ({now.ragged.reason}): too late for this session, which keeps its grant"
