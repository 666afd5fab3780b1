"""What every event and answer of one request has around it: id, kind, time and model, written out once."""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.sse import event


class Envelope:
    """One per request. `prefix` begins the id; `kind` is the `object` of whole answers, `chunk_kind` that of events."""

    def __init__(self, *, prefix: str, kind: str, chunk_kind: str, model: str, include_usage: bool) -> None:
        self.include_usage = include_usage
        self._fields = {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}
        self._chunk_fields = self._fields | {"object": chunk_kind}
        # An event differs from the next one only in its choice, so the rest is not encoded again for every token.
        self._head = "data: " + json.dumps(self._chunk_fields, separators=(",", ":"))[:-1] + ',"choices":[{"index":'
        self._tail = '}],"usage":null}\n\n' if include_usage else "}]}\n\n"

    def chunk(
        self, index: int, field: str, value: Any, *, logprobs: Mapping[str, Any] | None = None, finish: str | None = None
    ) -> bytes:
        """One event with one choice, whose `field` (`text` or `delta`) is `value`."""
        end = "null" if finish is None else f'"{finish}"'
        scores = "null" if logprobs is None else json.dumps(logprobs)
        text = f'{self._head}{index},"{field}":{json.dumps(value)},"logprobs":{scores},"finish_reason":{end}{self._tail}'
        return text.encode("ascii")

    def usage_chunk(self, usage: Mapping[str, Any]) -> bytes:
        """The last event when usage is asked for: no choices."""
        return event(self._chunk_fields | {"choices": [], "usage": usage})

    def whole(self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> bytes:
        """The whole answer of a request that does not stream. Choices are encoded one by one: the encoder lets nobody else run."""
        head = json.dumps(self._fields)[:-1]
        each = ", ".join([json.dumps(choice) for choice in choices])
        return f'{head}, "choices": [{each}], "usage": {json.dumps(usage)}}}'.encode("ascii")
