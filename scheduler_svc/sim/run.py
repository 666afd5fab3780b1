"""A seeded simulation: a safety phase full of faults, then a liveness phase in which faults stop and everything must finish."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import ExecutorInfo, FinishReason, Limits
from scheduler_svc.sim.model_executor import SimSampling
from scheduler_svc.sim.world import World

STEP_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class Report:
    """What one seed did. `plan_digest` names every plan made, in order."""

    seed: int
    plan_digest: str
    num_plans: int
    num_sequences: int
    num_refused: int
    num_preemptions: int
    num_moved: int
    num_recomputed: int
    prefix_hits: int
    num_accepted: int
    reasons: dict[str, int]


def simulate(
    seed: int,
    *,
    num_turns: int = 150,
    make_core: Callable[[Limits], Scheduler] = Scheduler,
    thorough: bool = False,
    granted: bool = False,
    mtp_depth: int = 0,
    **changes: Any,
) -> Report:
    """Runs one seed; raises what the core, the executors or the clients find wrong. `make_core` lets a test plant a bug.

    `granted`: what executors declare of ragged cohorts. `mtp_depth`: how many tokens ahead they guess. `changes`: fields of
    `Limits` that are not drawn.
    """
    random = Random(seed)  # noqa: S311 - a simulation must be repeatable
    limits = Limits(
        max_waiting_requests=random.choice((4, 30, 30)),
        max_waiting_tokens=random.choice((60, 1000, 1000)),
        max_num_seqs=random.choice((2, 4, 8)),
        max_num_batched_tokens=random.choice((4, 16, 64)),
        prefill_chunk=random.choice((0, 3, 5)),
        enable_prefix_caching=random.random() < 0.8,
        plans_in_flight=random.choice((1, 2, 2, 3)),
    )
    limits = replace(limits, **changes)
    world = World(limits, core=make_core(limits), thorough=thorough)
    chaos = Chaos(world, random, granted=granted, mtp_depth=mtp_depth)
    num_refused = sum(chaos.turn() for _ in range(num_turns))
    chaos.calm()
    world.settle()
    world.check_idle()
    counters = world.core.counters
    reasons = [client.reason for client in world.clients.values()]
    return Report(
        seed=seed,
        plan_digest=world.digest.hexdigest(),
        num_plans=world.num_plans,
        num_sequences=len(world.clients),
        num_refused=num_refused,
        num_preemptions=counters.num_preemptions,
        num_moved=counters.num_moved,
        num_recomputed=counters.num_recomputed,
        prefix_hits=counters.prefix_hits,
        num_accepted=sum(books.drafting.totals.num_accepted_tokens for books in world.core.executors.values() if books.drafting),
        reasons={reason.name: reasons.count(reason) for reason in FinishReason},
    )


class Chaos:
    """Draws what happens next. All choices come from one generator, in one order."""

    def __init__(self, world: World, random: Random, *, granted: bool = False, mtp_depth: int = 0) -> None:
        self._world = world
        self._mtp_depth = mtp_depth
        self._granted = granted
        self._random = random
        self._block_size = random.choice((1, 2, 4))
        self._num_blocks = random.choice((8, 14, 40))
        self._fail_rate = random.choice((0.0, 0.01, 0.03))
        self._calm = False
        self._join()

    def turn(self) -> int:
        """One thing happens. Returns how many arrivals were refused."""
        random, world = self._random, self._world
        world.now_ns += random.randrange(2 * STEP_NS)
        draw = random.random()
        refused = 0
        if draw < 0.15:
            refused = self._submit()
        elif draw < 0.20 and world.clients:
            world.abort(random.sample(sorted(world.clients)[-10:], 1))
        elif draw < 0.21 and world.nodes:
            self._lose(world.kill)
        elif draw < 0.22 and world.nodes:
            self._lose(world.drain)
        elif draw < 0.25 and len(world.nodes) < 3:
            self._join()
        elif draw < 0.27:
            world.split()
        elif world.nodes:
            executor_id = random.choice(sorted(world.nodes))
            if draw < 0.60:
                # As the shell does: a result frees a place in the pipeline, which is filled at once.
                world.deliver(executor_id)
                while world.send(executor_id):
                    pass
            elif draw < 0.75:
                world.send(executor_id)
            else:
                world.deliver(executor_id)
        return refused

    def calm(self) -> None:
        """Faults stop; one healthy executor that can hold whatever was admitted joins."""
        self._calm = True
        self._num_blocks = 80
        self._join()

    def _lose(self, how: Callable[[int], None]) -> None:
        how(self._random.choice(sorted(self._world.nodes)))

    def _join(self) -> None:
        blocks = self._num_blocks
        info = ExecutorInfo(0, "model", self._block_size, blocks, self._random.choice((40, 64)), 10, self._random.choice((8, 64)))
        info = replace(info, ragged_granted=self._granted, mtp_depth=self._mtp_depth)
        self._world.join(info, fail_row=self._fails)

    def _fails(self, step_id: int, row: int, key: int) -> bool:
        """Some sequences fail soon, often while others rely on what they compute; any row may fail now and then."""
        return not self._calm and self._random.random() < self._fail_rate * (30 if key % 4 == 0 else 1)

    def _submit(self) -> int:
        random, scoring = self._random, self._random.random() < 0.1
        sampling = SimSampling(
            seed=random.randrange(3), max_tokens=random.randrange(0 if scoring else 1, 14), prompt_logprobs=scoring
        )
        # Few distinct tokens and stems, so that prefixes are shared.
        stem = [random.choice((2, 3))] * random.choice((0, 4, 9, 20))
        prompts = [stem + [random.randrange(2, 6) for _ in range(random.randrange(1, 8))] for _ in range(random.choice((1, 2, 5)))]
        timeout_ns = random.choice((0, 0, 0, 0, 0, 60 * STEP_NS))
        tenant = random.choice(("", "", "a"))
        return self._world.submit(prompts, sampling, tenant=tenant, timeout_ns=timeout_ns) is not None
