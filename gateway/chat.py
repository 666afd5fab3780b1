"""/v1/chat/completions."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.answer import answer
from gateway.answers import STREAMED, ChatCompletion, ChatCompletionChunk, responses
from gateway.choice import Choice, Piece
from gateway.envelope import Envelope
from gateway.generation import Generation
from gateway.logprobs import chat_logprobs
from gateway.schemas import ChatBody
from gateway.state import gateway_of
from gateway.tokenizer import ModelTokenizer
from gateway.validation import plan_chat

router = APIRouter(tags=["generate"])


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation",
    response_model=None,
    responses=responses(ChatCompletion, streamed=ChatCompletionChunk),
    description=STREAMED,
)
async def create_chat_completion(request: Request, body: ChatBody) -> Response:
    """One model turn per choice, whole or streamed."""
    model = gateway_of(request).model()
    plan = await plan_chat(body, model)
    envelope = Envelope(
        prefix="chatcmpl",
        kind="chat.completion",
        chunk_kind="chat.completion.chunk",
        model=body.model or model.names[0],
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )

    def new_writer() -> ChatWriter:
        return ChatWriter(envelope, model.tokenizer, logprobs=bool(body.logprobs))

    return await answer(request, plan, model, stream=bool(body.stream), envelope=envelope, new_writer=new_writer)


class ChatWriter:
    """Spells choices as chat messages: role first, finish_reason last."""

    def __init__(self, envelope: Envelope, tokenizer: ModelTokenizer, *, logprobs: bool) -> None:
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._pieces: dict[int, list[Piece]] = {}

    def opening(self, choice: Choice) -> bytes:
        return self._envelope.chunk(choice.index, "delta", {"role": "assistant", "content": ""})

    def events(self, choice: Choice, piece: Piece) -> bytes:
        out = b""
        if piece.text or piece.logprobs:
            scores = chat_logprobs(piece.logprobs, self._tokenizer) if self._logprobs else None
            out = self._envelope.chunk(choice.index, "delta", {"content": piece.text}, logprobs=scores)
        if piece.finish_reason is not None:
            out += self._envelope.chunk(choice.index, "delta", {}, finish=piece.finish_reason)
        return out

    def collect(self, choice: Choice, piece: Piece) -> None:
        self._pieces.setdefault(choice.index, []).append(piece)

    def choices(self, generation: Generation) -> list[dict[str, object]]:
        return [self._choice(choice, self._pieces.get(choice.index, [])) for choice in generation.choices]

    def _choice(self, choice: Choice, pieces: list[Piece]) -> dict[str, Any]:
        placed = [item for piece in pieces for item in piece.logprobs]
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": "".join(piece.text for piece in pieces), "refusal": None},
            "logprobs": chat_logprobs(placed, self._tokenizer) if self._logprobs else None,
            "finish_reason": choice.finish_reason,
        }
