"""A gateway that reads every token and does nothing with it: its own share of the machine is as small as gRPC lets it be."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio
import numpy as np

from bench.client import BenchError
from bench.echo import PROMPT_LENGTHS
from drumline.common.v1.common_pb2 import SamplingParams
from drumline.limits import MAX_SEQUENCES_PER_REQUEST
from drumline.rpc import error_of, open_channel
from drumline.scheduler.v1 import scheduler_pb2 as sch
from drumline.scheduler.v1.scheduler_pb2_grpc import SchedulerStub
from drumline.version import PROTOCOL_VERSION

_READY_S: Final = 60.0
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class TokenReader:
    """One gateway's stream of `num_rows` sequences.

    Attributes:
        num_tokens, num_messages: read so far; messages that bring tokens.
    """

    def __init__(self, call: Any, *, num_rows: int, max_tokens: int) -> None:
        self.num_tokens = 0
        self.num_messages = 0
        self._call = call
        self._num_rows = num_rows
        self._max_tokens = max_tokens
        self._waits = np.ones(num_rows, np.bool_)
        self._some_wait = True

    @property
    def num_began(self) -> int:
        """Sequences that have had a token."""
        return int(self._num_rows - self._waits.sum())

    async def submit(self, *, at_once: int = 0) -> None:
        """Asks for all sequences, handles 1, 2, ...; none ends before `max_tokens`. So many wait at once, 0 = as many as there are;
        otherwise somebody must read meanwhile."""
        portion = min(at_once or MAX_SEQUENCES_PER_REQUEST, MAX_SEQUENCES_PER_REQUEST)
        for first in range(1, self._num_rows + 1, portion):
            last = min(first + portion - 1, self._num_rows)
            await self._call.write(
                sch.ServeRequest(submit=sch.Submit(sequences=[self._sequence(handle) for handle in range(first, last + 1)]))
            )
            while at_once and self.num_began < last:  # noqa: ASYNC110 - another process admits them
                await asyncio.sleep(0.002)

    async def read(self) -> None:
        """One message. Raises BenchError once a sequence was refused or has ended, or the scheduler cut this stream."""
        try:
            message = await self._call.read()
        except grpc.RpcError as failure:
            raise BenchError(f"the scheduler ended the stream of tokens: {error_of(failure)}") from None
        if message is _EOF:
            raise BenchError(f"the scheduler ended the stream of tokens: {await self._call.details()}")
        tokens = message.tokens
        if tokens.finished_entry:
            raise BenchError("a sequence ended inside the run: filling the executors took too long, or one was lost")
        if message.admission.HasField("refused"):
            raise BenchError(f"a submit was refused: {message.admission.refused.message}")
        num_tokens = len(tokens.token_ids)
        self.num_tokens += num_tokens
        self.num_messages += bool(num_tokens)
        if num_tokens and self._some_wait:
            self._note(tokens)

    async def read_on(self) -> None:
        """Until it raises."""
        while True:
            await self.read()

    def _note(self, tokens: sch.StepTokens) -> None:
        handles = np.array(tokens.handles, np.int64) - 1
        self._waits[handles[np.array(tokens.num_tokens) > 0] if tokens.num_tokens else handles] = False
        self._some_wait = bool(self._waits.any())

    def _sequence(self, handle: int) -> sch.SequenceRequest:
        sampling = SamplingParams(max_tokens=self._max_tokens, seed=handle)
        prompt = [handle % 40_000] * (1 + handle % PROMPT_LENGTHS)
        return sch.SequenceRequest(handle=handle, prompt_token_ids=prompt, sampling=sampling)


@asynccontextmanager
async def greeted(port: int, *, executors: int, num_rows: int, max_tokens: int) -> AsyncIterator[TokenReader]:
    """A stream to the scheduler at `port`, once so many executors are ready there. Raises BenchError if they do not get ready."""
    channel = open_channel(f"127.0.0.1:{port}")
    try:
        await _until_ready(SchedulerStub(channel), executors=executors)
        call: Any = SchedulerStub(channel).Serve()  # type: ignore[call-arg]
        try:
            await call.write(sch.ServeRequest(hello=sch.Hello(protocol_version=PROTOCOL_VERSION, gateway_id="bench")))
            yield TokenReader(call, num_rows=num_rows, max_tokens=max_tokens)
        finally:
            call.cancel()
    finally:
        await channel.close(None)


async def _until_ready(stub: Any, *, executors: int) -> None:
    try:
        async with asyncio.timeout(_READY_S):
            while await _num_ready(stub) < executors:  # noqa: ASYNC110 - polls another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise BenchError(f"not all {executors} executors were ready after {_READY_S:g} s") from None


async def _num_ready(stub: Any) -> int:
    return sum(one.state == "ready" for one in (await stub.GetStatus(sch.GetStatusRequest())).executors)
