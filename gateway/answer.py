"""From a valid plan to an HTTP answer: the part that completions and chat share."""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import tenant_of
from gateway.choice import Choice, Piece
from gateway.context import request_id_of
from gateway.envelope import Envelope
from gateway.generation import Generation
from gateway.model import ServedModel
from gateway.sse import EventStream
from gateway.state import Gateway, gateway_of
from gateway.validation import Plan


class Writer(Protocol):
    """How one API spells choices. One per request."""

    def opening(self, choice: Choice) -> bytes:
        """The first event of a choice, before its first text; may be empty."""
        ...

    def events(self, choice: Choice, piece: Piece) -> bytes:
        """The events of one piece: text if there is any, then the finish."""
        ...

    def collect(self, choice: Choice, piece: Piece) -> None:
        """Keeps a piece for `choices`."""
        ...

    def choices(self, generation: Generation) -> list[dict[str, object]]:
        """The choices of a whole answer, in order."""
        ...


async def answer(
    request: Request, plan: Plan, model: ServedModel, *, stream: bool, envelope: Envelope, new_writer: Callable[[], Writer]
) -> Response:
    """Submits, then streams or collects. Raises every error that comes before the first token, as HTTP can still say it."""
    gateway = gateway_of(request)
    generation = await gateway.generate(plan, model, request_id=request_id_of(request), tenant=tenant_of(request))
    try:
        generation.watch(request.receive)
        writer = new_writer()
        if stream:
            events = _events(generation, writer, envelope)
            first = await anext(events)
            return EventStream(first, events, generation=generation)
        await _collect(generation, writer)
        body = await _written(generation, writer, envelope, gateway)
    except BaseException:
        generation.close()
        raise
    generation.close()
    return Response(body, media_type="application/json")


async def _events(generation: Generation, writer: Writer, envelope: Envelope) -> AsyncIterator[bytes]:
    opened: set[int] = set()
    async for updates in generation.updates():
        parts = []
        for choice, piece in updates:
            if choice.index not in opened:
                opened.add(choice.index)
                parts.append(writer.opening(choice))
            parts.append(writer.events(choice, piece))
        chunk = b"".join(parts)
        if chunk:
            yield chunk
    if envelope.include_usage:
        yield envelope.usage_chunk(generation.usage())


async def _collect(generation: Generation, writer: Writer) -> None:
    async for updates in generation.updates():
        for choice, piece in updates:
            writer.collect(choice, piece)


async def _written(generation: Generation, writer: Writer, envelope: Envelope, gateway: Gateway) -> bytes:
    def whole() -> bytes:
        return envelope.whole(writer.choices(generation), generation.usage())

    # Log-probabilities of long answers are megabytes, seconds of work; nothing else is worth the way to a thread.
    return await gateway.in_thread(whole) if generation.plan.sampling[0].logprobs else whole()
