"""Which token ids are whole words, asked of the server itself, so that no model file is needed here."""

import asyncio
import random
import re
from typing import Final

import httpx

from bench.client import BenchError

_WORD: Final = re.compile(r" [a-z]{4,}")
_NUM_TRIED: Final = 512
_AT_ONCE: Final = 16
_IDS: Final = range(1000, 30000)
"""Where byte-pair vocabularies keep their common words."""
_MIN_WORDS: Final = 32


async def find_words(http: httpx.AsyncClient, *, model: str, seed: int) -> list[int]:
    """Token ids that decode to " word" (ASCII, lower case, four letters or more), a seeded sample. Raises BenchError."""
    tried = random.Random(f"words {seed}").sample(_IDS, _NUM_TRIED)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def text_of(token_id: int) -> str:
        async with gate:
            reply = await http.post("/detokenize", json={"model": model, "tokens": [token_id]})
        return str(reply.json()["prompt"]) if reply.status_code == httpx.codes.OK else ""

    texts = await asyncio.gather(*(text_of(token_id) for token_id in tried))
    words = [token_id for token_id, text in zip(tried, texts, strict=True) if _WORD.fullmatch(text)]
    if len(words) < _MIN_WORDS:
        raise BenchError(f"only {len(words)} of {_NUM_TRIED} tried tokens are words: is /detokenize served, and the text English?")
    return words
