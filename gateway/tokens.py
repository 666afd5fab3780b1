"""/tokenize and /detokenize."""

from fastapi import APIRouter
from starlette.requests import Request

from drumline.errors import InvalidRequest
from drumline.limits import MAX_BODY_BYTES
from drumline.validation import check_token_ids
from gateway.answers import Detokenized, Tokenized, responses
from gateway.model import ServedModel
from gateway.schemas import DetokenizeBody, TokenizeBody
from gateway.state import gateway_of
from gateway.validation import check_text, encode_chat

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", summary="Text to token ids", response_model=Tokenized, responses=responses(None, *(400, 404, 413, 503)))
async def tokenize(request: Request, body: TokenizeBody) -> Tokenized:
    """The ids that a prompt or a conversation is fed as; texts longer than the context are welcome."""
    model = gateway_of(request).model()
    model.check_name(body.model)
    ids = await _ids(body, model)
    texts = [model.tokenizer.token_text(token_id) for token_id in ids] if body.return_token_strs else None
    return Tokenized(count=len(ids), max_model_len=model.info.max_model_len, tokens=ids, token_strs=texts)


async def _ids(body: TokenizeBody, model: ServedModel) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.messages is not None:
        return (await encode_chat(body.messages, model, add_generation_prompt=body.add_generation_prompt)).token_ids
    text = body.prompt or ""
    check_text("prompt", text)
    return await model.tokenizer.encode(text, add_bos=body.add_special_tokens, max_tokens=MAX_BODY_BYTES)


@router.post(
    "/detokenize", summary="Token ids to text", response_model=Detokenized, responses=responses(None, *(400, 404, 413, 503))
)
async def detokenize(request: Request, body: DetokenizeBody) -> Detokenized:
    """The text of ids, special tokens left out."""
    model = gateway_of(request).model()
    model.check_name(body.model)
    check_token_ids("tokens", body.tokens, model.info.vocab_size)
    return Detokenized(prompt=model.tokenizer.decode(body.tokens))
