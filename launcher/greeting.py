"""The last step of a start: wait until the API answers, then say where it is and how to try it."""

import asyncio
import sys
from typing import Final

import httpx

from launcher.config import ServeSettings
from launcher.process import StartFailed

_POLL_S: Final = 0.05


async def greet(address: str, wanted: ServeSettings) -> None:
    """Prints the readiness line, with a curl that works as it stands. Raises StartFailed when the API does not become ready."""
    url = base_url(address)
    key = wanted.api_key[0] if wanted.api_key else ""
    async with httpx.AsyncClient(base_url=url, timeout=5, trust_env=False) as http:
        await _wait_ready(http, timeout_s=wanted.ready_timeout_s)
        model = await _model_name(http, key=key)
    sys.stdout.write(f"READY serve {url}\n{example(url, model=model, needs_key=bool(key))}\n")
    sys.stdout.flush()


def base_url(address: str) -> str:
    """URL for `host:port`, from this machine: a server bound to every address is reached through loopback."""
    host, _, port = address.rpartition(":")
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]', '') else host}:{port}"


def example(url: str, *, model: str, needs_key: bool) -> str:
    """A curl to paste; a key is left for the reader to fill in, since terminals are logged."""
    key = " -H 'authorization: Bearer YOUR_KEY'" if needs_key else ""
    messages = '[{"role": "user", "content": "What is the capital of Germany?"}]'
    body = f'{{"model": "{model}", "temperature": 0, "messages": {messages}}}'
    return f"Try it:\n  curl -s {url}/v1/chat/completions -H 'content-type: application/json'{key} \\\n    -d '{body}'"


async def _wait_ready(http: httpx.AsyncClient, *, timeout_s: float) -> None:
    """Polls /ready: the gateway serves a moment before scheduler and executor have met."""
    try:
        async with asyncio.timeout(timeout_s):
            while not await _is_ready(http):  # noqa: ASYNC110 - what is awaited happens in another process
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise StartFailed(f"the API was not ready after {timeout_s:g} s", code=1) from None


async def _is_ready(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/ready")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def _model_name(http: httpx.AsyncClient, *, key: str) -> str:
    """Name for the example; a key from a file is not ours to read, so the name may stay open."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    reply = await http.get("/v1/models", headers=headers)
    if reply.status_code != httpx.codes.OK:
        return "MODEL"
    return str(reply.json()["data"][0]["id"])
