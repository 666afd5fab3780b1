"""Perplexity of every server on the same windows of the same text, by one definition: that of llama.cpp's own tool.

Windows of 512 tokens from the beginning of the text; the first half of each is context, and tokens 257 to 511 (counted from 0) are
predicted, each from all before it in its window. So 255 predictions a window.
"""

import math
from collections.abc import Sequence
from typing import Final

import httpx

from bench.client import BenchError
from bench.peers_contestant import Contestant
from bench.perplexity_config import TEXT

WINDOW: Final = 512


async def windows_of(url: str, *, model: str, most: int) -> list[list[int]]:
    """Whole windows of the text, in tokens as Drumline makes them. Raises BenchError when there are not so many."""
    body = {"model": model, "prompt": TEXT.read_text(encoding="utf-8"), "add_special_tokens": False}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        ids: list[int] = (await http.post("/tokenize", json=body)).raise_for_status().json()["tokens"]
    if len(ids) < most * WINDOW:
        raise BenchError(f"the text has {len(ids) // WINDOW} windows of {WINDOW} tokens, {most} are asked for")
    return [ids[first : first + WINDOW] for first in range(0, most * WINDOW, WINDOW)]


async def perplexity_of(contestant: Contestant, windows: Sequence[Sequence[int]]) -> float:
    """exp of the mean negative log-probability of the second halves. Raises BenchError."""
    scores: list[float] = []
    for window in windows:
        logprobs = await contestant.score(window)
        if len(logprobs) != len(window) - 1:
            raise BenchError(f"{len(logprobs)} log-probabilities of a prompt of {len(window)} tokens")
        scores += second_half(logprobs)
    return math.exp(-sum(scores) / len(scores))


def second_half(logprobs: Sequence[float]) -> list[float]:
    """Of a whole window's scores (its first token has none): those of the tokens behind its middle."""
    return list(logprobs[(len(logprobs) + 1) // 2 :])
