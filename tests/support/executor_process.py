"""A real executor process with the fake backend, and the plans that a scheduler would send it, written by hand."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import grpc.aio

from drumline import rpc
from drumline.common.v1.common_pb2 import SamplingParams
from drumline.executor.v1 import executor_pb2 as pb
from drumline.executor.v1.executor_pb2_grpc import ExecutorStub
from drumline.plan.v1 import plan_pb2 as plans

GRANT = 7
READ_TIMEOUT_S = 20


class ExecutorProcess:
    """`python -m executor_svc --backend fake` on a free port; ends with the `with` block."""

    def __init__(self, *flags: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - a pipe that nobody reads would stop a talkative process
        command = [sys.executable, "-m", "executor_svc", "--backend", "fake", "--port", "0", "--fake-eos-chance", "0", *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DRUMLINE_")}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment | {"OMP_NUM_THREADS": "1"}
        )
        bound, ready = (self.process.stdout.readline().split() for _ in range(2))
        if (bound[:2], ready[:2]) != (["BOUND", "executor"], ["READY", "executor"]) or bound[2] != ready[2]:
            raise RuntimeError(f"no readiness line: {bound} {ready} {self.log()}")
        self.target = ready[2]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=10)
        self._log.close()

    def log(self) -> str:
        """What it wrote on stderr so far."""
        return os.pread(self._log.fileno(), 2**24, 0).decode()  # the file's position belongs to the process

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait(self, timeout_s: float = 10) -> int:
        return self.process.wait(timeout_s)


@asynccontextmanager
async def stub_of(target: str) -> AsyncIterator[ExecutorStub]:
    async with rpc.open_channel(target) as channel:
        yield ExecutorStub(channel)


async def opening(stub: ExecutorStub, **overrides: Any) -> pb.RunPlansRequest:
    """An `open` that this executor accepts, unless overridden."""
    caps = await stub.GetCapabilities(pb.GetCapabilitiesRequest())
    values = {
        "session_epoch": time.time_ns(),
        "protocol_version": caps.protocol_version,
        "model_digest": caps.model_digest,
        "grant_id": GRANT,
        "ragged_granted": caps.ragged.granted,
        "ragged_reason": caps.ragged.reason,
    }
    return pb.RunPlansRequest(open=pb.OpenSession(**(values | overrides)))


@dataclass
class Stream:
    """An open session, plan by plan."""

    call: Any
    epoch: int
    step_id: int = 0
    notices: list[pb.Draining] = field(default_factory=list)

    @classmethod
    async def open(cls, stub: ExecutorStub, **overrides: Any) -> "Stream":
        request = await opening(stub, **overrides)
        call = stub.RunPlans()
        await call.write(request)
        reply = await cls(call, 0).read()
        assert reply.opened.session_epoch == request.open.session_epoch
        return cls(call, request.open.session_epoch)

    async def send(self, **columns: Any) -> None:
        self.step_id += 1
        await self.call.write(pb.RunPlansRequest(plan=plan(step_id=self.step_id, session_epoch=self.epoch, **columns)))

    async def result(self) -> plans.StepResult:
        """The next result; raises the named error when the stream ended."""
        while True:
            reply = await self.read()
            if reply.WhichOneof("message") == "result":
                return reply.result
            self.notices.append(reply.draining)

    async def step(self, **columns: Any) -> plans.StepResult:
        await self.send(**columns)
        return await self.result()

    async def read(self) -> pb.RunPlansResponse:
        """The next message; raises the named error by which the stream ended, or EOFError when it ended well."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                reply = await self.call.read()
        except grpc.aio.AioRpcError as failure:
            raise rpc.error_of(failure) from None
        if reply is not grpc.aio.EOF:
            return reply
        code, details = await self.call.code(), await self.call.details()
        if code is grpc.StatusCode.OK:
            raise EOFError
        raise rpc.error_of(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), await self.call.trailing_metadata(), details))


def plan(**columns: Any) -> plans.StepPlan:
    """A plan of the paged layout; repeated columns as lists."""
    usual = {
        "grant_id": GRANT,
        "cache_op": plans.CACHE_OP_NOTHING,
        "layout": plans.LAYOUT_PAGED,
        "advance": plans.ADVANCE_PER_SEQUENCE,
    }
    return plans.StepPlan(**(usual | columns))


def prompt_rows(prompts: dict[int, list[int]], *, blocks: dict[int, list[int]], **sampling: Any) -> dict[str, Any]:
    """Columns of a plan that feeds whole new prompts, slot -> tokens, into the blocks given for each slot."""
    slots = list(prompts)
    pairs = [(row, block) for row, slot in enumerate(slots) for block in blocks[slot]]
    return {
        "new_sequences": [new_sequence(slot, prompts[slot], **sampling) for slot in slots],
        "slot": slots,
        "row_kind": [plans.ROW_KIND_PREFILL_LAST] * len(slots),
        "num_tokens": [len(prompts[slot]) for slot in slots],
        "start": [0] * len(slots),
        "block_row": [row for row, _ in pairs],
        "block_id": [block for _, block in pairs],
    }


def new_sequence(
    slot: int, tokens: list[int], *, num_prompt_tokens: int = 0, num_cached_tokens: int = 0, **sampling: Any
) -> plans.NewSequence:
    return plans.NewSequence(
        slot=slot,
        token_ids=tokens,
        num_prompt_tokens=num_prompt_tokens or len(tokens),
        num_cached_tokens=num_cached_tokens,
        sampling=SamplingParams(**({"max_tokens": 16, "seed": 1} | sampling)),
    )
