"""Plain data inside the executor: a plan as arrays, the batch that a backend runs, and what comes back.

Shapes: R rows of the plan, T fed tokens, S rows that sample, W widest block table, B biased ids. All arrays are NumPy,
C-contiguous, owned by whoever made them and read-only for whoever gets them. Nothing here knows the wire or torch.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
BOOL = NDArray[np.bool_]

PREFILL, PREFILL_LAST, DECODE = 1, 2, 3
"""Row kinds, values of `plan.proto` RowKind."""
CACHE_NOTHING, CACHE_IN, CACHE_RESET = 1, 2, 3
"""Cache operations, values of `plan.proto` CacheOp."""
PAGED, ALIGNED, STRIPPED = 1, 2, 3
"""Layouts, values of `plan.proto` Layout; the last two are the dense ones."""
COHORT, PER_SEQUENCE = 1, 2
"""How rows move, values of `plan.proto` Advance."""
FINISH_STOP, FINISH_LENGTH = 1, 2
"""Values of `common.proto` FinishReason that an executor decides."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one sequence, "not set" already resolved to its meaning; see `common.proto`."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias_ids: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False

    @property
    def logit_bias_ids(self) -> tuple[int, ...]:
        """`bias_ids` under the name that `drumline.validation` checks."""
        return self.bias_ids

    @property
    def logit_bias_values(self) -> tuple[float, ...]:
        """`bias_values` under the name that `drumline.validation` checks."""
        return self.bias_values


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that enters; fields as in `plan.proto`."""

    slot: int
    token_ids: I32
    num_prompt_tokens: int
    num_cached_tokens: int
    sampling: Sampling
    num_prompt_logprobs_done: int = 0


@dataclass(slots=True)
class Plan:
    """One step; fields as in `plan.proto`, columns as arrays of length R (empty when `repeat_rows`)."""

    step_id: int
    session_epoch: int
    grant_id: int
    cohort_id: int
    cache_op: int
    layout: int
    advance: int
    freed_slots: list[int]
    aborted_slots: list[int]
    new_sequences: list[NewSequence]
    repeat_rows: bool
    slots: I32
    row_kinds: I32
    num_tokens: I32
    starts: I32
    block_rows: I32
    block_ids: I32
    copy_src: I32
    copy_dst: I32
    draft_len: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    want_digests: bool = False


@dataclass(slots=True)
class SampleColumns:
    """Sampling state of the S places where a token is chosen, gathered by slot. All arrays have length S unless said.

    A row that samples has one; one with drafts has 1 + drafts of them behind each other, each as if the drafts before it were
    known.

    Attributes:
        rows: i32, index of the row in the batch.
        temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: f32.
        top_k: i32, 0 = all.
        seed: u64. output_pos: i32, index of the token in the sequence's output (noise is keyed by seed, output_pos, token id).
        tokens: i32 [num_slots, max_model_len], the executor's whole token matrix; row `slots[s]` holds prompt then output.
        slots: i32. num_prompt, num_known: i32, prompt length and known tokens (penalties look at tokens[slot, :num_known]).
        ban_end: bool, min_tokens not reached: `end_ids` of the row must not be chosen.
        end_start, end_ids: ragged i32, those of row s are end_ids[end_start[s]:end_start[s+1]] (eos unless ignored, plus stop ids).
        bias_start, bias_ids, bias_values: ragged logit bias; empty arrays of ids when no row has one.
        want_logprobs: bool. num_top: i32, alternatives wanted.
    """

    rows: I32
    slots: I32
    temperature: F32
    top_k: I32
    top_p: F32
    min_p: F32
    repetition_penalty: F32
    presence_penalty: F32
    frequency_penalty: F32
    seed: U64
    output_pos: I32
    tokens: I32
    num_prompt: I32
    num_known: I32
    ban_end: BOOL
    end_start: I32
    end_ids: I32
    bias_start: I32
    bias_ids: I32
    bias_values: F32
    want_logprobs: BOOL
    num_top: I32


@dataclass(slots=True)
class Batch:
    """What a backend runs in one forward: R' live rows (skipped and failed ones are already out), flattened to T tokens.

    Attributes:
        token_ids, positions: i32 [T].
        query_start: i32 [R'+1], row r feeds tokens query_start[r]:query_start[r+1].
        context_len: i32 [R'], tokens with keys and values after this step.
        block_tables: i32 [R', W], -1 behind the row's last block.
        sample: columns of the rows that sample a token after this step.
        prompt_logprob_rows: i32 [P], rows whose prompt log-probabilities are wanted, `prompt_num_top` beside it.
        prompt_target_start, prompt_targets: ragged i32 [P+1], the prompt tokens that entry p's fed tokens predict: fed token j of
            the row predicts prompt_targets[prompt_target_start[p] + j]. As many as the chunk has, clipped to the prompt.
        copy_src, copy_dst: i32, blocks to copy before the rows.
        want_digests: a 64-bit digest per row.
        layout, cache_op: as in the plan.
        slots: i32 [R'], the slot of each row; dense caches are kept under it.
        left_slots: i32, slots whose sequence ended or left since the batch before: nobody needs their caches.
        drafts_behind: i32 [S], drafts of the row that are fed behind the place; empty = none anywhere.
    """

    token_ids: I32
    positions: I32
    query_start: I32
    context_len: I32
    block_tables: I32
    sample: SampleColumns
    prompt_logprob_rows: I32
    prompt_num_top: I32
    copy_src: I32
    copy_dst: I32
    want_digests: bool
    prompt_target_start: I32 = field(default_factory=lambda: np.zeros(1, np.int32))
    prompt_targets: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    layout: int = PAGED
    cache_op: int = CACHE_NOTHING
    slots: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    left_slots: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    drafts_behind: I32 = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def sampled_at(self) -> I32:
        """i32 [S], index of the fed token behind which each token is chosen."""
        ends: I32 = self.query_start[1:][self.sample.rows] - 1
        return ends - self.drafts_behind if len(self.drafts_behind) else ends

    @property
    def is_empty(self) -> bool:
        """Nothing to run, to copy, to drop or to forget."""
        idle = not (len(self.token_ids) or len(self.copy_src))
        return idle and (self.layout == PAGED or not (len(self.left_slots) or self.cache_op == CACHE_RESET))


@dataclass(slots=True)
class CopyCounts:
    """Copies between own and batched caches in one step; fields as in `plan.proto` CopyCounters."""

    cache_in: int = 0
    strip: int = 0
    needless_in: int = 0


@dataclass(slots=True)
class Logprobs:
    """Log-probabilities of k tokens of one row: f32 [k], alternatives i32/f32 [k, num_top], most likely first, finite."""

    token_ids: I32
    logprobs: F32
    top_token_ids: I32
    top_logprobs: F32


@dataclass(slots=True)
class Sampled:
    """What a backend made of a batch.

    Attributes:
        token_ids: i32 [S], chosen tokens, in `sample.rows` order.
        row_errors: batch row -> (code, message); such a row ends alone, its tokens are ignored.
        failed: bool [S], nothing could be chosen here; a row whose first place failed is in `row_errors`. Empty = none.
        logprobs: sampling index s -> Logprobs of its one token.
        prompt_logprobs: batch row -> Logprobs of prompt tokens (start+1 .. start+n, clipped to the prompt).
        digest: u64 [R'], or empty. place_digest: u64 [S] of a batch with drafts, or empty.
        forward_ns, sample_ns: where the time went.
        lead_pad: i32 [R'], dead columns in front of each row, or empty unless the batch's `cache_op` was IN.
        copies: what joining and splitting caches took.
    """

    token_ids: I32
    row_errors: dict[int, tuple[str, str]] = field(default_factory=dict)
    failed: BOOL = field(default_factory=lambda: np.zeros(0, np.bool_))
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    digest: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    place_digest: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    forward_ns: int = 0
    sample_ns: int = 0
    lead_pad: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    copies: CopyCounts = field(default_factory=CopyCounts)


@dataclass(slots=True)
class StepResult:
    """What one plan did, in the plan's row numbering; fields as in `plan.proto`."""

    step_id: int
    session_epoch: int
    num_emitted: I32
    token_ids: I32
    lengths: I32
    num_accepted: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    num_drafted: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    finished: list[tuple[int, int]] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    row_errors: list[tuple[int, str, str]] = field(default_factory=list)
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    digest: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    num_copied_on_write: int = 0
    num_blocks_in_use: int = 0
    queue_ns: int = 0
    assemble_ns: int = 0
    draft_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    idle_ns: int = 0
    lead_pad: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    copies: CopyCounts = field(default_factory=CopyCounts)
    advance: int = COHORT
