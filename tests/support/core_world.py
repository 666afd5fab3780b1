"""Short ways to build a simulated world for tests of the scheduler core."""

from array import array
from typing import Any

from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from drumline.trace.frames import pack_state
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.paged import PagedAdmission
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.types import ExecutorInfo, Limits, Plan, Request
from scheduler_svc.replay.books import Books, Desk
from scheduler_svc.replay.start import seed_books
from scheduler_svc.sim.model_executor import SimSampling
from scheduler_svc.sim.world import World


def executor_info(**changes: Any) -> ExecutorInfo:
    """A small executor: 4-token blocks, 64 of them, 8 slots."""
    fields: dict[str, Any] = {
        "executor_id": 0,
        "model_digest": "model",
        "block_size": 4,
        "num_blocks": 64,
        "max_model_len": 200,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
    }
    return ExecutorInfo(**{**fields, **changes})


class House(World):
    """A thorough world with one executor, id 0, and the means to look inside."""

    def __init__(self, *, limits: dict[str, Any] | None = None, fails: set[tuple[int, int]] | None = None, **info: Any) -> None:
        super().__init__(Limits(**(limits or {})), thorough=True)
        self.fails = fails if fails is not None else set()
        self.join(executor_info(**info), fail_row=lambda step_id, row, key: (step_id, key) in self.fails)

    @property
    def books(self) -> ExecutorBooks:
        """Of executor 0."""
        return self.core.executors[0]

    def ask(self, *prompts: list[int], max_tokens: int = 4, **options: Any) -> list[int]:
        """Submits, demands admission and returns the keys. Options go to the sampling or to the arrival, by name."""
        sampling = SimSampling(max_tokens=max_tokens, **{k: v for k, v in options.items() if k in SimSampling.__slots__})
        before = set(self.clients)
        assert self.submit(prompts, sampling, **{k: v for k, v in options.items() if k not in SimSampling.__slots__}) is None
        return sorted(set(self.clients) - before)

    def plan(self, executor_id: int = 0) -> Plan:
        """Sends one plan and returns it."""
        assert self.send(executor_id)
        return self.core.executors[executor_id].in_flight[-1].plan

    def find(self, prompt: list[int]) -> list[int]:
        """Cached blocks that a newcomer with this prompt would get now."""
        policy = self.core.policy
        if not isinstance(policy, PagedAdmission):
            raise TypeError(policy)
        return policy.lookup(Sequence(Request(10**9, "probe", prompt, 1), array("I", prompt)), self.books)

    def finish(self) -> None:
        """Runs until idle and checks that nothing is left."""
        self.settle()
        self.check_idle()

    def cached_of(self, plan: Plan) -> dict[int, int]:
        """Cached tokens of each sequence that enters with a plan."""
        return {new.key: new.num_cached_tokens for new in plan.new_sequences}


def desk_of(house: House) -> Desk:
    """What the audit of a recording that begins now, with nothing in flight, would know of executor 0."""
    books = Books()
    data: Any = house.core.snapshot()
    for sequence in (*data["sequences"], *(gone for one in data["executors"] for gone in one["departed"])):
        sequence["sampling"] = None
    capabilities = GetCapabilitiesResponse(block_size=house.books.kv.block_size, num_blocks=house.books.info.num_blocks)
    seed_books(books, [pack_state(data), [[0, "here", capabilities.SerializeToString(), []]]])
    return books.desks[0]
