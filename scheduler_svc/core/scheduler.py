"""The scheduler core: a pure, deterministic state machine. The same calls in the same order make the same plans.

It has no clock, no randomness and no I/O; the shell records every input before it applies it. A step is three calls: `schedule`,
send the plan, `update` with its result.
"""

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq

from scheduler_svc.core.admission import Admission
from scheduler_svc.core.apply import ResultApplier
from scheduler_svc.core.assemble import assemble
from scheduler_svc.core.check import ResultCheck, RowNews
from scheduler_svc.core.drafting import Drafting
from scheduler_svc.core.errors import ResultMismatch
from scheduler_svc.core.executor import ExecutorBooks
from scheduler_svc.core.frozen import Frozen
from scheduler_svc.core.invariants import check_invariants
from scheduler_svc.core.news import News
from scheduler_svc.core.placement import Placement
from scheduler_svc.core.policies import policy_for
from scheduler_svc.core.policy import AdmissionPolicy
from scheduler_svc.core.prefix import identity
from scheduler_svc.core.residency import requeue, settle, withdraw
from scheduler_svc.core.rows import PlanInFlight
from scheduler_svc.core.sequence import Sequence, State, by_key
from scheduler_svc.core.sketch import StepSketch
from scheduler_svc.core.snapshot import limits_of, restore_snapshot
from scheduler_svc.core.state import CoreState
from scheduler_svc.core.stats import Stats, collect
from scheduler_svc.core.types import ExecutorInfo, FinishReason, Limits, Outputs, Plan, Refusal, Request, StepResult


