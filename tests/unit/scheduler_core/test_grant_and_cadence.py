"""The grant and the cadence as values: rows B1 to B3, B6, B10, B13, F3 of domain.md section 6."""

import dataclasses

import pytest

from scheduler_svc.core.cadence import check_cadence, decode_op, issues_cache_in, prompt_op
from scheduler_svc.core.errors import ContradictingCadence
from scheduler_svc.core.grant import RaggedGrant, grant_for
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CacheOp, Layout, Limits
from tests.support.core_world import executor_info

NOTHING, IN, RESET = CacheOp.NOTHING, CacheOp.IN, CacheOp.RESET


def decide(*, declared, layout=Layout.STRIPPED, reason="rows carry their lengths"):
    return RaggedGrant.decide(declared=declared, reason=reason, layout=layout)


def test_b3_a_declaration_that_grants_is_a_grant_with_its_reason():
    grant = decide(declared=True)
    assert grant.granted
    assert (grant.reason, grant.refusal) == ("rows carry their lengths", "")


def test_b3_a_declaration_that_refuses_is_a_refusal_that_keeps_its_reason():
    grant = decide(declared=False, reason="slot 3 is rolling")
    assert not grant.granted
    assert grant.reason == grant.refusal == "slot 3 is rolling"


def test_b3_no_decision_is_without_words():
    assert RaggedGrant.refused("", layout=Layout.ALIGNED).refusal
    assert decide(declared=True, reason="").reason


def test_b3_a_grant_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        decide(declared=False).granted = True


def test_b3_only_a_refusal_buckets_by_cache_length():
    assert decide(declared=False).buckets_by_cache_length()
    assert not decide(declared=True).buckets_by_cache_length()


@pytest.mark.parametrize(
    ("declared", "layout", "every_step"),
    [(True, Layout.STRIPPED, True), (True, Layout.ALIGNED, False), (True, Layout.PAGED, False)]
    + [(False, layout, False) for layout in Layout],
)
def test_b3_b13_every_step_is_assembled_only_where_rows_diverge_and_are_stripped(declared, layout, every_step):
    assert decide(declared=declared, layout=layout).assembles_every_step() is every_step


def test_b3_a_refused_run_has_nothing_to_strip():
    assert decide(declared=False, layout=Layout.STRIPPED).layout is Layout.ALIGNED
    assert decide(declared=False, layout=Layout.PAGED).layout is Layout.PAGED


def test_b4_one_decision_is_read_by_key_cadence_and_plan():
    """It is made when the executor joins and lies with its books; nothing else holds it."""
    core = Scheduler(Limits(admission="ragged", layout="stripped"))
    core.add_executor(executor_info(executor_id=4, ragged_granted=True, ragged_reason="told"))
    core.add_executor(executor_info(executor_id=5, ragged_granted=False, ragged_reason="a rolling slot"))
    assert core.executors[4].grant == decide(declared=True, reason="told")
    assert core.executors[5].grant.refusal == "a rolling slot"


def test_b14_the_bucketed_policy_refuses_by_name_whatever_is_declared():
    grant = grant_for(executor_info(ragged_granted=True), limits=Limits(admission="bucketed"))
    assert not grant.granted
    assert "bucketed" in grant.refusal


@pytest.mark.parametrize(
    ("no_kv", "changed", "granted", "issues"),
    [
        (False, False, False, False),
        (False, False, True, True),
        (False, True, False, True),
        (False, True, True, True),
        (True, False, False, False),
        (True, False, True, False),
        (True, True, False, False),
        (True, True, True, False),
    ],
)
def test_b2_issues_cache_in_for_all_eight_inputs(no_kv, changed, granted, issues):
    assert issues_cache_in(no_kv=no_kv, changed=changed, granted=granted) is issues


@pytest.mark.parametrize(
    ("layout", "changed", "every_step", "op"),
    [
        (Layout.PAGED, True, False, NOTHING),
        (Layout.PAGED, False, False, NOTHING),
        (Layout.ALIGNED, True, False, IN),
        (Layout.ALIGNED, False, False, NOTHING),
        (Layout.STRIPPED, True, True, IN),
        (Layout.STRIPPED, False, True, IN),
    ],
)
def test_b1_cache_op_of_a_decode_step(layout, changed, every_step, op):
    assert decode_op(layout, changed=changed, every_step=every_step) is op


@pytest.mark.parametrize(
    ("layout", "offset", "op"),
    [
        (Layout.PAGED, 0, NOTHING),
        (Layout.PAGED, 16, NOTHING),
        (Layout.ALIGNED, 0, RESET),
        (Layout.ALIGNED, 16, IN),
        (Layout.STRIPPED, 0, RESET),
        (Layout.STRIPPED, 16, IN),
    ],
)
def test_b1_cache_op_of_a_prompt_step(layout, offset, op):
    assert prompt_op(layout, offset=offset) is op


@pytest.mark.parametrize(
    ("admission", "layout", "cadence", "words"),
    [
        ("paged", "aligned", "auto", ("paged", "aligned")),
        ("paged", "stripped", "auto", ("paged", "stripped")),
        ("ragged", "aligned", "every_step", ("aligned", "every_step")),
        ("bucketed", "aligned", "every_step", ("aligned", "every_step")),
        ("ragged", "stripped", "on_change", ("stripped", "on_change")),
        ("bucketed", "stripped", "every_step", ("bucketed", "every_step")),
        ("ragged", "paged", "every_step", ("paged", "every_step")),
        ("paged", "paged", "on_change", ("paged", "on_change")),
    ],
)
def test_f3_settings_that_contradict_each_other_are_refused_by_name(admission, layout, cadence, words):
    with pytest.raises(ContradictingCadence) as refusal:
        Scheduler(Limits(admission=admission, layout=layout, cadence=cadence))
    assert all(f"`{word}`" in str(refusal.value) for word in words)


@pytest.mark.parametrize(
    ("admission", "layout", "cadence"),
    [
        ("paged", "paged", "auto"),
        ("ragged", "aligned", "on_change"),
        ("ragged", "stripped", "every_step"),
        ("bucketed", "aligned", "on_change"),
        ("bucketed", "stripped", "on_change"),
        ("bucketed", "paged", "auto"),
        ("ragged", "paged", "auto"),
    ],
)
def test_f3_settings_that_agree_are_taken(admission, layout, cadence):
    check_cadence(Limits(admission=admission, layout=layout, cadence=cadence))
