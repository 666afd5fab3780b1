"""One core, several model executors, a virtual clock, and clients who check every token they get."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar

from scheduler_svc.core.errors import CoreError
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import ExecutorInfo, FinishReason, Limits, Outputs, Plan, Refusal, Request
from scheduler_svc.sim.cohort_rules import CohortRules
from scheduler_svc.sim.model_executor import GARBAGE, ModelExecutor, SimSampling, full_output

T = TypeVar("T")


class WorldBroken(CoreError):
    """A client or an idle check found what must never be: a lost, doubled, foreign or late token, a leak, a hang."""


def _visible(core: Scheduler) -> dict[str, object]:
    """The core as plain data, but for which full blocks have been named by now: looking for one names those that lead to it."""
    data: Any = core.snapshot()
    for sequence in data["sequences"]:
        del sequence["num_published"]
    for executor in data["executors"]:
        del executor["published"]
    return dict(data)


def demand(holds: object, what: str) -> None:
    """Raises WorldBroken unless `holds`."""
    if not holds:
        raise WorldBroken(what)


@dataclass(slots=True)
class Client:
    """Who asked for one sequence: what it expects and what it got."""

    request: Request
    expected: list[int]
    got: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    error: tuple[str, str] | None = None
    num_started: int = 0
    prompt_logprobs: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Node:
    """An executor and the plans on the wire to it, oldest first."""

    model: ModelExecutor
    plans: deque[Plan] = field(default_factory=deque)


class World:
    """Everything that can happen to a scheduler, one call each; after every call the core's invariants are checked.

    Attributes:
        core: the scheduler under test. shadow: a restored copy that must behave the same from then on, or None.
        nodes: live executors. clients: by key.
        now_ns: the clock. digest: over every plan made, for comparing runs.
        thorough: also check that a `schedule` that returned None changed nothing.
    """

    def __init__(self, limits: Limits, *, thorough: bool = False, core: Scheduler | None = None) -> None:
        self.core = core or Scheduler(limits)
        self.shadow: Scheduler | None = None
        self.thorough = thorough
        self.nodes: dict[int, Node] = {}
        self.clients: dict[int, Client] = {}
        self.now_ns = 1
        self.digest = sha256()
        self.num_plans = 0
        self._next_executor = 0
        self._next_key = 0

    def join(self, info: ExecutorInfo, *, fail_row: Callable[[int, int, int], bool] | None = None) -> int:
        """A new executor; `info.executor_id` is replaced. Returns its id."""
        executor_id = self._next_executor
        self._next_executor += 1
        fields = {name: getattr(info, name) for name in info.__slots__}
        info = ExecutorInfo(**{**fields, "executor_id": executor_id})
        self._on_all(lambda core: core.add_executor(info))
        grant = self.core.executors[executor_id].grant
        rules = None if self.core.limits.admission == "paged" else CohortRules(granted=grant.granted)
        depth = self.core.limits.plans_in_flight
        self.nodes[executor_id] = Node(ModelExecutor(info, fail_row=fail_row, plans_in_flight=depth, rules=rules))
        return executor_id

    def submit(
        self, prompts: Sequence[Sequence[int]], sampling: SimSampling, *, tenant: str = "", salt: str = "", timeout_ns: int = 0
    ) -> Refusal | None:
        """One arrival of several sequences."""
        requests = [
            Request(
                key=self._next_key + index,
                request_id="sim",
                prompt=list(prompt),
                max_tokens=sampling.max_tokens,
                sampling=sampling,
                prompt_logprobs=sampling.prompt_logprobs,
                tenant=tenant,
                cache_salt=salt,
                arrival_ns=self.now_ns,
                deadline_ns=self.now_ns + timeout_ns if timeout_ns else 0,
            )
            for index, prompt in enumerate(prompts)
        ]
        self._next_key += len(requests)
        refusal: Refusal | None = self._on_all(lambda core: core.add_requests(requests))
        if refusal is None:
            for request in requests:
                self.clients[request.key] = Client(request, full_output(sampling, request.prompt))
        return refusal

    def abort(self, keys: Sequence[int]) -> None:
        """Clients leave."""
        self._take(self._on_all(lambda core: core.abort(keys)))

    def send(self, executor_id: int) -> bool:
        """One scheduling turn for one executor; False = nothing was sent."""
        expired = self._on_all(lambda core: core.tick(self.now_ns), check=False)
        self._take(expired)
        before = _visible(self.core) if self.thorough else None
        plan: Plan | None = self._on_all(lambda core: core.schedule(executor_id))
        if plan is None:
            demand(before is None or before == _visible(self.core), "schedule returned None and changed something")
            return False
        self.digest.update(repr(plan).encode())
        self.num_plans += 1
        self.nodes[executor_id].plans.append(plan)
        return True

    def deliver(self, executor_id: int) -> bool:
        """The oldest plan of one executor runs and its result comes back; False = none was in flight."""
        node = self.nodes[executor_id]
        if not node.plans:
            return False
        plan = node.plans.popleft()
        withdrawn = {slot for later in node.plans for slot in later.aborted_slots}
        result = node.model.run(plan, withdrawn=withdrawn)
        self._take(self._on_all(lambda core: core.update(executor_id, result)))
        return True

    def kill(self, executor_id: int) -> None:
        """The executor is lost with everything on the wire."""
        del self.nodes[executor_id]
        self._take(self._on_all(lambda core: core.remove_executor(executor_id)))

    def drain(self, executor_id: int) -> None:
        """The executor takes nothing new."""
        self._on_all(lambda core: core.drain_executor(executor_id))

    def split(self) -> None:
        """From now on a restored copy must do the same."""
        self.shadow = Scheduler.restore(self.core.snapshot())
        demand(self.shadow.snapshot() == self.core.snapshot(), "a restored core has another snapshot")

    def settle(self, *, max_turns: int = 2000) -> None:
        """Runs until nothing moves any more, or raises after `max_turns`."""
        for _ in range(max_turns):
            moved = [self.send(executor_id) for executor_id in list(self.nodes)]
            moved += [self.deliver(executor_id) for executor_id in list(self.nodes)]
            if not any(moved):
                return
        raise WorldBroken(f"still busy after {max_turns} turns")

    def check_idle(self) -> None:
        """Nothing runs: every client has an end, and no block or slot is held."""
        for key, client in self.clients.items():
            demand(client.reason is not None, f"sequence {key} never ended")
        for books in self.core.executors.values():
            pool = books.kv.pool
            demand(len(pool.empty) + len(pool.cached) == pool.num_blocks, "idle: free + cached is not total")
            demand(len(books.free_slots) == books.info.max_num_seqs, "idle: a slot is held")
        demand(not self.core.sequences and not len(self.core.queue), "idle: a sequence is left")

    def _on_all(self, call: Callable[[Scheduler], T], *, check: bool = True) -> T:
        result = call(self.core)
        if check:
            self.core.check_invariants()
        if self.shadow is not None:
            demand(call(self.shadow) == result, "a restored core behaves differently")
        return result

    def _take(self, outputs: Outputs) -> None:
        """Clients look at their news."""
        demand(len(set(outputs.keys)) == len(outputs.keys), "a key has two entries")
        counts = list(outputs.num_tokens) or [1] * len(outputs.keys)
        demand(sum(counts) == len(outputs.token_ids), "token counts do not add up")
        offset = 0
        for key, count in zip(outputs.keys, counts, strict=True):
            client = self.clients[key]
            demand(client.reason is None, f"sequence {key} has news after its end")
            client.got += outputs.token_ids[offset : offset + count]
            offset += count
            demand(GARBAGE not in client.got, f"sequence {key} got a token computed on a block that was never written")
            demand(client.got == client.expected[: len(client.got)], f"sequence {key} got {client.got}, expected {client.expected}")
        for entry, _ in outputs.started:
            self.clients[outputs.keys[entry]].num_started += 1
        for entry, scores in outputs.prompt_logprobs.items():
            self.clients[outputs.keys[entry]].prompt_logprobs += scores  # type: ignore[arg-type]
        for entry, code, message in outputs.errors:
            self.clients[outputs.keys[entry]].error = (code, message)
        for entry, reason in outputs.finished:
            self._end(self.clients[outputs.keys[entry]], reason)

    def _end(self, client: Client, reason: FinishReason) -> None:
        client.reason = reason
        demand(client.num_started <= 1, "a start was reported twice")
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            demand(
                client.got == client.expected, f"sequence {client.request.key} ended with {client.got}, expected {client.expected}"
            )
            demand(client.num_started == 1, "a sequence ended that never started")
            if client.request.prompt_logprobs:
                positions = list(range(1, len(client.request.prompt)))
                demand(
                    client.prompt_logprobs == positions,
                    f"prompt log-probabilities of {client.prompt_logprobs}, expected {positions}",
                )
