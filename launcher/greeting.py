"""The last step of a start: wait until the API answers, then say where it is and how to try it."""

import asyncio
import contextlib
import json
import sys
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Final

from launcher.config import ServeSettings
from launcher.process import StartFailed

_POLL_S: Final = 0.02
_ANSWER_S: Final = 5.0


async def greet(address: str, wanted: ServeSettings) -> None:
    """Prints the readiness line, with a curl that works as it stands. Raises StartFailed when the API does not become ready."""
    url = base_url(address)
    key = wanted.api_key[0] if wanted.api_key else ""
    place = url.removeprefix("http://")
    await _wait_ready(place, timeout_s=wanted.ready_timeout_s)
    model = await _model_name(place, key=key)
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


async def _wait_ready(address: str, *, timeout_s: float) -> None:
    """Polls /ready: the gateway serves a moment before scheduler and executor have met."""
    try:
        async with asyncio.timeout(timeout_s):
            while (await asyncio.to_thread(_get, address, "/ready"))[0] != HTTPStatus.OK:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise StartFailed(f"the API was not ready after {timeout_s:g} s", code=1) from None


async def _model_name(address: str, *, key: str) -> str:
    """Name for the example; a key from a file is not ours to read, so the name may stay open."""
    status, body = await asyncio.to_thread(_get, address, "/v1/models", key=key)
    return str(json.loads(body)["data"][0]["id"]) if status == HTTPStatus.OK else "MODEL"


def _get(address: str, path: str, *, key: str = "") -> tuple[int, bytes]:
    """Status and body of the answer; status 0 when there is none. An HTTP library of its own would delay the start it waits for."""
    with contextlib.closing(HTTPConnection(address, timeout=_ANSWER_S)) as connection:
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {key}"} if key else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException):
            return 0, b""
