"""An executor without a model: a real gRPC server that keeps the contract of the seam, checks that the scheduler keeps it too, and
can be told to delay, finish early, fail rows, lie, drain, freeze and die.

Its tokens are a pure function of (prompt, seed, everything emitted so far), so a test can say what any sequence must yield,
wherever and however often it was moved: `expected_tokens`. Whatever the scheduler does against the contract lands in `violations`.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from drumline.common.v1 import common_pb2
from drumline.errors import PlanRejected, StaleEpoch, StaleGrant
from drumline.executor.v1 import executor_pb2 as pb
from drumline.executor.v1.executor_pb2_grpc import ExecutorServicer, add_ExecutorServicer_to_server
from drumline.plan.v1 import plan_pb2
from drumline.rpc import abort, new_server

VOCAB_SIZE = 1000
PREFILL, PREFILL_LAST, DECODE = 1, 2, 3


def next_token(tokens: Sequence[int], seed: int) -> int:
    """The token after `tokens`: depends on every one of them and on their order."""
    value = seed & 0xFFFFFFFF
    for token in tokens:
        value = (value * 1000003 + token + 1) & 0xFFFFFFFF
    return (value ^ (value >> 15)) % VOCAB_SIZE


def expected_tokens(prompt: Sequence[int], seed: int, num: int) -> list[int]:
    """What a sequence of `num` output tokens must be."""
    tokens = list(prompt)
    for _ in range(num):
        tokens.append(next_token(tokens, seed))
    return tokens[len(prompt) :]


@dataclass
class Resident:
    """A sequence in a slot. `length` = tokens with keys and values."""

    tokens: list[int]
    num_prompt: int
    sampling: common_pb2.SamplingParams
    length: int
    blocks: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) - self.num_prompt


class ScriptedExecutor(ExecutorServicer):
    """One executor process as the scheduler sees it. Start with `async with`; `address` is where it listens.

    Attributes to play with, at any moment:
        delay_s: time that each step takes.
        gate: results are held back while it is clear.
        ends_early: (resident) -> bool, asked after each token: finish with STOP.
        fails: (resident) -> str, asked before each row: a message fails that row.
        tamper: (result) -> None, changes a result before it is sent.
        early_abort: an abort takes effect when its plan arrives, not when its turn comes.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 16,
        max_num_seqs: int = 8,
        max_model_len: int = 256,
        max_num_batched_tokens: int = 128,
        model_digest: str = "d" * 64,
        protocol: tuple[int, int] = (1, 1),
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self.caps = pb.GetCapabilitiesResponse(
            protocol_version=protocol[1],
            min_protocol_version=protocol[0],
            software_version="scripted",
            instance_id=uuid.uuid4().hex,
            model_digest=model_digest,
            model_name="scripted",
            block_size=block_size,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            vocab_size=VOCAB_SIZE,
            layouts=[plan_pb2.LAYOUT_PAGED],
            device="none",
            precision="f32",
            ragged=pb.RaggedDeclaration(granted=True, reason="rows are independent"),
            world_size=1,
        )
        self.delay_s = 0.0
        self.gate = asyncio.Event()
        self.gate.set()
        self.ends_early: Callable[[Resident], bool] = lambda resident: False
        self.fails: Callable[[Resident], str] = lambda resident: ""
        self.tamper: Callable[[plan_pb2.StepResult], None] = lambda result: None
        self.early_abort = False
        self.residents: dict[int, Resident] = {}
        self.plans: list[plan_pb2.StepPlan] = []
        self.results: list[plan_pb2.StepResult] = []
        self.violations: list[str] = []
        self.most_in_flight = 0
        self.epochs: list[int] = []
        self.num_probes = 0
        self._port = port
        self._host = host
        self._frozen = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._epoch = 0
        self._cut = asyncio.Event()
        self._drain = asyncio.Event()
        self._gone = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> "ScriptedExecutor":
        self._server = new_server()
        add_ExecutorServicer_to_server(self, self._server)
        self._port = self._server.add_insecure_port(f"{self._host}:{self._port}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def die(self) -> None:
        """As `kill -9`: the port closes and every stream breaks. Idempotent."""
        self._gone.set()
        self.thaw()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def cut_stream(self) -> None:
        """The plan stream ends, the process lives."""
        self._cut.set()

    def freeze(self) -> None:
        """As `kill -STOP`: nothing is answered any more, probes included."""
        self._thawed.clear()

    def thaw(self) -> None:
        """As `kill -CONT`."""
        self._thawed.set()

    def drain(self) -> None:
        """As SIGTERM: says so, goes on until its slots are empty."""
        self._drain.set()

    # RPCs

    async def GetCapabilities(self, request, context):
        self.num_probes += 1
        await self._thawed.wait()
        return self.caps

    async def GetModel(self, request, context):
        await self._thawed.wait()
        return pb.GetModelResponse(
            model_digest=self.caps.model_digest,
            model_name=self.caps.model_name,
            eos_token_ids=[0],
            max_model_len=self.caps.max_model_len,
            vocab_size=VOCAB_SIZE,
        )

    async def RunPlans(self, request_iterator, context):
        await self._thawed.wait()
        first = await context.read()
        opening = first.open
        if opening.session_epoch <= self._epoch:
            await abort(context, StaleEpoch(f"epoch {opening.session_epoch} is not newer than {self._epoch}"))
        self._epoch = opening.session_epoch
        self.epochs.append(self._epoch)
        self.residents = {}
        self._cut.clear()
        session = _Session(self, opening)
        await context.write(pb.RunPlansResponse(opened=pb.SessionOpened(session_epoch=opening.session_epoch)))
        await session.serve(context)

    def is_owner(self, epoch: int) -> bool:
        return epoch == self._epoch


class _Session:
    """One plan stream: reads plans ahead, runs them one by one."""

    def __init__(self, executor: ScriptedExecutor, opening: pb.OpenSession) -> None:
        self.executor = executor
        self.epoch = opening.session_epoch
        self.grant = opening.grant_id
        self.queue: asyncio.Queue[plan_pb2.StepPlan] = asyncio.Queue(maxsize=16)
        self.num_in_flight = 0
        self.last_step = 0
        self.rows: list[int] = []

    async def serve(self, context) -> None:
        executor = self.executor
        tasks = [
            asyncio.create_task(work)
            for work in (self._read(context), self._run(context), self._drain(context), executor._cut.wait(), self._watch_owner())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = next((task.exception() for task in done if task.exception()), None)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(error, StaleEpoch | StaleGrant | PlanRejected):
            await abort(context, error)

    async def _watch_owner(self) -> None:
        while self.executor.is_owner(self.epoch):
            await asyncio.sleep(0.005)
        raise StaleEpoch("taken over by a newer session epoch")

    async def _read(self, context) -> None:
        while True:
            message = await context.read()
            if message is grpc.aio.EOF:
                return
            plan = message.plan
            if plan.grant_id != self.grant:
                raise StaleGrant(f"grant {plan.grant_id} is not {self.grant}")
            if plan.session_epoch != self.epoch:
                raise StaleEpoch("a plan of another session")
            self.executor.plans.append(plan)
            self.num_in_flight += 1
            self.executor.most_in_flight = max(self.executor.most_in_flight, self.num_in_flight)
            if self.executor.early_abort:
                for slot in plan.aborted_slots:
                    self.executor.residents[slot].ended = True
            await self.queue.put(plan)

    async def _drain(self, context) -> None:
        await self.executor._drain.wait()
        await context.write(pb.RunPlansResponse(draining=pb.Draining(grace_ms=30_000)))
        while self.executor.residents or self.num_in_flight:
            await asyncio.sleep(0.005)

    async def _run(self, context) -> None:
        executor = self.executor
        while True:
            plan = await self.queue.get()
            if executor.delay_s:
                await asyncio.sleep(executor.delay_s)
            result = self._apply(plan)
            await executor.gate.wait()
            await executor._thawed.wait()
            executor.tamper(result)
            executor.results.append(result)
            self.num_in_flight -= 1
            await context.write(pb.RunPlansResponse(result=result))

    def _complain(self, plan: plan_pb2.StepPlan, what: str) -> None:
        self.executor.violations.append(f"step {plan.step_id}: {what}")

    def _apply(self, plan: plan_pb2.StepPlan) -> plan_pb2.StepResult:
        if plan.step_id != self.last_step + 1:
            raise PlanRejected(f"step {plan.step_id} after {self.last_step}")
        self.last_step = plan.step_id
        residents = self.executor.residents
        for slot in plan.freed_slots:
            if residents.pop(slot, None) is None:
                self._complain(plan, f"frees empty slot {slot}")
        for slot in plan.aborted_slots:
            if residents.pop(slot, None) is None:
                self._complain(plan, f"aborts empty slot {slot}")
        for new in plan.new_sequences:
            if new.slot in residents:
                self._complain(plan, f"slot {new.slot} is taken")
            residents[new.slot] = Resident(list(new.token_ids), new.num_prompt_tokens, new.sampling, new.num_cached_tokens)
        slots, kinds, nums, starts = self._rows_of(plan)
        for row, block in zip(plan.block_row, plan.block_id, strict=True):
            if slots[row] in residents and not residents[slots[row]].ended:
                residents[slots[row]].blocks.append(block)
        if sum(nums) > self.executor.caps.max_num_batched_tokens:
            self._complain(plan, f"{sum(nums)} tokens in one step")
        result = plan_pb2.StepResult(step_id=plan.step_id, session_epoch=self.epoch)
        emitted = [
            self._row(plan, result, row, *columns) for row, columns in enumerate(zip(slots, kinds, nums, starts, strict=True))
        ]
        if any(count != 1 for count in emitted):
            result.num_emitted.extend(emitted)
        self._check_blocks(plan)
        result.num_blocks_in_use = len(
            {block for resident in residents.values() for block in resident.blocks if not resident.ended}
        )
        result.timing.forward_ns = int(self.executor.delay_s * 1e9)
        return result

    def _rows_of(self, plan: plan_pb2.StepPlan) -> tuple[list[int], list[int], list[int], list[int]]:
        if plan.repeat_rows:
            num = len(self.rows)
            return self.rows, [DECODE] * num, [1] * num, [0] * num
        self.rows = list(plan.slot) or self.rows
        return list(plan.slot), list(plan.row_kind), list(plan.num_tokens), list(plan.start)

    def _row(self, plan, result, row: int, slot: int, kind: int, num: int, start: int) -> int:
        """Runs one row; returns how many tokens it emitted."""
        resident = self.executor.residents.get(slot)
        if resident is None or resident.ended:
            if resident is not None:
                resident.blocks = []
            result.skipped_row.append(row)
            result.length.append(0)
            return 0
        if message := self.executor.fails(resident):
            return self._fail(result, row, resident, message)
        if not self._may_run(plan, resident, slot, kind, num, start):
            return self._fail(result, row, resident, "start mismatch")
        resident.length += num
        result.length.append(resident.length)
        if kind == PREFILL or not resident.sampling.max_tokens:
            if kind == PREFILL_LAST:
                self._finish(result, row, resident, common_pb2.FINISH_REASON_LENGTH)
            return 0
        token = next_token(resident.tokens, resident.sampling.seed)
        resident.tokens.append(token)
        result.token_ids.append(token)
        if resident.sampling.logprobs:
            result.logprobs.add(row=row, token_ids=[token], logprobs=[-0.5])
        if token in resident.sampling.stop_token_ids or self.executor.ends_early(resident):
            self._finish(result, row, resident, common_pb2.FINISH_REASON_STOP)
        elif resident.num_emitted >= resident.sampling.max_tokens:
            self._finish(result, row, resident, common_pb2.FINISH_REASON_LENGTH)
        return 1

    def _may_run(self, plan, resident: Resident, slot: int, kind: int, num: int, start: int) -> bool:
        """Complains about a row that starts in the wrong place or outgrows its blocks; a chunk in the wrong place cannot run."""
        if resident.length + num > len(resident.blocks) * self.executor.caps.block_size:
            self._complain(plan, f"slot {slot} is longer than its blocks")
        if kind == DECODE:
            if resident.length != len(resident.tokens) - 1:
                self._complain(plan, f"decodes slot {slot} before its prefill is done")
            return True
        if start == resident.length and start + num <= len(resident.tokens):
            return True
        self._complain(plan, f"chunk {start}+{num} of slot {slot} at length {resident.length}")
        return False

    def _fail(self, result, row: int, resident: Resident, message: str) -> int:
        resident.ended = True
        result.length.append(resident.length)
        result.row_errors.add(row=row, error=common_pb2.SequenceError(code="internal", message=message))
        return 0

    def _finish(self, result, row: int, resident: Resident, reason: int) -> None:
        resident.ended = True
        result.finished_row.append(row)
        result.finish_reason.append(reason)

    def _check_blocks(self, plan) -> None:
        """A block is written by one sequence only: full prompt blocks may be shared, the rest may not."""
        owners: dict[int, int] = {}
        size = self.executor.caps.block_size
        for slot, resident in self.executor.residents.items():
            for index, block in enumerate(resident.blocks):
                if block >= self.executor.caps.num_blocks:
                    self._complain(plan, f"block {block} does not exist")
                shared = (index + 1) * size <= resident.length
                if not shared and not resident.ended and owners.setdefault(block, slot) != slot:
                    self._complain(plan, f"block {block} is written by slots {owners[block]} and {slot}")
