"""Runs completions over HTTP and gives back everything that must be equal between two runs."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Answer:
    """What a client got: text, pieces as they came, the ids' text, finish reason, usage."""

    text: str = ""
    pieces: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None

    def same(self) -> tuple[str, list[str], str | None, int]:
        return self.text, self.tokens, self.finish_reason, self.usage.get("completion_tokens", -1)


async def complete(http: httpx.AsyncClient, prompt: object, *, stream: bool = False, **body: Any) -> Answer:
    payload = {"model": "SmolLM2-135M-Instruct", "prompt": prompt, "logprobs": 1, "max_tokens": 16, "temperature": 0} | body
    if not stream:
        reply = await http.post("/v1/completions", json=payload)
        reply.raise_for_status()
        data = reply.json()
        choice = data["choices"][0]
        shown = choice.get("logprobs") or {}
        return Answer(
            choice["text"],
            [choice["text"]],
            shown.get("tokens", []),
            shown.get("token_logprobs", []),
            choice["finish_reason"],
            data["usage"],
        )
    answer = Answer()
    payload |= {"stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", "/v1/completions", json=payload) as reply:
        if reply.status_code != 200:
            await reply.aread()
            reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                absorb(answer, json.loads(line[6:]))
    return answer


def absorb(answer: Answer, event: dict[str, Any]) -> None:
    if event.get("error"):
        answer.error = event["error"]
        return
    if event.get("usage"):
        answer.usage = event["usage"]
    for choice in event["choices"]:
        answer.text += choice["text"]
        answer.pieces.append(choice["text"])
        shown = choice.get("logprobs") or {}
        answer.tokens += shown.get("tokens", [])
        answer.logprobs += shown.get("token_logprobs", [])
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason


async def complete_all(url: str, prompts: Sequence[object], *, stream: bool = False, **body: Any) -> list[Answer]:
    """All at once, as one ragged batch."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=180, limits=limits) as http:
        return list(await asyncio.gather(*(complete(http, prompt, stream=stream, **body) for prompt in prompts)))


async def complete_ways(url: str, prompts: Sequence[object], *, ways: Mapping[str, dict[str, Any]]) -> dict[str, list[Answer]]:
    """All prompts in each way of sampling: the first by itself, so that the others, all in one batch, can hit its prefixes."""
    first, *others = ways
    answers = {first: await complete_all(url, prompts, **ways[first])}
    together = await asyncio.gather(*(complete_all(url, prompts, **ways[way]) for way in others))
    return answers | dict(zip(others, together, strict=True))


async def complete_each(url: str, prompts: Sequence[object], **body: Any) -> list[Answer]:
    """One after the other, each alone."""
    async with httpx.AsyncClient(base_url=url, timeout=180) as http:
        return [await complete(http, prompt, **body) for prompt in prompts]
