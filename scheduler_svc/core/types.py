"""Plain data that crosses the core's edge: what goes in (requests, executors, results) and what comes out (plans, outputs).

Nothing here knows the wire; `scheduler_svc.wire` translates. `sampling` and log-probabilities are opaque: the core carries them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray


class CacheOp(IntEnum):
    """Values of `plan.proto` CacheOp."""

    NOTHING = 1
    IN = 2
    RESET = 3


class Layout(IntEnum):
    """Values of `plan.proto` Layout."""

    PAGED = 1
    ALIGNED = 2
    STRIPPED = 3


class Advance(IntEnum):
    """Values of `plan.proto` Advance."""

    COHORT = 1
    PER_SEQUENCE = 2


class RowKind(IntEnum):
    """Values of `plan.proto` RowKind."""

    PREFILL = 1
    PREFILL_LAST = 2
    DECODE = 3


class FinishReason(IntEnum):
    """Values of `common.proto` FinishReason."""

    STOP = 1
    LENGTH = 2
    ABORTED = 3
    ERROR = 4
    DEADLINE = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """The scheduler's own bounds.

    Attributes:
        max_waiting_requests: sequences that may wait for a first slot.
        max_waiting_tokens: prompt tokens that may wait for a first slot.
        max_num_seqs: most sequences resident on one executor (also bounded by the executor's slots).
        max_num_batched_tokens: token budget of one step (also bounded by the executor's).
        prefill_chunk: longest chunk of one row in one step, tokens; 0 = the whole budget.
        enable_prefix_caching: look up and publish full blocks.
        plans_in_flight: plans sent and not yet answered per executor, in the paged layout.
        want_digests: ask executors for a digest per row (recording).
        max_moves: a sequence that had rows in flight on this many executors when they were lost ends with an error: it may be what
            kills them. An executor that was draining does not count.
        admission: the policy by name: `paged` mixes everything, `bucketed` and `ragged` run one bucket a step.
        layout: how executors keep a cohort's rows; `aligned` and `stripped` go with `bucketed` and `ragged` only.
        cadence: `auto` = as layout and grant need it; anything else must agree with them.
        prefill_floor: with a ragged grant, decisions after which whoever waits goes first, prompts beside a large cohort above all;
            0 = as priority says, which is what recordings mean that do not know this setting.
        drafts: how far drafts run where an executor makes some, in the paged layout: `adaptive` as far as each is worth its price,
            `fixed` as far as it can, `off` not at all.
        advance: how rows with drafts move: `per_sequence` each by what it accepted, `cohort` all by what the one with the fewest
            did.
    """

    max_waiting_requests: int = 2048
    max_waiting_tokens: int = 2_000_000
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 512
    prefill_chunk: int = 0
    enable_prefix_caching: bool = True
    plans_in_flight: int = 2
    want_digests: bool = False
    max_moves: int = 3
    admission: Literal["paged", "bucketed", "ragged"] = "paged"
    layout: Literal["paged", "aligned", "stripped"] = "paged"
    cadence: Literal["auto", "on_change", "every_step"] = "auto"
    prefill_floor: int = 0
    drafts: Literal["adaptive", "fixed", "off"] = "adaptive"
    advance: Literal["per_sequence", "cohort"] = "per_sequence"


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """An executor as its handshake described it. `executor_id` is given by the shell, rising, never reused."""

    executor_id: int
    model_digest: str
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    layouts: tuple[Layout, ...] = (Layout.PAGED,)
    ragged_granted: bool = False
    ragged_reason: str = ""
    mtp_depth: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate.

    Attributes:
        key: given by the shell, rising, never reused; everything names the sequence by it.
        request_id: for logs and recordings.
        prompt: token ids, not empty.
        max_tokens: most tokens to emit; 0 only with `prompt_logprobs`.
        prompt_logprobs: the prefix cache is bypassed for it.
        sampling: opaque, handed to the executor.
        tenant, cache_salt: part of the prefix cache's key, as tagged fields.
        arrival_ns, deadline_ns: on the clock of `schedule`; deadline 0 = none.
    """

    key: int
    request_id: str
    prompt: Sequence[int]
    max_tokens: int
    sampling: object = None
    prompt_logprobs: bool = False
    tenant: str = ""
    cache_salt: str = ""
    arrival_ns: int = 0
    deadline_ns: int = 0


@dataclass(slots=True)
class NewSequence:
    """A sequence that enters an executor; fields as in `plan.proto`. `token_ids` = prompt, then tokens already emitted."""

    slot: int
    key: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    sampling: object
    num_prompt_logprobs_done: int = 0


@dataclass(slots=True)
class Plan:
    """One step for one executor, columnar; fields as in `plan.proto`. Row columns are empty when `repeat_rows`."""

    executor_id: int
    step_id: int
    grant_id: int
    cohort_id: int
    based_on_result_step: int
    cache_op: CacheOp = CacheOp.NOTHING
    layout: Layout = Layout.PAGED
    advance: Advance = Advance.PER_SEQUENCE
    freed_slots: list[int] = field(default_factory=list)
    aborted_slots: list[int] = field(default_factory=list)
    new_sequences: list[NewSequence] = field(default_factory=list)
    repeat_rows: bool = False
    slots: list[int] = field(default_factory=list)
    row_kinds: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    block_rows: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    copy_src: list[int] = field(default_factory=list)
    copy_dst: list[int] = field(default_factory=list)
    draft_len: list[int] = field(default_factory=list)
    want_digests: bool = False


@dataclass(slots=True)
class StepResult:
    """What one plan did; fields as in `plan.proto`.

    Attributes:
        num_emitted: tokens per row; empty = exactly 1 by every row.
        token_ids: flattened.
        lengths: per row, tokens with keys and values in the cache; 0 for a skipped row.
        finished: (row, reason).
        skipped: rows not run.
        errors: (row, code, message).
        logprobs, prompt_logprobs: row -> opaque.
        num_blocks_in_use: the executor's own count, cross-checked.
        num_drafted: drafts verified per row; empty = none by any.
        device_ns: what the step took. draft_ns: of it, guessing.
    """

    step_id: int
    num_emitted: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    lengths: Sequence[int] | NDArray[np.int64] = ()
    finished: Sequence[tuple[int, FinishReason]] = ()
    skipped: Sequence[int] = ()
    errors: Sequence[tuple[int, str, str]] = ()
    logprobs: dict[int, object] = field(default_factory=dict)
    prompt_logprobs: dict[int, object] = field(default_factory=dict)
    num_blocks_in_use: int = 0
    num_drafted: Sequence[int] = ()
    device_ns: int = 0
    draft_ns: int = 0


@dataclass(slots=True)
class Outputs:
    """News for clients from one call into the core, one column per field: ordinary decode rows first, then others.

    Attributes:
        keys: sequences with news; a key appears once.
        num_tokens: new tokens per entry; empty = exactly 1 by every entry.
        token_ids: flattened.
        finished: (entry, reason).
        errors: (entry, code, message), with reason ERROR or DEADLINE.
        started: (entry, num_cached_tokens), at a sequence's first placement.
        logprobs, prompt_logprobs: entry -> opaque.
    """

    keys: Sequence[int] = ()
    num_tokens: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    finished: list[tuple[int, FinishReason]] = field(default_factory=list)
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    started: list[tuple[int, int]] = field(default_factory=list)
    logprobs: dict[int, object] = field(default_factory=dict)
    prompt_logprobs: dict[int, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an arrival was not admitted: a code of the error table and words; `retry_after_s` for overload."""

    code: str
    message: str
    retry_after_s: int = 0
