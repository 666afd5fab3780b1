"""Builds `Outputs`: one entry per sequence with news."""

from scheduler_svc.core.types import FinishReason, Outputs


class News:
    """Collects what one call into the core has to tell clients."""

    def __init__(self, begun: Outputs | None = None) -> None:
        """`begun`: entries that are there already, one token each."""
        self._out = begun or Outputs()
        self._keys: list[int] = list(self._out.keys)
        self._counts: list[int] = [1] * len(self._keys)
        self._tokens: list[int] = list(self._out.token_ids)

    def entry(self, key: int, *, tokens: list[int] | None = None) -> int:
        """A new entry; `key` must not have one yet."""
        self._keys.append(key)
        self._counts.append(len(tokens) if tokens else 0)
        if tokens:
            self._tokens += tokens
        return len(self._keys) - 1

    def finish(self, entry: int, reason: FinishReason) -> None:
        """The entry's sequence ended."""
        self._out.finished.append((entry, reason))

    def fail(self, entry: int, reason: FinishReason, code: str, message: str) -> None:
        """The entry's sequence ended with an error, or by its deadline."""
        self._out.finished.append((entry, reason))
        self._out.errors.append((entry, code, message))

    def start(self, entry: int, num_cached_tokens: int) -> None:
        """The entry's sequence was placed for the first time."""
        self._out.started.append((entry, num_cached_tokens))

    def attach(self, entry: int, *, logprobs: object | None, prompt_logprobs: object | None) -> None:
        """Opaque log-probabilities of the entry."""
        if logprobs is not None:
            self._out.logprobs[entry] = logprobs
        if prompt_logprobs is not None:
            self._out.prompt_logprobs[entry] = prompt_logprobs

    def outputs(self) -> Outputs:
        """The finished columns; the caller owns them."""
        out = self._out
        out.keys = self._keys
        out.token_ids = self._tokens
        out.num_tokens = () if self._counts.count(1) == len(self._counts) else self._counts
        return out
