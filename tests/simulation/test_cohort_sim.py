"""The seeded simulation under the bucketed and the ragged rule: safety, then liveness; executors judge each cohort."""

import pytest

from scheduler_svc.core import bucketed, cohort_rows
from scheduler_svc.core.errors import CoreError
from scheduler_svc.core.types import CacheOp
from scheduler_svc.sim.model_executor import ContractBroken
from scheduler_svc.sim.run import simulate

RULES = [
    ("bucketed", "paged", True),
    ("bucketed", "aligned", False),
    ("ragged", "aligned", True),
    ("ragged", "stripped", True),
    ("ragged", "stripped", False),
    ("ragged", "paged", True),
]
NUM_SEEDS = 6


def simulate_all(admission, layout, granted, *, seeds=range(NUM_SEEDS), **options):
    return [simulate(seed, num_turns=80, admission=admission, layout=layout, granted=granted, **options) for seed in seeds]


@pytest.mark.parametrize(("admission", "layout", "granted"), RULES)
def test_safety_then_liveness(admission, layout, granted):
    reports = simulate_all(admission, layout, granted)
    assert sum(report.num_plans for report in reports) > 100
    assert sum(report.num_moved for report in reports) > 0
    assert sum(report.reasons["STOP"] + report.reasons["LENGTH"] for report in reports) > 20


def test_schedule_that_returns_none_changes_nothing():
    simulate_all("ragged", "stripped", True, seeds=range(2000, 2002), thorough=True)
    simulate_all("bucketed", "aligned", False, seeds=range(2000, 2002), thorough=True)


def test_same_seed_same_plans():
    assert simulate_all("ragged", "aligned", True, seeds=(7,)) == simulate_all("ragged", "aligned", True, seeds=(7,))


def ignore_the_refusal(patch):
    """As mutation 1."""
    patch.setattr(bucketed, "ragged_bucket_len", lambda rows, *, grant: 0)


def never_assemble(patch):
    patch.setattr(bucketed, "decode_op", lambda layout, *, changed, every_step: CacheOp.NOTHING)


def remember_a_cohort_across_prompts(patch):
    run = bucketed.BucketedAdmission._run_prompts

    def keeps(self, sketch, seqs):
        assembled = sketch.books.cohort.assembled
        ran = run(self, sketch, seqs)
        sketch.books.cohort.assembled = assembled
        return ran

    patch.setattr(bucketed.BucketedAdmission, "_run_prompts", keeps)


def feed_prompts_that_begin_elsewhere(patch):
    patch.setattr(cohort_rows, "start_of", lambda seq, sketch, *, policy: 0)


PLANTED = [
    (ignore_the_refusal, RULES[1]),
    (never_assemble, RULES[2]),
    (remember_a_cohort_across_prompts, RULES[2]),
    (feed_prompts_that_begin_elsewhere, RULES[2]),
]


@pytest.mark.parametrize(("plant", "rule"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_canary_is_found(plant, rule, monkeypatch):
    """Check the checkers: each planted bug is found by some seed."""
    plant(monkeypatch)
    with pytest.raises((CoreError, ContractBroken, KeyError, IndexError, ValueError)):
        simulate_all(*rule)
