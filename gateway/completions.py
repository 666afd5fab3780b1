"""/v1/completions."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.answer import answer
from gateway.answers import STREAMED, Completion, responses
from gateway.choice import Choice, Piece, PlacedLogprob
from gateway.envelope import Envelope
from gateway.generation import Generation
from gateway.logprobs import CompletionLogprobs
from gateway.schemas import CompletionBody
from gateway.state import gateway_of
from gateway.tokenizer import ModelTokenizer
from gateway.validation import Plan, plan_completion

router = APIRouter(tags=["generate"])


@router.post(
    "/v1/completions",
    summary="Continue a prompt",
    response_model=None,
    responses=responses(Completion, streamed=Completion),
    description=STREAMED,
)
async def create_completion(request: Request, body: CompletionBody) -> Response:
    """`n` continuations of each prompt, whole or streamed; choice `i * n + j` belongs to prompt `i`."""
    model = gateway_of(request).model()
    plan = await plan_completion(body, model)
    envelope = Envelope(
        prefix="cmpl",
        kind="text_completion",
        chunk_kind="text_completion",
        model=body.model or model.names[0],
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )

    def new_writer() -> CompletionWriter:
        return CompletionWriter(envelope, model.tokenizer, plan=plan, logprobs=body.logprobs is not None)

    return await answer(request, plan, model, stream=bool(body.stream), envelope=envelope, new_writer=new_writer)


class CompletionWriter:
    """Spells choices as text, with the prompt in front when `echo`."""

    def __init__(self, envelope: Envelope, tokenizer: ModelTokenizer, *, plan: Plan, logprobs: bool) -> None:
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._echo = plan.echo
        self._plan = plan
        self._offsets = [len(self._prompt_text(index)) if plan.echo else 0 for index in range(len(plan.prompts))]
        self._pieces: dict[int, list[Piece]] = {}

    def opening(self, choice: Choice) -> bytes:
        if not self._echo:
            return b""
        scores = self._columns(choice, ()) if self._logprobs else None
        return self._envelope.chunk(choice.index, "text", self._prompt_text(choice.prompt), logprobs=scores)

    def events(self, choice: Choice, piece: Piece) -> bytes:
        out = b""
        if piece.text or piece.logprobs:
            scores = self._columns(choice, piece.logprobs, prompt=False) if self._logprobs else None
            out = self._envelope.chunk(choice.index, "text", piece.text, logprobs=scores)
        if piece.finish_reason is not None:
            out += self._envelope.chunk(choice.index, "text", "", finish=piece.finish_reason)
        return out

    def collect(self, choice: Choice, piece: Piece) -> None:
        self._pieces.setdefault(choice.index, []).append(piece)

    def choices(self, generation: Generation) -> list[dict[str, object]]:
        return [self._choice(choice, self._pieces.get(choice.index, [])) for choice in generation.choices]

    def _choice(self, choice: Choice, pieces: list[Piece]) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        placed = [item for piece in pieces for item in piece.logprobs]
        return {
            "index": choice.index,
            "text": self._prompt_text(choice.prompt) + text if self._echo else text,
            "logprobs": self._columns(choice, placed) if self._logprobs else None,
            "finish_reason": choice.finish_reason,
        }

    def _prompt_text(self, prompt: int) -> str:
        given = self._plan.prompts[prompt]
        return self._tokenizer.decode(given.token_ids) if given.text is None else given.text

    def _columns(self, choice: Choice, placed: Sequence[PlacedLogprob], *, prompt: bool = True) -> dict[str, Any]:
        columns = CompletionLogprobs(self._tokenizer)
        if self._echo and prompt:
            columns.add_prompt(self._plan.prompts[choice.prompt].token_ids, choice.prompt_logprobs)
        for item in placed:
            columns.add(item.token, offset=self._offsets[choice.prompt] + item.start)
        return columns.columns()
