"""A scheduler whose sequences follow a script: a real gRPC service on a real port, with no executor behind it.

A test sets `script` (or calls `say`); each admitted sequence then emits its script's tokens, one per step, in columnar messages.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import grpc.aio
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from drumline import rpc
from drumline.common.v1 import common_pb2
from drumline.errors import DrumlineError, Unavailable
from drumline.executor.v1 import executor_pb2
from drumline.scheduler.v1 import scheduler_pb2 as pb
from drumline.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from drumline.version import PROTOCOL_VERSION

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "Once upon a time there was a scheduler that served a model. def f(x):\n        return x + 1\n\n\tHello, world! ",
    "the quick brown fox jumps over the lazy dog 0123456789 ABCDEFGHIJKLMNOP abc DEF stop </s> {{ }} | \\_ \r\n",
]


def small_tokenizer() -> Tokenizer:
    """A byte-level BPE of 600 tokens: common words whole, every other character in bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer


@dataclass
class Script:
    """What one sequence does.

    Attributes:
        token_ids: emitted one a step; the end-of-sequence token follows unless `max_tokens` comes first.
        refuse: refuses the whole Submit.
        fail_after: fails with `error` after so many tokens.
        hang: emits its tokens, then nothing more.
    """

    token_ids: list[int]
    num_cached: int = 0
    refuse: DrumlineError | None = None
    fail_after: int | None = None
    error: DrumlineError | None = None
    deadline: bool = False
    hang: bool = False
    burst: int = 1


@dataclass
class Running:
    request: pb.SequenceRequest
    script: Script
    num_emitted: int = 0


