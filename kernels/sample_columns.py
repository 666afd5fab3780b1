"""The sampling state that `sample` reads, as a protocol: the executor's plain data fits it with no import either way."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kernels.layout import F32, I32

GREEDY_BELOW = 1e-5
"""Temperatures under it are greedy: dividing by them would leave float32's range."""

SCALARS = {
    "slots": np.int32,
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "repetition_penalty": np.float32,
    "presence_penalty": np.float32,
    "frequency_penalty": np.float32,
    "seed": np.uint64,
    "output_pos": np.int32,
    "num_prompt": np.int32,
    "num_known": np.int32,
    "ban_end": np.bool_,
    "want_logprobs": np.bool_,
    "num_top": np.int32,
}
RANGES = ("end_start", "end_stop", "bias_start", "bias_stop")
ROW = np.dtype([*SCALARS.items(), *((name, np.int32) for name in RANGES)], align=True)
"""One row's columns as a record."""


class SampleColumns(Protocol):
    """Columns of the S rows that sample; all arrays have length S unless said. Values are trusted to be validated.

    Attributes:
        slots: i32, row of `tokens`. tokens: i32 [slots, L], prompt then output of each sequence.
        num_prompt, num_known: i32; history of a row is tokens[slot, :num_known], its first num_prompt are the prompt.
        temperature, top_k (<= 0: all), top_p (>= 1: all, 0: the likeliest), min_p (<= 0: all): f32, top_k i32.
        repetition_penalty (1: none), presence_penalty, frequency_penalty (0: none): f32.
        seed: u64. output_pos: i32.
        ban_end: bool; while set, `end_ids` of the row cannot be chosen. end_start [S + 1], end_ids: ragged i32.
        bias_start [S + 1], bias_ids, bias_values: ragged; ids outside the vocabulary are passed over.
        want_logprobs: bool. num_top: i32.
    """

    slots: I32
    temperature: F32
    top_k: I32
    top_p: F32
    min_p: F32
    repetition_penalty: F32
    presence_penalty: F32
    frequency_penalty: F32
    seed: NDArray[np.uint64]
    output_pos: I32
    tokens: I32
    num_prompt: I32
    num_known: I32
    ban_end: NDArray[np.bool_]
    end_start: I32
    end_ids: I32
    bias_start: I32
    bias_ids: I32
    bias_values: F32
    want_logprobs: NDArray[np.bool_]
    num_top: I32


class Rows(NamedTuple):
    """The same, packed: compiled code that takes few arrays compiles faster and is entered faster.

    Attributes:
        state: ROW [S].
        tokens, end_ids, bias_ids, bias_values: as above.
    """

    state: NDArray[np.void]
    tokens: I32
    end_ids: I32
    bias_ids: I32
    bias_values: F32

    @classmethod
    def of(cls, columns: SampleColumns) -> "Rows":
        """Copies what has length S, shares the rest."""
        state = np.zeros(columns.temperature.shape[0], ROW)
        for name in SCALARS:
            state[name] = getattr(columns, name)
        state["end_start"], state["end_stop"] = columns.end_start[:-1], columns.end_start[1:]
        state["bias_start"], state["bias_stop"] = columns.bias_start[:-1], columns.bias_start[1:]
        whole = np.ascontiguousarray
        return cls(state, whole(columns.tokens), whole(columns.end_ids), whole(columns.bias_ids), whole(columns.bias_values))
