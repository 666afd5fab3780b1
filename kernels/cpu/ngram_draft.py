"""Guesses that a row goes on as it did after the latest place where its last tokens stood before (prompt lookup)."""

import numpy as np

from kernels.cpu.jit import inlined, jit
from kernels.layout import I32, check_array


@inlined
def _match(tokens: I32, row: int, at: int, known: int, longest: int) -> int:
    """How many tokens up to and with `at` equal the last ones known, at most `longest`."""
    length = 0
    while length < longest and length <= at and tokens[row, at - length] == tokens[row, known - 1 - length]:
        length += 1
    return length


@jit
def _run(tokens: I32, slots: I32, num_known: I32, most: I32, shortest: int, longest: int, token_ids: I32, counts: I32) -> None:
    for d in range(slots.shape[0]):
        row, known, best, best_at = slots[d], num_known[d], 0, 0
        for at in range(known - 2, -1, -1):
            length = _match(tokens, row, at, known, longest)
            if length > best:
                best, best_at = length, at
                if best == longest:
                    break
        if best < shortest:
            continue
        counts[d] = most[d]
        for i in range(most[d]):
            source = best_at + 1 + i
            # past the end the guess goes on with itself: a text that repeats has its period
            token_ids[d, i] = tokens[row, source] if source < known else token_ids[d, source - known]


def ngram_draft(tokens_NL: I32, *, slots: I32, num_known: I32, most: I32, lengths: tuple[int, int]) -> tuple[I32, I32]:
    """(token ids i32 [D, greatest of `most`], how many count i32 [D]) for D rows; 0 where nothing like it stood before.

    `tokens_NL`: i32 [slots, L], of row `slots[d]` the first `num_known[d]` are known. `lengths`: fewest and most tokens that must
    agree; more are better, then later. Changes nothing that it is given.

    Raises:
        ValueError: shapes or types do not fit, or `lengths` are not 1 <= fewest <= most.
    """
    check_array("tokens_NL", tokens_NL, dtype=np.int32, ndim=2)
    shortest, longest = lengths
    if not 1 <= shortest <= longest or not slots.shape == num_known.shape == most.shape:
        raise ValueError(f"lengths are {lengths}; slots, num_known, most have {slots.shape}, {num_known.shape}, {most.shape}")
    token_ids = np.zeros((len(slots), int(most.max(initial=0))), np.int32)
    counts = np.zeros(len(slots), np.int32)
    _run(tokens_NL, slots, num_known, most, shortest, longest, token_ids, counts)
    return token_ids, counts
