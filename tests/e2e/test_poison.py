"""O9: bad input gets its 4xx while eight neighbours' outputs stay byte-equal and no process exits."""

import asyncio

import httpx
import pytest

from tests.support import shared_inputs as shared
from tests.support.generate import complete_all
from tests.support.served import Served

GOOD = shared.PROMPTS[:8]
C = "/v1/completions"
H = "/v1/chat/completions"
M = {"model": shared.MODEL}
USER = [{"role": "user", "content": "hi"}]
POISON: list[tuple[str, str, object]] = [
    ("b023-empty-list", C, {"prompt": []}),
    ("b023-list-of-empty-list", C, {"prompt": [[]]}),
    ("b023-no-messages", H, {"messages": []}),
    ("b024-negative", C, {"prompt": [[-1]]}),
    ("b024-vocab", C, {"prompt": [49152]}),
    ("b024-2^31", C, {"prompt": [2**31]}),
    ("b024-huge", C, {"prompt": [5279552648203111001]}),
    ("b024-float", C, {"prompt": [1.5]}),
    ("b024-bool", C, {"prompt": [True]}),
    ("b026-many-prompts", C, {"prompt": ["a"] * 10000, "max_tokens": 1}),
    ("b031-too-long", C, {"prompt": "hello " * 4, "max_tokens": 10**6}),
    ("b032-stream-too-long", C, {"prompt": "hello " * 20000, "max_tokens": 1, "stream": True}),
    ("b038-top-k--2", C, {"prompt": "a", "top_k": -2}),
    ("b039-bias-oov", C, {"prompt": "a", "logit_bias": {"191222": -100}}),
    ("b039-bias-word", C, {"prompt": "a", "logit_bias": {"AI": -100}}),
    ("b039-bias-negative", C, {"prompt": "a", "logit_bias": {"-1": 5}}),
    ("b039-bias-string", C, {"prompt": "a", "logit_bias": {"1": "x"}}),
    ("b039-bias-1e9", C, {"prompt": "a", "logit_bias": {"1": 1e9}}),
    ("b040-stop-ids", C, {"prompt": "a", "stop_token_ids": [10000000, -5], "min_tokens": 1, "max_tokens": 4}),
    ("b041-many-stop-ids", C, {"prompt": "a", "stop_token_ids": [1] * 500}),
    ("b041-many-bias", C, {"prompt": "a", "logit_bias": {str(i): 1 for i in range(5000)}}),
    ("b042-many-stops", C, {"prompt": "a", "stop": ["x"] * 1000}),
    ("b042-long-stop", C, {"prompt": "a", "stop": "x" * 1_000_000}),
    ("b053-unknown-role", H, {"messages": [{"role": "wizard", "content": "hi"}]}),
    ("b095-n", C, {"prompt": "a", "n": 10**9}),
    ("b095-n--1", C, {"prompt": "a", "n": -1}),
    ("b095-best-of", C, {"prompt": "a", "best_of": 10**9}),
    ("b095-top-logprobs", H, {"messages": USER, "logprobs": True, "top_logprobs": 10**9}),
    ("b095-logprobs", C, {"prompt": "a", "logprobs": 10**9}),
    ("b095-max-tokens", C, {"prompt": "a", "max_tokens": -1}),
    ("b098-template", H, {"messages": USER, "chat_template": "{{ range(10**9) }}"}),
    ("b098-template-kwargs", H, {"messages": USER, "chat_template_kwargs": {"tokenize": True}}),
    (
        "b048-response-format",
        H,
        {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
    ),
    ("tools", H, {"messages": USER, "tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("b100-salt-nul", C, {"prompt": "a", "cache_salt": "a\x00b"}),
    ("b100-salt-slash", C, {"prompt": "a", "cache_salt": "a/b"}),
    ("b100-salt-long", C, {"prompt": "a", "cache_salt": "x" * 10000}),
    ("unknown-field", C, {"prompt": "a", "temprature": 1}),
    ("temperature-nan", C, b'{"model": "SmolLM2-135M-Instruct", "prompt": "a", "temperature": NaN}'),
    ("not-json", C, b"{"),
    ("not-an-object", C, b"[]"),
    ("no-prompt", C, {}),
    ("null-prompt", C, {"prompt": None}),
    ("wrong-model", C, {"model": "gpt-4", "prompt": "a"}),
]


async def poison_all(url: str) -> list[tuple[str, int, str]]:
    seen = []
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        for name, path, body in POISON:
            if isinstance(body, bytes):
                reply = await http.post(path, content=body, headers={"content-type": "application/json"})
            else:
                reply = await http.post(path, json=M | body)
            seen.append((name, reply.status_code, reply.text))
    return seen


async def test_o9_poison_beside_eight_neighbours(served: Served) -> None:
    params = {"max_tokens": 48, "ignore_eos": True, "stream": True}
    expected = await complete_all(served.url, GOOD, **params)
    pids = sorted(p.pid for kind in ("gateway", "scheduler", "executor") for p in served.children(kind))
    neighbours, seen = await asyncio.gather(complete_all(served.url, GOOD, **params), poison_all(served.url))
    wrong = [(name, code, text[:200]) for name, code, text in seen if not 400 <= code < 500]
    assert not wrong
    for name, _, text in seen:
        assert '"error"' in text, name
        assert not any(leak in text for leak in ("Traceback", "0x", ".py", "/root", "127.0.0.1")), (name, text[:300])
    assert [a.same() for a in neighbours] == [a.same() for a in expected]
    assert sorted(p.pid for kind in ("gateway", "scheduler", "executor") for p in served.children(kind)) == pids


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 1e-4, 0.01])
async def test_b036_tiny_temperatures_equal_greedy(served: Served, temperature: float) -> None:
    greedy, tiny = (
        await complete_all(served.url, [GOOD[0]]),
        await complete_all(served.url, [GOOD[0]], temperature=temperature, seed=3),
    )
    assert tiny[0].text
    if temperature <= 1e-4:
        assert tiny[0].same() == greedy[0].same()
