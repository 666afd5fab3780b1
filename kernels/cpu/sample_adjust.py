"""What changes a row's logits before anything is drawn: penalties, bias, and end ids that are not allowed yet."""

import numpy as np

from kernels.cpu.jit import inlined, jit
from kernels.layout import F32
from kernels.sample_columns import Rows

ONE = np.float32(1)
ZERO = np.float32(0)


@jit
def _penalise(logits: F32, c: Rows, row: int, num_valid: int) -> None:
    """Repetition over prompt and output, then frequency and presence over output; each distinct token once."""
    counts = np.zeros(num_valid, np.int32)
    history = c.tokens[c.state[row].slots, : c.state[row].num_known]
    repetition, presence, frequency = c.state[row].repetition_penalty, c.state[row].presence_penalty, c.state[row].frequency_penalty
    for token in history[c.state[row].num_prompt :]:
        if 0 <= token < num_valid:
            counts[token] += 1
    for i in range(history.shape[0]):
        token = history[i]
        if not 0 <= token < num_valid or counts[token] < 0:
            continue
        if repetition != ONE:
            logits[token] = logits[token] / repetition if logits[token] > ZERO else logits[token] * repetition
        if counts[token] > 0:
            logits[token] -= frequency * np.float32(counts[token])
            logits[token] -= presence
        counts[token] = -1


@inlined
def needs_adjusting(c: Rows, row: int) -> bool:
    """Whether `adjust` could change a logit of the row."""
    penalised = (
        c.state[row].repetition_penalty != ONE or c.state[row].presence_penalty != ZERO or c.state[row].frequency_penalty != ZERO
    )
    return bool(penalised or c.state[row].ban_end or c.state[row].bias_start < c.state[row].bias_stop)


@jit
def adjust(logits: F32, c: Rows, row: int, num_valid: int) -> None:
    """Changes the row's logits in place, in this order: penalties, bias, banned end ids to -inf."""
    if c.state[row].repetition_penalty != ONE or c.state[row].presence_penalty != ZERO or c.state[row].frequency_penalty != ZERO:
        _penalise(logits, c, row, num_valid)
    for i in range(c.state[row].bias_start, c.state[row].bias_stop):
        if 0 <= c.bias_ids[i] < num_valid:
            logits[c.bias_ids[i]] += c.bias_values[i]
    if c.state[row].ban_end:
        for i in range(c.state[row].end_start, c.state[row].end_stop):
            if 0 <= c.end_ids[i] < num_valid:
                logits[c.end_ids[i]] = np.float32(-np.inf)
