"""From hidden states to what a plan wants of them: tokens, log-probabilities, digests, and which rows went wrong."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from executor_svc.model.linear import HEAD_MAX_ROWS
from executor_svc.plan import BOOL, F32, I32, U64, Batch, Logprobs, SampleColumns
from kernels.cpu.logprobs import token_logprobs
from kernels.logprobs_result import TokenLogprobs

Head = Callable[[Any], F32]
"""Rows of hidden states, wherever they lie -> their logits, f32 [n, num_ids], on the host."""


def score_prompts(head: Head, hidden: Any, *, batch: Batch) -> dict[int, Logprobs]:
    """Batch row -> scores of the prompt tokens that its fed tokens predict. `hidden` is what the decoder gave for the batch."""
    scores = {}
    for place, row in enumerate(batch.prompt_logprob_rows.tolist()):
        targets = batch.prompt_targets[batch.prompt_target_start[place] : batch.prompt_target_start[place + 1]]
        first = int(batch.query_start[row])
        rows = hidden[first : first + len(targets)]
        scores[row] = _score(head, rows, targets=targets, num_top=int(batch.prompt_num_top[place]))
    return scores


def _score(head: Head, hidden: Any, *, targets: I32, num_top: int) -> Logprobs:
    """Piece by piece, for a long chunk's logits would not fit in memory. What is not finite is the row's error, found elsewhere."""
    parts = []
    for first in range(0, len(targets), HEAD_MAX_ROWS):
        logits = head(hidden[first : first + HEAD_MAX_ROWS])
        wanted = targets[first : first + HEAD_MAX_ROWS]
        tops = np.full(len(wanted), num_top, np.int32)
        parts.append(token_logprobs(logits, token_ids_S=wanted, num_top_S=tops, num_valid=logits.shape[1]))
    columns = zip(*((part.logprobs, part.top_token_ids, part.top_logprobs) for part in parts), strict=True)
    return Logprobs(targets, *(np.concatenate(column) for column in columns))


def sampled_logprobs(sample: SampleColumns, token_ids: I32, *, scores: TokenLogprobs) -> dict[int, Logprobs]:
    """Sampling index -> log-probabilities of its token, for the rows that want them."""
    found = {}
    for s in np.flatnonzero(sample.want_logprobs & ~scores.failed).tolist():
        own, count = slice(s, s + 1), int(sample.num_top[s])
        found[s] = Logprobs(
            token_ids[own], scores.logprobs[own], scores.top_token_ids[own, :count], scores.top_logprobs[own, :count]
        )
    return found


def is_finite(hidden: F32) -> BOOL:
    """Which rows of hidden states [n, hidden] are numbers throughout, bool [n]."""
    return np.asarray(np.isfinite(hidden).all(axis=1))


def row_errors(batch: Batch, *, finite: BOOL, failed: BOOL) -> dict[int, tuple[str, str]]:
    """Batch row -> error: rows that only feed and whose last hidden state is not `finite` [R'], and rows that `failed` [S] at the
    first of their places. What failed behind wrong drafts is nobody's error."""
    rows = batch.sample.rows
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    feeds_only = np.ones(len(finite), np.bool_)
    feeds_only[rows] = False
    bad = np.union1d(np.flatnonzero(feeds_only & ~finite), rows[first][failed[first]])
    return {int(row): ("internal", "the model's output for this row is not finite, or nothing may be chosen") for row in bad}


def digests(ends: F32) -> U64:
    """BLAKE2b-64 of each row's last hidden state [R', hidden]."""
    each = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in ends)
    return np.frombuffer(b"".join(each), np.uint64).copy()
