"""What the log-probability kernels return."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.layout import F32, I32

FLOOR = -1e4
"""No log-probability is below it, so that all of them are finite on any wire."""


class TokenLogprobs(NamedTuple):
    """Log-probabilities of one token of each of S rows.

    Attributes:
        failed: bool [S]; the other columns of such a row mean nothing.
        logprobs: f32 [S].
        top_token_ids: i32 [S, k], k = the most that any row wants; likeliest first, equal ones by id; -1 behind what it wants.
        top_logprobs: f32 [S, k] beside it; FLOOR behind what the row wants.
    """

    failed: NDArray[np.bool_]
    logprobs: F32
    top_token_ids: I32
    top_logprobs: F32

    @classmethod
    def empty(cls, num_rows: int, *, num_top: int) -> "TokenLogprobs":
        """Nothing known yet."""
        shape = (num_rows, max(0, num_top))
        floors = [np.full(size, FLOOR, np.float32) for size in ((num_rows,), shape)]
        return cls(np.zeros(num_rows, np.bool_), floors[0], np.full(shape, -1, np.int32), floors[1])
