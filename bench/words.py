"""Which token ids are whole words, asked of the server itself, so that no model file is needed here."""

import asyncio
import random
import re
from typing import Final

import httpx

from bench.client import BenchError

_WORD: Final = re.compile(r" [a-z]{4,}")
_NUM_TRIED: Final = 512
FEW: Final = 160
"""Enough for prompts of which no two begin alike."""
_AT_ONCE: Final = 16
_IDS: Final = (range(1000, 30000), range(1000))
"""Where byte-pair vocabularies keep their common words; then the rest, for a small vocabulary."""
_MIN_WORDS: Final = 8


async def find_words(http: httpx.AsyncClient, *, model: str, seed: int, num_tried: int = _NUM_TRIED) -> list[int]:
    """Token ids that decode to " word" (ASCII, lower case, four letters or more), a seeded sample. Raises BenchError.

    `num_tried`: ids of the common range that are asked for. Where those hold no words the vocabulary is small and half of it is.
    """
    gate = asyncio.Semaphore(_AT_ONCE)

    async def is_word(token_id: int) -> bool:
        async with gate:
            reply = await http.post("/detokenize", json={"model": model, "tokens": [token_id]})
        return reply.status_code == httpx.codes.OK and _WORD.fullmatch(str(reply.json()["prompt"])) is not None

    for ids, count in zip(_IDS, (num_tried, _NUM_TRIED), strict=True):
        tried = random.Random(f"words {seed}").sample(ids, min(len(ids), count))
        found = await asyncio.gather(*(is_word(token_id) for token_id in tried))
        words = [token_id for token_id, fits in zip(tried, found, strict=True) if fits]
        if len(words) >= _MIN_WORDS:
            return words
    raise BenchError("hardly any token is a word: is /detokenize served, and the model's language written in Latin letters?")
