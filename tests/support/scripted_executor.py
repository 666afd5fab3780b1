"""An executor without a model: a real gRPC server that keeps the contract of the seam, checks that the scheduler keeps it too, and
can be told to delay, finish early, fail rows, lie, drain, freeze and die.

Its tokens are a pure function of (prompt, seed, everything emitted so far), so a test can say what any sequence must yield,
wherever and however often it was moved: `scripted_tokens`. Whatever the scheduler does against the contract lands in `violations`.
"""

import asyncio
import uuid
from collections.abc import Callable

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from drumline.errors import Draining, PlanRejected, StaleEpoch, StaleGrant
from drumline.executor.v1 import executor_pb2 as pb
from drumline.executor.v1.executor_pb2_grpc import ExecutorServicer, add_ExecutorServicer_to_server
from drumline.plan.v1 import plan_pb2
from drumline.rpc import abort, new_server
from tests.support.scripted_steps import Script, Steps
from tests.support.scripted_tokens import VOCAB_SIZE, Resident


class ScriptedExecutor(Script, ExecutorServicer):
    """One executor process as the scheduler sees it. Start with `async with`; `address` is where it listens.

    Attributes to play with, at any moment, beside those of `Script`:
        gate: results are held back while it is clear.
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
        super().__init__()
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
        self.gate = asyncio.Event()
        self.gate.set()
        self.tamper: Callable[[plan_pb2.StepResult], None] = lambda result: None
        self.early_abort = False
        self.violations: list[str] = []
        self.steps = Steps(self, self.caps, self.violations)
        self.plans: list[plan_pb2.StepPlan] = []
        self.results: list[plan_pb2.StepResult] = []
        self.most_in_flight = 0
        self.epochs: list[int] = []
        self.openings: list[pb.OpenSession] = []
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
        self._health = health.aio.HealthServicer()

    @property
    def residents(self) -> dict[int, Resident]:
        """Who is in a slot, by the plans run."""
        return self.steps.residents

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> "ScriptedExecutor":
        self._server = new_server()
        add_ExecutorServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        await self.feel(well=True)
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

    async def feel(self, *, well: bool) -> None:
        """Says of itself that it serves, or that its device fails step after step."""
        states = health_pb2.HealthCheckResponse
        await self._health.set("", states.SERVING if well else states.NOT_SERVING)

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
        if self._drain.is_set():
            await abort(context, Draining("this executor is going away"))
        opening = first.open
        if opening.session_epoch <= self._epoch:
            await abort(context, StaleEpoch(f"epoch {opening.session_epoch} is not newer than {self._epoch}"))
        self._epoch = opening.session_epoch
        self.epochs.append(self._epoch)
        self.openings.append(opening)
        self.steps = Steps(self, self.caps, self.violations)
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
        self._writing = asyncio.Lock()

    async def _write(self, context, message: pb.RunPlansResponse) -> None:
        """One at a time: gRPC refuses a second write while one is under way, and that would end the stream."""
        async with self._writing:
            await context.write(message)

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
        await self._write(context, pb.RunPlansResponse(draining=pb.Draining(grace_ms=30_000)))
        while self.executor.residents or self.num_in_flight:
            await asyncio.sleep(0.005)

    async def _run(self, context) -> None:
        executor = self.executor
        while True:
            plan = await self.queue.get()
            if executor.delay_s:
                await asyncio.sleep(executor.delay_s)
            result = executor.steps.apply(plan, session_epoch=self.epoch)
            await executor.gate.wait()
            await executor._thawed.wait()
            executor.tamper(result)
            executor.results.append(result)
            self.num_in_flight -= 1
            await self._write(context, pb.RunPlansResponse(result=result))