class ScriptedScheduler(pb_grpc.SchedulerServicer):
    """Attributes to set: `script`, `step_s`, `executor_state`, `max_model_len`. To read: `submitted`, `aborted`, `running`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        eos: str = "<|im_end|>",
        max_model_len: int = 512,
        template: str = TEMPLATE,
        has_model: bool = True,
        executor_state: str = "ready",
        add_bos: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.eos = tokenizer.token_to_id(eos)
        self.max_model_len = max_model_len
        self.template = template
        self.vocab_size = tokenizer.get_vocab_size() + 8
        self.step_s = 0.0
        self.executor_state = executor_state
        self.has_model = has_model
        self.script: Callable[[pb.SequenceRequest], Script] = lambda request: Script(list(request.prompt_token_ids))
        self.submitted: list[pb.SequenceRequest] = []
        self.aborted: list[int] = []
        self.running: dict[int, Running] = {}
        self.add_bos = add_bos
        self._server: grpc.aio.Server | None = None
        self.port = 0

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def say(self, text: str, **options: object) -> None:
        """Every sequence from now on answers with `text`."""
        ids = self.ids(text)
        self.script = lambda request: Script(list(ids), **options)

    async def start(self, port: int = 0) -> None:
        self._server = rpc.new_server()
        pb_grpc.add_SchedulerServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()

    async def die(self) -> None:
        """Drops every connection at once."""
        await self._server.stop(None)
        self.running.clear()

    async def GetModel(self, request, context):
        if not self.has_model:
            await rpc.abort(context, Unavailable("no executor has joined"))
        model = executor_pb2.GetModelResponse(
            model_digest="d1",
            model_name="scripted",
            tokenizer_json=self.tokenizer.to_str().encode(),
            chat_template=self.template,
            bos_token_id=self.tokenizer.token_to_id("<|im_start|>"),
            add_bos=self.add_bos,
            eos_token_ids=[self.eos],
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
        )
        return pb.GetModelResponse(model=model)

    async def GetStatus(self, request, context):
        executor = pb.ExecutorStatus(address="e:1", state=self.executor_state, num_blocks=100, num_blocks_used=len(self.running))
        return pb.GetStatusResponse(num_running=len(self.running), prefix_queries=10, prefix_hits=4, executors=[executor])

    async def Serve(self, request_iterator, context) -> AsyncIterator[pb.ServeResponse]:
        out: asyncio.Queue[pb.ServeResponse] = asyncio.Queue()
        out.put_nowait(pb.ServeResponse(welcome=pb.Welcome(protocol_version=PROTOCOL_VERSION, model_digest="d1")))
        tasks = [asyncio.create_task(self._read(request_iterator, out)), asyncio.create_task(self._steps(out))]
        try:
            while True:
                yield await out.get()
        finally:
            for task in tasks:
                task.cancel()
            self.running.clear()

    async def _read(self, requests, out) -> None:
        first = await anext(aiter(requests))
        assert first.WhichOneof("message") == "hello"
        async for message in requests:
            if message.WhichOneof("message") == "abort":
                self.aborted += message.abort.handles
                for handle in message.abort.handles:
                    self.running.pop(handle, None)
            else:
                out.put_nowait(self._admit(message.submit))

    def _admit(self, submit) -> pb.ServeResponse:
        self.submitted += submit.sequences
        handles = [s.handle for s in submit.sequences]
        scripts = [self.script(s) for s in submit.sequences]
        for script in scripts:
            if script.refuse is not None:
                refused = common_pb2.SequenceError(code=script.refuse.code, message=script.refuse.message)
                retry = script.refuse.retry_after_s or 0
                return pb.ServeResponse(admission=pb.Admission(handles=handles, refused=refused, retry_after_s=retry))
        for sequence, script in zip(submit.sequences, scripts, strict=True):
            self.running[sequence.handle] = Running(sequence, script)
        return pb.ServeResponse(admission=pb.Admission(handles=handles))

    async def _steps(self, out) -> None:
        while True:
            await asyncio.sleep(self.step_s)
            if self.running and out.qsize() < 64:
                step = self._step()
                if step.handles:
                    out.put_nowait(pb.ServeResponse(tokens=step))
            elif not self.step_s:
                await asyncio.sleep(0.001)

    def _step(self) -> pb.StepTokens:
        step = pb.StepTokens()
        for handle, row in list(self.running.items()):
            if row.script.hang and row.num_emitted == len(row.script.token_ids):
                continue
            entry = len(step.handles)
            step.handles.append(handle)
            if row.num_emitted == 0:
                step.started_entry.append(entry)
                step.num_cached_tokens.append(row.script.num_cached)
                self._score_prompt(step, entry, row.request)
            emitted = self._advance(step, entry, row)
            step.num_tokens.append(len(emitted))
            step.token_ids.extend(emitted)
            self._score(step, entry, row.request, emitted)
            if entry in step.finished_entry:
                del self.running[handle]
        if all(n == 1 for n in step.num_tokens):
            del step.num_tokens[:]
        return step

    def _advance(self, step, entry: int, row: Running) -> list[int]:
        script, sampling = row.script, row.request.sampling
        if script.fail_after == row.num_emitted:
            step.finished_entry.append(entry)
            reason = common_pb2.FINISH_REASON_DEADLINE if script.deadline else common_pb2.FINISH_REASON_ERROR
            step.finish_reason.append(reason)
            if script.error is not None:
                error = common_pb2.SequenceError(code=script.error.code, message=script.error.message)
                step.errors.append(pb.EntryError(entry=entry, error=error))
            return []
        end = [] if script.hang else [self.eos]
        emitted = (script.token_ids + end)[row.num_emitted :][: script.burst][: sampling.max_tokens - row.num_emitted]
        row.num_emitted += len(emitted)
        done = row.num_emitted > len(script.token_ids)
        if done or row.num_emitted == sampling.max_tokens:
            step.finished_entry.append(entry)
            step.finish_reason.append(common_pb2.FINISH_REASON_STOP if done else common_pb2.FINISH_REASON_LENGTH)
        return emitted

    def _score(self, step, entry: int, request, ids: list[int]) -> None:
        if request.sampling.logprobs and ids:
            step.logprobs.append(self._logprobs(entry, ids, request.sampling.top_logprobs))

    def _score_prompt(self, step, entry: int, request) -> None:
        if request.sampling.prompt_logprobs and len(request.prompt_token_ids) > 1:
            ids = list(request.prompt_token_ids)[1:]
            step.prompt_logprobs.append(self._logprobs(entry, ids, request.sampling.top_logprobs))

    def _logprobs(self, entry: int, ids: list[int], num_top: int):
        """The chosen token at -0.5, alternatives 3, 4, ... at -1, -2, ...; token 300 at minus infinity (a peer's mistake)."""
        run = common_pb2.TokenLogprobs(row=entry, token_ids=ids, num_top=num_top)
        run.logprobs.extend(float("-inf") if token == 300 else -0.5 for token in ids)
        for _ in ids:
            run.top_token_ids.extend(range(3, 3 + num_top))
            run.top_logprobs.extend(-1.0 - place for place in range(num_top))
        return run


@contextlib.asynccontextmanager
async def scripted_scheduler(tokenizer: Tokenizer, **options: object) -> AsyncIterator[ScriptedScheduler]:
    """A started scheduler on a free port."""
    scheduler = ScriptedScheduler(tokenizer, **options)
    await scheduler.start()
    try:
        yield scheduler
    finally:
        await scheduler.die()
