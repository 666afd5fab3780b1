"""A gateway without HTTP: speaks the scheduler's Serve stream and keeps everything that it was told, per handle."""

import asyncio
import contextlib
import itertools
from collections import defaultdict

import grpc
import grpc.aio

from drumline.common.v1 import common_pb2
from drumline.rpc import open_channel
from drumline.scheduler.v1 import scheduler_pb2 as pb
from drumline.scheduler.v1.scheduler_pb2_grpc import SchedulerStub
from drumline.version import PROTOCOL_VERSION


def sequence(prompt, *, max_tokens: int = 8, seed: int | None = 7, **more) -> pb.SequenceRequest:
    """A request, unseeded with seed None; `more` goes to SamplingParams or SequenceRequest, whichever knows the name."""
    own = {key: more.pop(key) for key in ("tenant", "cache_salt", "timeout_ms", "request_id") if key in more}
    sampling = common_pb2.SamplingParams(max_tokens=max_tokens, seed=seed, **more)
    return pb.SequenceRequest(prompt_token_ids=prompt, sampling=sampling, **own)


class RawGateway:
    """One session, used as a context manager.

    Attributes:
        tokens: handle -> emitted ids. finished: handle -> reason. errors: handle -> (code, message). cached: handle -> prompt
        tokens found in the prefix cache. admissions: handle -> Admission of its Submit. messages: StepTokens in order.
        ended: why the stream is over, once it is.
    """

    def __init__(self, address: str, *, reads: bool = True, hello: pb.Hello | None = None) -> None:
        self.address = address
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finished: dict[int, int] = {}
        self.errors: dict[int, tuple[str, str]] = {}
        self.cached: dict[int, int] = {}
        self.logprobs: dict[int, list[float]] = defaultdict(list)
        self.admissions: dict[int, pb.Admission] = {}
        self.messages: list[pb.StepTokens] = []
        self.welcome: pb.Welcome | None = None
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._reads = reads
        self._hello = hello or pb.Hello(protocol_version=PROTOCOL_VERSION, gateway_id="raw")
        self._handles = itertools.count(1)
        self._news = asyncio.Condition()

    async def __aenter__(self) -> "RawGateway":
        self.channel = open_channel(self.address)
        self.stub = SchedulerStub(self.channel)
        self.call = self.stub.Serve()
        await self.call.write(pb.ServeRequest(hello=self._hello))
        self._task = asyncio.create_task(self._read()) if self._reads else None
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await self.channel.close()

    async def send(self, *sequences: pb.SequenceRequest) -> list[int]:
        """Submits without waiting for the admission; returns the handles."""
        for one in sequences:
            one.handle = one.handle or next(self._handles)
        await self.call.write(pb.ServeRequest(submit=pb.Submit(sequences=sequences)))
        return [one.handle for one in sequences]

    async def submit(self, *sequences: pb.SequenceRequest) -> list[int]:
        """Submits and waits for the admission, which must be a yes."""
        handles = await self.send(*sequences)
        admission = await self.admission(handles[0])
        assert not admission.HasField("refused"), admission.refused
        return handles

    async def refused(self, *sequences: pb.SequenceRequest) -> pb.Admission:
        """Submits and waits for the admission, which must be a no."""
        handles = await self.send(*sequences)
        admission = await self.admission(handles[0])
        assert admission.HasField("refused")
        return admission

    async def admission(self, handle: int, *, timeout_s: float = 10.0) -> pb.Admission:
        await self.until(lambda: handle in self.admissions, timeout_s=timeout_s)
        return self.admissions[handle]

    async def abort(self, *handles: int) -> None:
        await self.call.write(pb.ServeRequest(abort=pb.Abort(handles=handles)))

    async def done(self, *handles: int, timeout_s: float = 10.0) -> None:
        """Waits until all of them have ended."""
        await self.until(lambda: all(handle in self.finished for handle in handles), timeout_s=timeout_s)

    async def until(self, condition, *, timeout_s: float = 10.0) -> None:
        """Waits for a condition on what was received."""
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(lambda: condition() or self.ended.done())
        assert condition(), self.ended

    async def _read(self) -> None:
        error = None
        try:
            async for message in self.call:
                getattr(self, f"_on_{message.WhichOneof('message')}")(message)
                async with self._news:
                    self._news.notify_all()
        except (grpc.aio.AioRpcError, AssertionError) as failure:
            error = failure
        except asyncio.CancelledError:
            pass
        finally:
            self.ended.set_result(error)
            with contextlib.suppress(RuntimeError):
                async with self._news:
                    self._news.notify_all()

    def _on_welcome(self, message: pb.ServeResponse) -> None:
        self.welcome = message.welcome

    def _on_admission(self, message: pb.ServeResponse) -> None:
        self.admissions |= dict.fromkeys(message.admission.handles, message.admission)

    def _on_tokens(self, message: pb.ServeResponse) -> None:
        step = message.tokens
        self.messages.append(step)
        counts = list(step.num_tokens) or [1] * len(step.handles)
        ids = iter(step.token_ids)
        for handle, count in zip(step.handles, counts, strict=True):
            assert handle not in self.finished, f"news for {handle} after its end"
            assert handle in self.admissions or not self._reads, f"news for {handle} before its admission"
            self.tokens[handle] += [next(ids) for _ in range(count)]
        assert next(ids, None) is None
        for entry, num in zip(step.started_entry, step.num_cached_tokens, strict=True):
            assert step.handles[entry] not in self.cached, "started twice"
            self.cached[step.handles[entry]] = num
        for error in step.errors:
            self.errors[step.handles[error.entry]] = (error.error.code, error.error.message)
        for values in step.logprobs:
            self.logprobs[step.handles[values.row]] += values.logprobs
        for entry, reason in zip(step.finished_entry, step.finish_reason, strict=True):
            self.finished[step.handles[entry]] = reason
