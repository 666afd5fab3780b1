"""Log-probabilities in the two shapes of OpenAI's API."""

from collections.abc import Sequence
from typing import Any

from gateway.choice import PlacedLogprob
from gateway.sequences import TokenLogprob
from gateway.tokenizer import ModelTokenizer


def chat_logprobs(placed: Sequence[PlacedLogprob], tokenizer: ModelTokenizer) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}`."""
    return {"content": [_chat_token(item.token, tokenizer) for item in placed], "refusal": None}


def _chat_token(token: TokenLogprob, tokenizer: ModelTokenizer) -> dict[str, Any]:
    entry = _chat_entry(token.token_id, token.logprob, tokenizer)
    entry["top_logprobs"] = [_chat_entry(token_id, logprob, tokenizer) for token_id, logprob in token.top]
    return entry


def _chat_entry(token_id: int, logprob: float, tokenizer: ModelTokenizer) -> dict[str, Any]:
    raw = tokenizer.vocabulary.token_bytes(token_id)
    return {"token": tokenizer.token_text(token_id), "logprob": logprob, "bytes": list(raw)}


class CompletionLogprobs:
    """Columns `tokens`, `token_logprobs`, `top_logprobs`, `text_offset` of one answer or one event.

    A row of `top_logprobs` holds the asked number of alternatives and the chosen token itself.
    """

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add(self, token: TokenLogprob, *, offset: int) -> None:
        """One token; `offset` counts characters from the start of the answer's text."""
        text = self._tokenizer.token_text(token.token_id)
        top = {self._tokenizer.token_text(token_id): logprob for token_id, logprob in token.top}
        self._tokens.append(text)
        self._logprobs.append(token.logprob)
        self._top.append({text: token.logprob} | top)
        self._offsets.append(offset)

    def add_unscored(self, token_id: int, *, offset: int) -> None:
        """A token without a log-probability: the first one of a prompt."""
        self._tokens.append(self._tokenizer.token_text(token_id))
        self._logprobs.append(None)
        self._top.append(None)
        self._offsets.append(offset)

    def add_prompt(self, token_ids: Sequence[int], scored: Sequence[TokenLogprob]) -> int:
        """A whole prompt, of which the last `len(scored)` tokens are scored; returns its length in characters."""
        detokenizer = self._tokenizer.detokenizer()
        offset = 0
        num_unscored = len(token_ids) - len(scored)
        for place, token_id in enumerate(token_ids):
            if place < num_unscored:
                self.add_unscored(token_id, offset=offset)
            else:
                self.add(scored[place - num_unscored], offset=offset)
            offset += len(detokenizer.push(token_id))
        return offset + len(detokenizer.flush())

    def columns(self) -> dict[str, Any]:
        """As OpenAI spells them."""
        return {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }
