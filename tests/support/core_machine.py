"""Hypothesis drives the core through everything that may happen to it, against executors that keep the seam's contract.

`World` checks after every call: the core's invariants, each token delivered once and in order and equal to the undisturbed run, no
row that attends to anything but its own prefix, and under the bucketed and the ragged rule what a dense executor demands.
"""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from scheduler_svc.core.types import ExecutorInfo, Limits
from scheduler_svc.sim.model_executor import SimSampling
from scheduler_svc.sim.world import World

STEMS = ([], [2] * 4, [2] * 9, [2, 2, 2, 2, 3, 3, 3, 3])
BLOCK_SIZES = st.sampled_from([1, 2, 4])
NUM_BLOCKS = st.sampled_from([6, 9, 16, 40])


def limits(**more):
    """Small limits; `more`: strategies for further fields."""
    return st.builds(
        Limits,
        max_waiting_requests=st.sampled_from([3, 50]),
        max_waiting_tokens=st.sampled_from([30, 2000]),
        max_num_seqs=st.sampled_from([1, 2, 6]),
        max_num_batched_tokens=st.sampled_from([4, 9, 64]),
        prefill_chunk=st.sampled_from([0, 1, 3]),
        enable_prefix_caching=st.booleans(),
        plans_in_flight=st.integers(1, 3),
        **more,
    )


class CoreMachine(RuleBasedStateMachine):
    """Rules are the core's inputs; teardown lets faults stop and demands that everything ends."""

    def begin(self, limits, *, block_size, num_blocks, granted=False, mtp_depth=0):
        """The subclass's initialize rule calls it."""
        self.world = World(limits, thorough=True)
        self.info = ExecutorInfo(0, "model", block_size, num_blocks, 30, 8, 64, ragged_granted=granted, mtp_depth=mtp_depth)
        self.failing = False
        self.join()

    def pick(self, index):
        nodes = sorted(self.world.nodes)
        return nodes[index % len(nodes)]

    @precondition(lambda self: len(self.world.nodes) < 3)
    @rule()
    def join(self):
        self.world.join(self.info, fail_row=lambda step_id, row, key: self.failing)

    @rule(
        stem=st.sampled_from(STEMS),
        tails=st.lists(st.lists(st.integers(2, 3), min_size=1, max_size=5), min_size=1, max_size=3),
        max_tokens=st.integers(1, 9),
        end_after=st.sampled_from([0, 0, 2]),
        tenant=st.sampled_from(["", "", "a"]),
        timeout_ns=st.sampled_from([0, 0, 5]),
    )
    def submit(self, stem, tails, max_tokens, end_after, tenant, timeout_ns):
        sampling = SimSampling(max_tokens=max_tokens, end_after=end_after)
        self.world.submit([stem + tail for tail in tails], sampling, tenant=tenant, timeout_ns=timeout_ns)

    @rule(prompt=st.lists(st.integers(2, 3), min_size=1, max_size=12), max_tokens=st.integers(0, 2))
    def submit_scoring(self, prompt, max_tokens):
        self.world.submit([prompt], SimSampling(max_tokens=max_tokens, prompt_logprobs=True))

    @precondition(lambda self: self.world.nodes)
    @rule(index=st.integers(0, 2), times=st.integers(1, 3))
    def send(self, index, times):
        for _ in range(times):
            self.world.send(self.pick(index))

    @precondition(lambda self: self.world.nodes)
    @rule(index=st.integers(0, 2), times=st.integers(1, 2))
    def deliver(self, index, times):
        for _ in range(times):
            self.world.deliver(self.pick(index))

    @precondition(lambda self: self.world.nodes)
    @rule(index=st.integers(0, 2), turns=st.integers(1, 6))
    def run(self, index, turns):
        for _ in range(turns):
            self.world.send(self.pick(index))
            self.world.deliver(self.pick(index))

    @precondition(lambda self: self.world.nodes)
    @rule(index=st.integers(0, 2))
    def deliver_failing(self, index):
        self.failing = True
        self.world.deliver(self.pick(index))
        self.failing = False

    @precondition(lambda self: self.world.clients)
    @rule(picks=st.lists(st.integers(0, 50), min_size=1, max_size=3))
    def abort(self, picks):
        keys = sorted(self.world.clients)
        self.world.abort([keys[-1 - pick % len(keys)] for pick in picks])

    @precondition(lambda self: self.world.nodes)
    @rule(index=st.integers(0, 2))
    def kill(self, index):
        self.world.kill(self.pick(index))

    @precondition(lambda self: self.world.nodes)
    @rule(index=st.integers(0, 2))
    def drain(self, index):
        self.world.drain(self.pick(index))

    @rule(step=st.integers(1, 4))
    def time_passes(self, step):
        self.world.now_ns += step

    @rule()
    def split(self):
        self.world.split()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.join(replace(self.info, num_blocks=40))
            self.world.settle()
            self.world.check_idle()
