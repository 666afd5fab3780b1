"""Log-probabilities of a raw logit row."""

import numpy as np
from numpy.typing import NDArray

from kernels.layout import F32

F64 = NDArray[np.float64]


def log_softmax(logits_V: F32) -> F64:
    """log(softmax(x)) over the row."""
    shifted = logits_V.astype(np.float64) - logits_V.max()
    result: F64 = shifted - np.log(np.exp(shifted).sum())
    return result


def top_tokens(logits_V: F32, *, count: int) -> NDArray[np.int64]:
    """The `count` most likely ids, equal ones by id."""
    return np.argsort(-logits_V, kind="stable")[:count]
