"""The HTTP API as `chat` and `status` use it: every failure is one ApiError that says what to do."""

import json
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

import httpx

DEFAULT_URL: Final = "http://127.0.0.1:8000"
_CONNECT_S: Final = 5.0
_IDLE_S: Final = 600.0
"""Longest silence in an answer: a queue may be long."""


class ApiError(Exception):
    """The server is away or said no; the message is for people."""


class Api:
    """One server. Use as a context manager; not for several threads."""

    def __init__(self, url: str, *, api_key: str = "", transport: httpx.BaseTransport | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._http = httpx.Client(
            base_url=self._url,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(_IDLE_S, connect=_CONNECT_S),
            transport=transport,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._http.close()

    def get(self, path: str) -> dict[str, Any]:
        """JSON of a GET."""
        try:
            reply = self._http.get(path)
        except httpx.HTTPError as error:
            raise self._away(error) from None
        _raise_for(reply)
        return dict(reply.json())

    def model(self) -> str:
        """Name of the first model served."""
        return str(self.get("/v1/models")["data"][0]["id"])

    def chat(self, messages: Sequence[dict[str, str]], **options: Any) -> Iterator[str]:
        """Pieces of the answer as they come. Closing the iterator cancels the request."""
        body = {"messages": list(messages), "stream": True} | {k: v for k, v in options.items() if v is not None}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as reply:
                if reply.status_code != httpx.codes.OK:
                    reply.read()
                    _raise_for(reply)
                yield from _pieces(reply.iter_lines())
        except httpx.HTTPError as error:
            raise self._away(error) from None

    def _away(self, error: httpx.HTTPError) -> ApiError:
        if isinstance(error, httpx.ConnectError):
            return ApiError(f"nobody answers at {self._url}: is `drumline serve` running? (--url names another server)")
        return ApiError(f"{self._url}: {type(error).__name__}: the connection was lost")


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    """Text of an event stream's `data:` lines; an error event becomes ApiError."""
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise ApiError(str(event["error"].get("message", event["error"])))
        for choice in event.get("choices", []):
            if text := choice.get("delta", {}).get("content"):
                yield str(text)


def _raise_for(reply: httpx.Response) -> None:
    """ApiError with the server's own words for any status that is not 200."""
    if reply.status_code == httpx.codes.OK:
        return
    try:
        said = str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = reply.reason_phrase
    hint = " (--api-key, or OPENAI_API_KEY)" if reply.status_code == httpx.codes.UNAUTHORIZED else ""
    raise ApiError(f"{reply.status_code}: {said}{hint}")
