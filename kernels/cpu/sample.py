"""Chooses one token a row: penalties, bias, banned ends, temperature, filters, Gumbel-max; log-probabilities are of the raw logits.

A choice is a function of the row's logits, parameters, history and (seed, output position): no generator state, no batch mates. The
draw is the race argmin E_i / w_i with E_i = -log(1 - u_i) exponential and w_i = exp((logit_i - greatest) / temperature); since
E_i >= u_i, a logarithm is taken only where w_i / u_i could still win. Scores are float64, ties go to the lower id.
"""

import math
from typing import Any

import numpy as np

from kernels.cpu import lanes
from kernels.cpu.crew import helpers, together
from kernels.cpu.exponential import exp
from kernels.cpu.jit import inlined, jit
from kernels.cpu.logprobs import scan, score
from kernels.cpu.noise import row_key, uniform
from kernels.cpu.sample_adjust import adjust, needs_adjusting
from kernels.cpu.sample_filter import cut
from kernels.cpu.team import new_team, take
from kernels.layout import F32, I32, I64, check_array
from kernels.logprobs_result import TokenLogprobs
from kernels.sample_columns import GREEDY_BELOW, Rows, SampleColumns

SLACK = np.float32(1 - 1e-5)
"""Covers the rounding of weights, so that the cheap test never rejects a token that the exact score would choose."""
GREEDY = np.float32(GREEDY_BELOW)
MINUS_INFINITY = np.float32(-np.inf)
NOISE_RANGE = 22.9
"""Above ln(2^33): the smallest noise is 2^-33, so a token this far behind the best score cannot win."""


@inlined
def _race_score(z: np.float32, u: np.float32) -> float:
    return np.float64(z) - math.log(-math.log1p(-np.float64(u)))


@inlined
def _draw(logits: F32, top: np.float32, top_id: int, inverse: np.float32, key: int, last_logit: np.float32, last_id: int) -> int:
    """The winner of the race among tokens up to (last_logit, last_id) in the order of the cut."""
    size = logits.shape[0]
    z, u = np.empty(16, np.float32), np.empty(16, np.float32)
    lanes.store(u, 0, uniform(key, top_id))
    best_id, best = top_id, _race_score(np.float32(0), u[0])
    bar, floor = np.float32(math.exp(best)) * SLACK, np.float32(best - NOISE_RANGE)
    for at in range(0, size, 16):
        lane = lanes.load_up_to(logits, at, size - at, MINUS_INFINITY)
        scaled = lanes.mul(lanes.sub(lane, lanes.broadcast(top)), lanes.broadcast(inverse))
        if not lanes.any_at_least(scaled, lanes.broadcast(floor)):
            continue
        noise = uniform(key, at)
        if not lanes.any_at_least(exp(scaled), lanes.mul(noise, lanes.broadcast(bar))):
            continue
        lanes.store(z, 0, scaled)
        lanes.store(u, 0, noise)
        for i in range(min(16, size - at)):
            logit = logits[at + i]
            if logit < last_logit or (logit == last_logit and at + i > last_id) or z[i] < floor:
                continue
            challenger = _race_score(z[i], u[i])
            if challenger > best or (challenger == best and at + i < best_id):
                best, best_id = challenger, at + i
                bar, floor = np.float32(math.exp(best)) * SLACK, np.float32(best - NOISE_RANGE)
    return best_id


@inlined
def _choose(logits: F32, c: Rows, row: int, top: np.float32, top_id: int) -> int:
    """Token of a row whose adjusted logits are given, with their maximum."""
    temperature = c.state[row].temperature
    if temperature < GREEDY:
        return top_id
    inverse = np.float32(1) / temperature
    last_logit, last_id = MINUS_INFINITY, logits.shape[0]
    if 0 < c.state[row].top_k < logits.shape[0] or c.state[row].top_p < np.float32(1) or c.state[row].min_p > np.float32(0):
        last_logit, last_id = cut(logits, top, inverse, c.state[row].top_k, c.state[row].top_p, c.state[row].min_p)
    return _draw(logits, top, top_id, inverse, row_key(c.state[row].seed, np.int64(c.state[row].output_pos)), last_logit, last_id)


@inlined
def _row(logits: F32, c: Rows, row: int, num_valid: int, token_ids: I32, out: TokenLogprobs) -> None:
    raw_top, top_id, finite = scan(logits, row * logits.shape[1], num_valid)
    out.failed[row] = not finite
    if not finite:
        return
    top, adjusted = raw_top, logits[row, :num_valid]
    if needs_adjusting(c, row):
        adjusted = np.empty(num_valid, np.float32)
        for i in range(num_valid):
            adjusted[i] = logits[row, i]
        adjust(adjusted, c, row, num_valid)
        top, top_id, _ = scan(adjusted, 0, num_valid)
    # Everything banned, or a bias that is no number: nothing to choose from.
    if not np.isfinite(top):
        out.failed[row] = True
        return
    token_ids[row] = _choose(adjusted, c, row, top, top_id)
    if c.state[row].want_logprobs:
        score(logits, row, num_valid, token_ids[row], raw_top, c.state[row].num_top, out)


@jit
def _run(team: I64, logits: F32, c: Rows, num_valid: int, token_ids: I32, out: TokenLogprobs) -> None:
    """One thread: takes rows until none is left; their costs differ too much to deal them out beforehand."""
    while True:
        row = take(team, 0)
        if row >= logits.shape[0]:
            return
        _row(logits, c, row, num_valid, token_ids, out)


@jit
def _run_all(board: I64, most: int, *args: Any) -> None:
    together(board, most, _run, args)


def sample(logits_SV: F32, *, columns: SampleColumns, num_valid: int) -> tuple[I32, TokenLogprobs]:
    """(chosen token of each row, i32 [S]; its log-probabilities where wanted). Changes nothing that it is given.

    A row is `failed` in the second part when a raw logit is not finite or nothing may be chosen; its token is then 0, no choice.
    Ids from `num_valid` on (padding of the vocabulary) take no part: they are never chosen and have no probability.

    Raises:
        ValueError: shapes, types or memory order do not fit.
    """
    check_array("logits_SV", logits_SV, dtype=np.float32, ndim=2)
    num_rows, vocab_size = logits_SV.shape
    if not 0 < num_valid <= vocab_size or columns.temperature.shape != (num_rows,):
        raise ValueError(f"{num_rows} rows, columns of {columns.temperature.shape}, {num_valid} of {vocab_size} ids are valid")
    token_ids = np.zeros(num_rows, np.int32)
    wanted = columns.num_top[columns.want_logprobs]
    out = TokenLogprobs.empty(num_rows, num_top=int(wanted.max(initial=0)))
    if num_rows:
        _run_all(*helpers(worth_it=True), new_team(1), logits_SV, Rows.of(columns), num_valid, token_ids, out)
    return token_ids, out
