"""Tokens to text, one token at a time, never half a character; all pieces joined are the whole decode (comparison O1).

The usual way decodes a sliding window of tokens twice per token; a byte table and an incremental UTF-8 decoder give the same text
for one look-up per token, and no token sequence can make them fail. The window stays for decoders that the table does not know.
"""

import codecs
from typing import Final, Protocol

from tokenizers import Tokenizer

from gateway.vocabulary import Vocabulary

_MAX_WINDOW: Final = 16
"""Tokens after which undecodable bytes are shown as U+FFFD instead of waiting longer; a character has at most 4 bytes."""


class Detokenizer(Protocol):
    """Stateful, one per sequence."""

    def push(self, token_id: int) -> str:
        """Text that became whole with this token, often empty. Never raises, whatever the id."""
        ...

    def flush(self) -> str:
        """What was held back, at the end: U+FFFD for a character that was never finished."""
        ...


class TableDetokenizer:
    """For byte-level and byte-fallback vocabularies. Invalid bytes become U+FFFD, one per maximal invalid part."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._vocabulary.shown(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other decoder: the difference between two decodes of the last few tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._num_shown = 0
        """Leading ids of the window whose text is out; they stay as context for the rest."""

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._new_text()
        if text.endswith("\ufffd") and len(self._ids) - self._num_shown < _MAX_WINDOW:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._new_text())

    def _new_text(self) -> str:
        shown = self._tokenizer.decode(self._ids[: self._num_shown])
        return self._tokenizer.decode(self._ids)[len(shown) :]

    def _advance(self, text: str) -> str:
        if text:
            self._ids = self._ids[self._num_shown :]
            self._num_shown = len(self._ids)
        return text


def new_detokenizer(vocabulary: Vocabulary, tokenizer: Tokenizer) -> Detokenizer:
    """The right kind for a model's decoder."""
    return TableDetokenizer(vocabulary) if vocabulary.exact else WindowDetokenizer(tokenizer)
