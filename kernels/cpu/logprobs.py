"""Log-probabilities of a raw logit row: of one token, and of the most likely ones. Also the kernel that scores prompt tokens."""

import math
from typing import Any

import numpy as np

from kernels.cpu import lanes
from kernels.cpu.crew import helpers, together
from kernels.cpu.exponential import exp
from kernels.cpu.jit import jit
from kernels.cpu.team import new_team, take_rows
from kernels.layout import F32, I32, I64, check_array
from kernels.logprobs_result import FLOOR, TokenLogprobs

MINUS_INFINITY = np.float32(-np.inf)
ZERO = np.float32(0)
CHUNK = 256
"""Numbers that are summed in float32 before float64 takes over."""


@jit
def scan(logits: F32, start: int, size: int) -> Any:
    """(greatest number, its first index, whether all are finite) of logits.flat[start : start + size]."""
    best, where = MINUS_INFINITY, -1
    residue = lanes.broadcast(ZERO)
    for at in range(0, size, 16):
        residue = lanes.fused(lanes.load_up_to(logits, start + at, size - at, ZERO), lanes.broadcast(ZERO), residue)
        top = lanes.max_lanes(lanes.load_up_to(logits, start + at, size - at, MINUS_INFINITY))
        if top > best:
            best, where = top, at
    finite = lanes.sum_lanes(residue) == ZERO
    flat = logits.reshape(-1)
    while where >= 0 and flat[start + where] != best:
        where += 1
    return best, where, finite


@jit
def log_sum(logits: F32, start: int, size: int, top: np.float32) -> Any:
    """log(sum(exp(x))) of logits.flat[start : start + size], whose greatest number is `top`; float64."""
    total = 0.0
    for chunk in range(0, size, CHUNK):
        part = lanes.broadcast(ZERO)
        for at in range(chunk, min(chunk + CHUNK, size), 16):
            x = lanes.load_up_to(logits, start + at, size - at, MINUS_INFINITY)
            part = lanes.add(part, exp(lanes.sub(x, lanes.broadcast(top))))
        total += np.float64(lanes.sum_lanes(part))
    return np.float64(top) + math.log(total)


@jit
def top_tokens(logits: F32, start: int, size: int, count: int, ids: I32, values: F32) -> None:
    """ids[:count], values[:count] = the greatest numbers of logits.flat[start : start + size], equal ones by index."""
    flat = logits.reshape(-1)
    filled = 0
    for i in range(size):
        x = flat[start + i]
        if filled == count and x <= values[count - 1]:
            continue
        place = min(filled, count - 1)
        while place > 0 and values[place - 1] < x:
            values[place], ids[place] = values[place - 1], ids[place - 1]
            place -= 1
        values[place], ids[place] = x, i
        filled = min(filled + 1, count)


@jit
def score(logits: F32, row: int, num_valid: int, token: int, top: np.float32, num_top: int, out: TokenLogprobs) -> None:
    """Fills row `row` of `out` for `token` from the finite logits of the same row."""
    start = row * logits.shape[1]
    norm = log_sum(logits, start, num_valid, top)
    out.logprobs[row] = max(logits[row, token] - norm, FLOOR)
    count = min(num_top, num_valid, out.top_token_ids.shape[1])
    if count > 0:
        top_tokens(logits, start, num_valid, count, out.top_token_ids[row], out.top_logprobs[row])
    for i in range(count):
        out.top_logprobs[row, i] = max(out.top_logprobs[row, i] - norm, FLOOR)


@jit
def _row(logits: F32, row: int, num_valid: int, tokens: I32, num_top: I32, out: TokenLogprobs) -> None:
    top, _, finite = scan(logits, row * logits.shape[1], num_valid)
    out.failed[row] = not finite or tokens[row] < 0 or tokens[row] >= num_valid
    if not out.failed[row]:
        score(logits, row, num_valid, tokens[row], top, num_top[row], out)


@jit
def _rows(team: I64, logits: F32, num_valid: int, tokens: I32, num_top: I32, out: TokenLogprobs) -> None:
    row, last = take_rows(team, logits.shape[0], 1)
    while row < last:
        _row(logits, row, num_valid, tokens, num_top, out)
        row, last = take_rows(team, logits.shape[0], 1)


@jit
def _all_rows(board: I64, most: int, *args: Any) -> None:
    together(board, most, _rows, args)


def token_logprobs(logits_SV: F32, *, token_ids_S: I32, num_top_S: I32, num_valid: int) -> TokenLogprobs:
    """Log-softmax over the first `num_valid` logits of each row at its token, with its most likely alternatives.

    A row with a logit that is not finite, or a token outside the vocabulary, is `failed`; the others do not notice.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_array("logits_SV", logits_SV, dtype=np.float32, ndim=2)
    check_array("token_ids_S", token_ids_S, dtype=np.int32, ndim=1)
    check_array("num_top_S", num_top_S, dtype=np.int32, ndim=1)
    num_rows, vocab_size = logits_SV.shape
    if not 0 < num_valid <= vocab_size or token_ids_S.shape[0] != num_rows or num_top_S.shape[0] != num_rows:
        raise ValueError(
            f"{num_rows} rows, {token_ids_S.shape[0]} tokens, {num_top_S.shape[0]} counts, {num_valid} of {vocab_size} ids"
        )
    out = TokenLogprobs.empty(num_rows, num_top=int(num_top_S.max(initial=0)))
    if num_rows:
        _all_rows(*helpers(worth_it=True), new_team(1), logits_SV, num_valid, token_ids_S, num_top_S, out)
    return out
