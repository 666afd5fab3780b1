"""A scheduler with one executor whose rows live in cohorts, moved one plan at a time."""

from scheduler_svc.core.types import RowKind
from tests.support.core_world import House

PREFILL, LAST, DECODE = (int(kind) for kind in (RowKind.PREFILL, RowKind.PREFILL_LAST, RowKind.DECODE))

FAR = (5, 305, 605)
"""Cached lengths that the coalescence override does not bring together."""
BIG = {"max_model_len": 2000, "num_blocks": 1200, "max_num_batched_tokens": 1000}


def house(*, admission="ragged", layout="aligned", granted=True, limits=None, **info):
    told = {
        "max_num_batched_tokens": 1000,
        "admission": admission,
        "layout": layout,
        "enable_prefix_caching": False,
        **(limits or {}),
    }
    return House(limits=told, ragged_granted=granted, ragged_reason="told so", **info)


def prompts(*lengths, first=2):
    return [[first + index] * length for index, length in enumerate(lengths)]


def rows_of(one, plan):
    """Keys and kinds of the rows just planned."""
    flight = one.books.in_flight[-1]
    assert flight.plan is plan
    return flight.rows.keys, flight.rows.kinds()


def turn(one):
    """One plan and its result: keys, kinds, cache_op."""
    plan = one.plan()
    keys, kinds = rows_of(one, plan)
    one.deliver(0)
    return keys, kinds, plan.cache_op


def drain_prompts(one):
    """Steps until every resident decodes."""
    while one.books.prefilling or len(one.core.queue):
        turn(one)
