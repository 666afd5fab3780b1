"""/tokenize and /detokenize. Their work is off the event loop and one at a time, so that long texts delay nobody who generates."""

import json
from collections.abc import Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from drumline.errors import InvalidRequest
from drumline.limits import MAX_BODY_BYTES
from drumline.validation import check_token_ids
from gateway.answers import Detokenized, Tokenized, responses
from gateway.model import ServedModel
from gateway.schemas import DetokenizeBody, TokenizeBody
from gateway.state import Gateway, gateway_of
from gateway.validation import check_text, encode_chat

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", summary="Text to token ids", response_model=None, responses=responses(Tokenized, *(400, 404, 413, 503)))
async def tokenize(request: Request, body: TokenizeBody) -> Response:
    """The ids that a prompt or a conversation is fed as; texts longer than the context are welcome."""
    gateway = gateway_of(request)
    model = gateway.model()
    model.check_name(body.model)

    def written() -> bytes:
        texts = [model.tokenizer.token_text(token_id) for token_id in ids] if body.return_token_strs else None
        fields = {"count": len(ids), "max_model_len": model.info.max_model_len, "tokens": ids, "token_strs": texts}
        return json.dumps(fields).encode()

    async with gateway.one_long_text:
        ids = await _ids(body, model)
        return await _answer(gateway, written)


async def _ids(body: TokenizeBody, model: ServedModel) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.messages is not None:
        return (await encode_chat(body.messages, model, add_generation_prompt=body.add_generation_prompt)).token_ids
    text = body.prompt or ""
    check_text("prompt", text)
    return await model.tokenizer.encode(text, add_bos=body.add_special_tokens, max_tokens=MAX_BODY_BYTES)


@router.post(
    "/detokenize", summary="Token ids to text", response_model=None, responses=responses(Detokenized, *(400, 404, 413, 503))
)
async def detokenize(request: Request, body: DetokenizeBody) -> Response:
    """The text of ids, special tokens left out."""
    gateway = gateway_of(request)
    model = gateway.model()
    model.check_name(body.model)
    check_token_ids("tokens", body.tokens, model.info.vocab_size)
    async with gateway.one_long_text:
        return await _answer(gateway, lambda: json.dumps({"prompt": model.tokenizer.decode(body.tokens)}).encode())


async def _answer(gateway: Gateway, written: Callable[[], bytes]) -> Response:
    return Response(await gateway.in_thread(written), media_type="application/json")
