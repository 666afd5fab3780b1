"""One sequence in the books: its tokens, where it lives, what it holds."""

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter

from scheduler_svc.core.columns import SlotColumns
from scheduler_svc.core.prefix import PrefixChain, chain_root
from scheduler_svc.core.types import Request

by_key = attrgetter("request.key")
"""The total order of sequences."""


class State(IntEnum):
    """Where a sequence is in its life.

    WAITING -> RUNNING -> ENDED is the plain way. RUNNING -> PREEMPTING -> WAITING gives its blocks back; RUNNING -> DISCARDING ->
    WAITING does so too but throws away what plans in flight emit, because they read a block that was never computed. WITHDRAWN
    waits for plans in flight after an abort or a deadline.
    """

    WAITING = 1
    RUNNING = 2
    PREEMPTING = 3
    DISCARDING = 4
    WITHDRAWN = 5
    ENDED = 6


LIVE = (State.RUNNING, State.PREEMPTING)
"""States whose results count."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and everything needed to resume it on any executor. Ordered by `key`, the total order of everything.

    Attributes:
        request: as it arrived.
        held: prompt, then tokens delivered, 4 bytes each; those of the last window may still be in `cols`. Read `tokens`.
        state: see `State`.
        executor_id, slot: where it is resident; -1 = nowhere.
        cols: columns of that executor, where decodes leave its tokens; None = nowhere.
        blocks: its block table there, in order.
        num_known: tokens known when it was placed there; prefill ends at this length.
        num_cached_tokens: of those, found in the prefix cache.
        num_published: leading blocks already offered to the prefix cache.
        num_prompt_logprobs_done: prompt log-probabilities delivered.
        num_placements: times that it entered an executor.
        num_crashes: executors that were lost, without draining, while plans with rows of it were in flight there.
        started: its first placement was reported.
        urgency: decisions since it last was chosen, under the bucketed and the ragged rule.
        chain: names of its leading full blocks, for the model `chain_model`.
    """

    request: Request
    held: "array[int]"
    state: State = State.WAITING
    executor_id: int = -1
    slot: int = -1
    cols: SlotColumns | None = None
    blocks: list[int] = field(default_factory=list)
    num_known: int = 0
    num_cached_tokens: int = 0
    num_published: int = 0
    num_prompt_logprobs_done: int = 0
    started: bool = False
    num_placements: int = 0
    num_crashes: int = 0
    urgency: int = 0
    chain: PrefixChain | None = None
    chain_model: str = ""

    @property
    def key(self) -> int:
        """The request's key."""
        return self.request.key

    @property
    def tokens(self) -> "array[int]":
        """Prompt, then every token delivered."""
        if self.cols is not None:
            self.held.frombytes(self.cols.tokens_after(self.slot, len(self.held)))
        return self.held

    @property
    def num_prompt(self) -> int:
        """Prompt tokens."""
        return len(self.request.prompt)

    @property
    def num_emitted(self) -> int:
        """Tokens delivered."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def max_total(self) -> int:
        """Most tokens it may ever have, prompt included."""
        return len(self.request.prompt) + self.request.max_tokens

    @property
    def max_length(self) -> int:
        """Most tokens it may ever have in a cache: the last emitted one is never fed."""
        return len(self.request.prompt) + max(self.request.max_tokens, 1) - 1

    def prefix(self, num_blocks: int, *, model_digest: str, block_size: int) -> PrefixChain:
        """Names of at least the first `num_blocks` blocks of `tokens`, which must be full."""
        chain = self.chain
        if chain is None or self.chain_model != model_digest or chain.block_size != block_size:
            tenant, salt = self.request.tenant, self.request.cache_salt
            root = chain_root(model_digest=model_digest, tenant=tenant, cache_salt=salt, block_size=block_size)
            chain = self.chain = PrefixChain(root, block_size=block_size)
            self.chain_model = model_digest
        if len(chain.digests) < num_blocks:
            chain.extend(self.tokens, num_blocks)
        return chain

    def leave(self) -> None:
        """Forgets where it was resident, but for its tokens. The caller has given slot and blocks back."""
        self.held = self.tokens
        self.cols = None
        self.executor_id = -1
        self.slot = -1
        self.blocks = []
        self.num_known = 0
        self.num_cached_tokens = 0
        self.num_published = 0
