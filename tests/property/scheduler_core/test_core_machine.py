"""Hypothesis drives the core through everything that may happen to it: see `tests/support/core_machine.py`.

Rows of field_reports.md: B029, B054-B057, B064, B065, B092.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.support.core_machine import BLOCK_SIZES, NUM_BLOCKS, CoreMachine, limits

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


class PagedMachine(CoreMachine):
    """Everything mixes."""

    @initialize(limits=limits(), block_size=BLOCK_SIZES, num_blocks=NUM_BLOCKS)
    def start(self, limits, block_size, num_blocks):
        self.begin(limits, block_size=block_size, num_blocks=num_blocks)


class DraftingMachine(CoreMachine):
    """Everything mixes, and executors guess ahead."""

    @initialize(
        limits=limits(drafts=st.sampled_from(["adaptive", "fixed"]), advance=st.sampled_from(["per_sequence", "cohort"])),
        block_size=BLOCK_SIZES,
        num_blocks=NUM_BLOCKS,
        mtp_depth=st.integers(1, 5),
        granted=st.booleans(),
    )
    def start(self, limits, block_size, num_blocks, mtp_depth, granted):
        self.begin(limits, block_size=block_size, num_blocks=num_blocks, granted=granted, mtp_depth=mtp_depth)


class CohortMachine(CoreMachine):
    """One bucket a step, refused and granted, in every layout."""

    @initialize(
        limits=limits(admission=st.sampled_from(["bucketed", "ragged"]), layout=st.sampled_from(["paged", "aligned", "stripped"])),
        block_size=BLOCK_SIZES,
        num_blocks=NUM_BLOCKS,
        granted=st.booleans(),
    )
    def start(self, limits, block_size, num_blocks, granted):
        self.begin(limits, block_size=block_size, num_blocks=num_blocks, granted=granted)


PagedMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=QUIET)
TestPagedMachine = PagedMachine.TestCase
DraftingMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=QUIET)
TestDraftingMachine = DraftingMachine.TestCase
CohortMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=QUIET)
TestCohortMachine = CohortMachine.TestCase
