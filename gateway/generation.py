"""The life of one generating request: submit, turn deltas into pieces of text, withdraw what is no longer wanted."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.types import Receive

from drumline.errors import Cancelled, DeadlineExceeded, DrumlineError
from gateway.choice import Choice, Piece
from gateway.live import LiveRequest
from gateway.metrics import RequestClock
from gateway.validation import Plan

Update = tuple[Choice, Piece]


class Generation:
    """Owns the request's live sequences until `close`, which must always be called.

    It ends early, with an error raised out of `updates`, when the client leaves, when the deadline passes, or when the scheduler
    says so.

    Attributes:
        choices: one per prompt and choice, prompt by prompt.
        plan: what was asked for.
    """

    def __init__(
        self,
        live: LiveRequest,
        choices: Sequence[Choice],
        *,
        plan: Plan,
        timeout_s: float,
        clock: RequestClock,
        on_close: Callable[["Generation"], None],
    ) -> None:
        self.choices = tuple(choices)
        self.plan = plan
        self._live = live
        self.clock = clock
        self._on_close = on_close
        self._watch: asyncio.Task[None] | None = None
        late = DeadlineExceeded(f"the request took longer than {timeout_s:g} s")
        self._deadline = asyncio.get_running_loop().call_later(timeout_s, live.fail, late)

    async def updates(self) -> AsyncIterator[list[Update]]:
        """Pieces as they come, several choices at a time, until every choice has finished."""
        num_running = len(self.choices)
        while num_running:
            updates = []
            for delta in await self._live.take():
                choice = self.choices[delta.index]
                before = choice.num_tokens
                piece = choice.feed(delta)
                self.clock.tokens(delta.index, choice.num_tokens - before)
                if piece.finish_reason is not None:
                    num_running -= 1
                    self._live.withdraw(delta.index)
                    self.clock.finished(piece.finish_reason)
                updates.append((choice, piece))
            yield updates

    def watch(self, receive: Receive) -> None:
        """From now on the client's leaving ends the request at once, streaming or not."""
        self._watch = asyncio.create_task(self._until_gone(receive))

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.fail(Cancelled("the client left"))

    def fail(self, error: DrumlineError) -> None:
        """Ends the request with `error`."""
        self._live.fail(error)

    def set_blocked(self, blocked: bool) -> None:  # an attribute's setter
        """Tells whether a write to the client waits right now."""
        self._live.blocked = blocked

    def close(self) -> None:
        """Withdraws what still runs. Idempotent."""
        self._deadline.cancel()
        if self._watch is not None:
            self._watch.cancel()
        self._live.close()
        self._on_close(self)

    def usage(self) -> dict[str, object]:
        """OpenAI's usage object: prompts once each, tokens really emitted."""
        num_prompt = sum(len(prompt.token_ids) for prompt in self.plan.prompts)
        num_completion = sum(choice.num_tokens for choice in self.choices)
        # Choices after a prompt's first hit the blocks that the first one filled; only the first says what the cache saved.
        firsts = self.choices[:: self.plan.num_choices]
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
            "prompt_tokens_details": {"cached_tokens": sum(choice.num_cached_tokens for choice in firsts)},
        }
