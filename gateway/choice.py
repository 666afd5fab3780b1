"""One sequence's deltas to the text that may be shown, with the log-probabilities that belong to it."""

from collections import deque
from dataclasses import dataclass, field

from gateway.detokenizer import Detokenizer
from gateway.sequences import Delta, TokenLogprob
from gateway.stops import StopMatcher


@dataclass(slots=True)
class PlacedLogprob:
    """A token's log-probability and where its text begins and ends in the generated text, in characters."""

    token: TokenLogprob
    start: int
    end: int


@dataclass(slots=True)
class Piece:
    """What one delta adds to the answer.

    Attributes:
        text: new text, maybe empty.
        logprobs: of the tokens whose text is out now; those of held-back text come with it.
        finish_reason: set in the last piece.
    """

    text: str = ""
    logprobs: list[PlacedLogprob] = field(default_factory=list)
    finish_reason: str | None = None


class Choice:
    """State of one choice of one prompt.

    Text of the first `min_tokens` tokens is shown as it is and never begins a stop string: no stop of any kind comes before them.

    Attributes:
        index: its place in the answer.
        prompt: index of its prompt.
        num_tokens: tokens given to the client, the one that completed a stop string included.
        num_cached_tokens: prompt tokens found in the prefix cache.
        prompt_logprobs: of prompt tokens 1.., when asked for.
        finish_reason: None while it runs.
    """

    def __init__(self, index: int, *, prompt: int, detokenizer: Detokenizer, stops: StopMatcher | None, min_tokens: int) -> None:
        self.index = index
        self.prompt = prompt
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.prompt_logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._num_decoded = 0
        self._num_shown = 0
        self._waiting: deque[PlacedLogprob] = deque()

    def feed(self, delta: Delta) -> Piece:
        """Takes a delta; after a stop string the rest of it is dropped and `finish_reason` is set."""
        if delta.num_cached_tokens is not None:
            self.num_cached_tokens = delta.num_cached_tokens
        self.prompt_logprobs += delta.prompt_logprobs
        parts: list[str] = []
        logprobs = iter(delta.logprobs)
        for token_id in delta.token_ids:
            self.num_tokens += 1
            text = self._detokenizer.push(token_id)
            self._place(next(logprobs, None), len(text))
            parts.append(self._show(text))
            if self.finish_reason is not None:
                return self._piece(parts)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            rest = self._detokenizer.flush()
            self._num_decoded += len(rest)
            parts.append(self._show(rest))
            if self._stops is not None:
                parts.append(self._stops.flush())
        return self._piece(parts)

    def _place(self, token: TokenLogprob | None, num_chars: int) -> None:
        start = self._num_decoded
        self._num_decoded += num_chars
        if token is not None:
            self._waiting.append(PlacedLogprob(token, start, self._num_decoded))

    def _show(self, text: str) -> str:
        if self._stops is None or not text or self.num_tokens <= self._min_tokens:
            return text
        shown = self._stops.push(text)
        if self._stops.matched is not None:
            self.finish_reason = "stop"
        return shown

    def _piece(self, parts: list[str]) -> Piece:
        text = "".join(parts)
        self._num_shown += len(text)
        out: list[PlacedLogprob] = []
        while self._waiting and self._waiting[0].end <= self._num_shown:
            out.append(self._waiting.popleft())
        if self.finish_reason is not None:
            # Of a token that a stop string cuts, the part before the cut is shown; tokens behind it never are.
            out += [placed for placed in self._waiting if placed.start < self._num_shown]
            self._waiting.clear()
        return Piece(text, out, self.finish_reason)
