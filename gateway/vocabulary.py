"""The bytes of every token, taken once from a `tokenizer.json`, so that decoding is a table look-up."""

import json
from typing import Any, Final

from tokenizers import Tokenizer

_META: Final = "\u2581"
"""How SentencePiece vocabularies write a space."""


class Vocabulary:
    """Token id -> bytes. Immutable; shared by all requests.

    Attributes:
        pieces: bytes of each id, special tokens included; an id without a token (padded embedding rows) has none.
        special: ids that generated text never shows.
        exact: the decoder is one of the kinds that the table reproduces; otherwise decode with the tokenizer itself.
        strips_leading_space: a text's first space is the decoder's own and not shown.
        longest: most bytes of one token.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int) -> None:
        kinds = _decoder_kinds(json.loads(tokenizer.to_str())["decoder"])
        added = tokenizer.get_added_tokens_decoder()
        tokens = tokenizer.get_vocab(with_added_tokens=True)
        size = max([vocab_size, *(index + 1 for index in tokens.values())])
        byte_level = "ByteLevel" in kinds
        self.exact = byte_level or "ByteFallback" in kinds or "Metaspace" in kinds
        self.strips_leading_space = not byte_level and bool({"Strip", "Metaspace"} & kinds)
        self.special = frozenset(index for index, token in added.items() if token.special)
        pieces = [b""] * size
        table = _byte_of_char()
        for text, index in tokens.items():
            pieces[index] = _byte_level(text, table) if byte_level else _sentence_piece(text)
        for index in self.special:
            pieces[index] = added[index].content.encode()
        self.pieces: Final = tuple(pieces)
        self.longest = max(map(len, pieces))

    def shown(self, token_id: int) -> bytes:
        """What a token adds to generated text: nothing for special tokens and for ids that name no token."""
        if token_id in self.special or not 0 <= token_id < len(self.pieces):
            return b""
        return self.pieces[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        """A token's own bytes, special tokens by name; for log-probabilities."""
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""


def _decoder_kinds(decoder: dict[str, Any] | None) -> frozenset[str]:
    if decoder is None:
        return frozenset()
    return frozenset([decoder["type"], *(inner["type"] for inner in decoder.get("decoders", ()))])


def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-ins: bytes that print stand for themselves, the others for 256, 257, ... in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _byte_level(text: str, table: dict[str, int]) -> bytes:
    try:
        return bytes([table[char] for char in text])
    except KeyError:
        return text.encode()


def _sentence_piece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace(_META, " ").encode()
