"""Cadence: what happens to the batched cache before a step, by one truth table, and which layouts allow which cadence.

Paged rows have no batched cache: always NOTHING. Otherwise a decode step assembles (IN) when its members are not, in order, those
of the decode step before, or when the grant says every step; a prompt step drops the batched cache (RESET), or begins from the
sequences' own caches (IN) when they hold something already.
"""

from scheduler_svc.core.errors import ContradictingCadence
from scheduler_svc.core.types import CacheOp, Layout, Limits

EVERY_STEP = "every_step"
ON_CHANGE = "on_change"


def issues_cache_in(*, no_kv: bool, changed: bool, granted: bool) -> bool:
    """Whether a decode step begins with IN. `granted`: the grant assembles every step; `no_kv`: there are no caches to join."""
    return not no_kv and (changed or granted)


def decode_op(layout: Layout, *, changed: bool, every_step: bool) -> CacheOp:
    """The `cache_op` of a decode step."""
    if layout is Layout.PAGED:
        return CacheOp.NOTHING
    return CacheOp.IN if issues_cache_in(no_kv=False, changed=changed, granted=every_step) else CacheOp.NOTHING


def prompt_op(layout: Layout, *, offset: int) -> CacheOp:
    """The `cache_op` of a prompt step whose rows begin at `offset`."""
    if layout is Layout.PAGED:
        return CacheOp.NOTHING
    return CacheOp.IN if offset else CacheOp.RESET


def check_cadence(limits: Limits) -> None:
    """Raises ContradictingCadence when admission, layout and cadence, as set, cannot all be kept."""
    if limits.admission == "paged" and limits.layout != "paged":
        raise ContradictingCadence(f"admission `paged` mixes rows freely and needs layout `paged`, not `{limits.layout}`")
    if limits.cadence == "auto":
        return
    if limits.layout == "paged":
        raise ContradictingCadence(f"layout `paged` is never assembled; cadence `{limits.cadence}` contradicts it")
    if limits.layout == "aligned" and limits.cadence == EVERY_STEP:
        raise ContradictingCadence(
            "layout `aligned` keeps its alignment until membership changes and defers the strip to that moment; "
            "cadence `every_step` would strip and align each step: use layout `stripped`"
        )
    if limits.layout == "stripped" and limits.admission == "ragged" and limits.cadence == ON_CHANGE:
        raise ContradictingCadence(
            "layout `stripped` takes a ragged cohort apart after every step; "
            "cadence `on_change` would leave it so: use layout `aligned`"
        )
    if limits.admission == "bucketed" and limits.cadence == EVERY_STEP:
        raise ContradictingCadence("rows of one length never diverge: admission `bucketed` gains nothing from cadence `every_step`")