class Scheduler(CoreState):
    """Owns membership, memory, order and upper bounds; each method says what it changes. State is described in `CoreState`."""

    def __init__(
        self, limits: Limits, *, policy: AdmissionPolicy | None = None, fingerprint: Callable[[bytes], bytes] = identity
    ) -> None:
        super().__init__(limits, policy=policy or policy_for(limits), fingerprint=fingerprint)
        self._admission = Admission(limits, self.executors, self.queue)

    def add_executor(self, info: ExecutorInfo) -> None:
        """HANDSHAKE: an executor with empty memory joins. An id is never used twice."""
        if info.executor_id in self.executors:
            raise ValueError(f"executor {info.executor_id} has joined before")
        self.executors[info.executor_id] = ExecutorBooks(info, self.limits, fingerprint=self.fingerprint)
        self.fit_changed = True

    def drain_executor(self, executor_id: int) -> None:
        """DRAIN: nothing new is placed there, resident rows go on. Unknown ids are ignored."""
        books = self.executors.get(executor_id)
        if books is not None:
            books.draining = True
            self.fit_changed = True

    def remove_executor(self, executor_id: int) -> Outputs:
        """LOST: its sequences wait in front, in order, for recompute elsewhere.

        What no other executor can ever hold ends, and so does what was in flight on `max_moves` executors when they died: it must
        not kill one after the other, with everybody else's rows, for ever.
        """
        books = self.executors.pop(executor_id, None)
        if books is None:
            return Outputs()
        news = News()
        for seq in sorted((*books.running.values(), *books.leaving.values()), key=by_key):
            seq.num_crashes += not books.draining and books.is_in_flight(seq)
            seq.leave()
            if seq.state is State.WITHDRAWN:
                continue
            requeue(seq, self.queue)
            if seq.num_crashes < self.limits.max_moves:
                self.counters.num_moved += 1
                continue
            self._withdraw(seq)
            words = f"request {seq.request.request_id!r} was running on {seq.num_crashes} executors when they were lost"
            news.fail(news.entry(seq.key), FinishReason.ERROR, "internal", words)
        self._drop_unholdable(news)
        return news.outputs()

    def add_requests(self, requests: Seq[Request]) -> Refusal | None:
        """ARRIVAL: all wait in the queue, or none and the reason why."""
        refusal = self._admission.refuse(requests)
        if refusal is not None:
            self.counters.num_refused += len(requests)
            return refusal
        for request in requests:
            if request.key in self.sequences:
                raise ValueError(f"key {request.key} is in use")
            seq = Sequence(request, array("I", request.prompt))
            self.sequences[request.key] = seq
            self.queue.push(seq)
            self.deadlines.add(request.deadline_ns, request.key)
        return None

    def abort(self, keys: Seq[int]) -> Outputs:
        """ABORT, at any moment: each sequence ends now, its rows in flight run out unheard. Unknown keys are counted."""
        news = News()
        for key in keys:
            seq = self.sequences.get(key)
            if seq is None:
                self.counters.num_unknown_aborts += 1
                continue
            self.counters.num_aborted += 1
            self._withdraw(seq)
            news.finish(news.entry(key), FinishReason.ABORTED)
        return news.outputs()

    def tick(self, now_ns: int) -> Outputs:
        """Time passes: whatever waits or runs beyond its deadline ends."""
        expired = self.deadlines.expired(now_ns, alive=self.sequences)
        if not expired and not self.fit_changed:
            return Outputs()
        news = News()
        for key in expired:
            self._withdraw(self.sequences[key])
            self.counters.num_expired += 1
            news.fail(news.entry(key), FinishReason.DEADLINE, "deadline_exceeded", "the request's time to live has passed")
        if self.fit_changed:
            self._drop_unholdable(news)
        return news.outputs()

    def schedule(self, executor_id: int) -> Plan | None:
        """The next plan for one executor, in flight from now on. None = nothing to send, or too many in flight: nothing changed
        but which full blocks have got names."""
        books = self.executors.get(executor_id)
        if books is None or len(books.in_flight) >= self.plans_in_flight(books):
            return None
        sketch = StepSketch(books, self.queue, books.budget)
        self.policy.choose(sketch, Placement(self.executors, self.policy))
        if not sketch.has_rows and not books.pending_freed and not books.pending_aborted:
            sketch.undo()
            return None
        self.counters.count_sketch(sketch)
        if books.drafting is not None and sketch.decodes is not None:
            books.drafting.sent(step=books.next_step, drafted=any(sketch.decodes.drafts or ()))
        return assemble(sketch, policy=self.policy, limits=self.limits)

    def update(self, executor_id: int, result: StepResult) -> Outputs:
        """RESULT of the oldest plan in flight. Late and unknown ones are counted and dropped.

        Raises ResultMismatch, and has applied nothing, when the result contradicts the books: the executor must be removed then.
        """
        books = self.executors.get(executor_id)
        flying = [flight.plan.step_id for flight in books.in_flight] if books else []
        if books is None or result.step_id not in flying:
            self.counters.num_late_results += 1
            return Outputs()
        if result.step_id != flying[0]:
            raise ResultMismatch(f"step {flying[0]} was skipped", executor_id=executor_id, step_id=result.step_id)
        flight = books.in_flight[0]
        news = ResultCheck(books, flight, result).read()
        if books.drafting is not None:
            _count_drafts(books.drafting, flight, result, news)
        books.in_flight.popleft()
        books.last_result_step = result.step_id
        applier = ResultApplier(books)
        outputs = applier.apply(flight, result, news)
        for key in applier.ended:
            del self.sequences[key]
        if books.leaving:
            self.counters.num_recomputed += settle(books, self.queue)
        books.give_slots_back()
        self.counters.num_generated_tokens += len(outputs.token_ids)
        return outputs

    def snapshot(self) -> dict[str, object]:
        """Everything, as plain data (sampling objects as given). A restored core makes the same plans from then on."""
        return self.freeze().data()

    def freeze(self) -> Frozen:
        """What `snapshot` would return, kept cheaply until somebody wants it, whatever happens to the core meanwhile."""
        return Frozen(self)

    @classmethod
    def restore(cls, data: dict[str, object], *, policy: AdmissionPolicy | None = None) -> "Scheduler":
        """A core that goes on where `snapshot` was taken."""
        core = cls(limits_of(data), policy=policy)
        restore_snapshot(core, data)
        return core

    def check_invariants(self) -> None:
        """Raises InvariantViolation, naming what is wrong, when the books contradict each other."""
        check_invariants(self)

    def stats(self) -> Stats:
        """Queues, rows and executors as they are now."""
        return collect(self)

    def _withdraw(self, seq: Sequence) -> None:
        del self.sequences[seq.key]
        if seq.state is State.WAITING:
            self.queue.remove(seq)
            seq.state = State.WITHDRAWN
        else:
            withdraw(self.executors[seq.executor_id], seq)

    def _drop_unholdable(self, news: News) -> None:
        """Waiting sequences that no executor can ever hold end with an error; with no executor at all they wait for one."""
        self.fit_changed = False
        for seq in list(self.queue):
            reason = self._admission.unholdable(seq)
            if reason is not None:
                self._withdraw(seq)
                news.fail(news.entry(seq.key), FinishReason.ERROR, reason.code, reason.message)


def _count_drafts(drafting: Drafting, flight: PlanInFlight, result: StepResult, news: RowNews) -> None:
    """What a result says of the executor's costs and of tokens per step."""
    rows = flight.rows
    if result.device_ns:
        num_drafted = sum(news.drafted or ())
        drafting.costs.add(rows.num_tokens - sum(rows.drafts or ()) + num_drafted, result.device_ns - result.draft_ns)
        if num_drafted:
            drafting.draft_costs.add(num_drafted, result.draft_ns)
    idle = sum(row < rows.num_decodes for row in (*news.errors, *news.skipped))
    drafting.totals.num_rows += rows.num_decodes - idle
    drafting.totals.num_tokens += rows.num_decodes if news.emitted is None else sum(news.emitted[: rows.num_decodes])
