"""Text to tokens, with the model's BOS rules, off the event loop for long texts."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tokenizers import Tokenizer

from drumline.errors import InvalidRequest
from gateway.detokenizer import Detokenizer, new_detokenizer
from gateway.vocabulary import Vocabulary

_INLINE_CHARS: Final = 4096
"""About a millisecond of encoding; longer texts go to a worker thread."""


class ModelTokenizer:
    """Encodes and decodes for one model. Shared by all requests; `pool` is borrowed."""

    def __init__(
        self, tokenizer_json: str, *, vocab_size: int, bos_token_id: int | None, add_bos: bool, pool: ThreadPoolExecutor
    ) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._bos = bos_token_id if add_bos else None
        self._pool = pool
        self.vocabulary = Vocabulary(self._tokenizer, vocab_size=vocab_size)

    async def encode(self, text: str, *, add_bos: bool, max_tokens: int) -> list[int]:
        """Token ids of `text`, the BOS token in front when the model wants one and `add_bos`.

        A text that must have more than `max_tokens` tokens whatever they are is refused unread. Raises InvalidRequest.
        """
        least = len(text) // self.vocabulary.longest
        if least > max_tokens:
            raise InvalidRequest(
                f"the prompt has at least {least} tokens, the model's context is {max_tokens} tokens", param="prompt"
            )
        if len(text) <= _INLINE_CHARS:
            ids = self._encode(text)
        else:
            ids = await asyncio.get_running_loop().run_in_executor(self._pool, self._encode, text)
        if add_bos and self._bos is not None and ids[:1] != [self._bos]:
            return [self._bos, *ids]
        return ids

    def _encode(self, text: str) -> list[int]:
        # The batch call is the one that lets go of the interpreter lock.
        encoded: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return encoded

    def decode(self, ids: list[int], *, start_of_text: bool = True) -> str:
        """The whole text of `ids`, special tokens left out."""
        detokenizer = self.detokenizer()
        text = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        return text.removeprefix(" ") if start_of_text and self.vocabulary.strips_leading_space else text

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one sequence whose text goes on from a prompt."""
        return new_detokenizer(self.vocabulary, self._tokenizer)

    def token_text(self, token_id: int) -> str:
        """A token's own text; bytes that are no whole characters are written `bytes:\\xe2\\x80`."""
        raw = self.vocabulary.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def name_of(self, token_id: int | None) -> str:
        """The special token's own spelling, for templates; empty for None."""
        return (self._tokenizer.id_to_token(token_id) or "") if token_id is not None else ""
