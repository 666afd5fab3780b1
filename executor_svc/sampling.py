"""Sampling parameters of all slots as columns, so that a step gathers them by slot instead of walking rows."""

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from executor_svc.plan import BOOL, F32, I32, U64, SampleColumns, Sampling

_FLOATS: Final = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")

_NOT_BY_ROW: Final = ("tokens", "end_start", "end_ids", "bias_start", "bias_ids", "bias_values")


@dataclass(slots=True)
class Ends:
    """End ids of gathered rows, flat: token `ids[i]` ends row `row[i]`; both i32 [sum of ends]."""

    row: I32
    ids: I32


class SamplingTable:
    """Columns of all N slots; a slot's entries mean nothing until `put`. Owned by the worker thread.

    Attributes:
        max_tokens, min_tokens: i32 [N].
        is_plain: bool [N], always the likeliest token of the raw logits, but for `min_tokens`.
        prompt_logprobs: bool [N]. num_top: i32 [N]. prompt_done: i32 [N], prompt log-probabilities already delivered.
    """

    def __init__(self, num_slots: int, *, eos_token_ids: tuple[int, ...]) -> None:
        self._eos = eos_token_ids
        self._floats: F32 = np.zeros((len(_FLOATS), num_slots), np.float32)
        self._top_k: I32 = np.zeros(num_slots, np.int32)
        self._seed: U64 = np.zeros(num_slots, np.uint64)
        self._logprobs: BOOL = np.zeros(num_slots, np.bool_)
        self._ends: list[tuple[int, ...]] = [()] * num_slots
        self._bias: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((), ())] * num_slots
        self.max_tokens: I32 = np.zeros(num_slots, np.int32)
        self.min_tokens: I32 = np.zeros(num_slots, np.int32)
        self.is_plain: BOOL = np.zeros(num_slots, np.bool_)
        self.num_top: I32 = np.zeros(num_slots, np.int32)
        self.prompt_logprobs: BOOL = np.zeros(num_slots, np.bool_)
        self.prompt_done: I32 = np.zeros(num_slots, np.int32)

    def put(self, slot: int, sampling: Sampling, *, prompt_logprobs_done: int) -> None:
        """Sets a slot's columns; `sampling` was validated."""
        self._floats[:, slot] = [getattr(sampling, name) for name in _FLOATS]
        self._top_k[slot] = sampling.top_k
        self._seed[slot] = sampling.seed
        self._logprobs[slot] = sampling.logprobs
        own = () if sampling.ignore_eos else self._eos
        self._ends[slot] = tuple(dict.fromkeys((*own, *sampling.stop_token_ids)))
        penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        self.is_plain[slot] = sampling.temperature == 0 and penalties == (1, 0, 0) and not sampling.bias_ids
        self._bias[slot] = (sampling.bias_ids, sampling.bias_values)
        self.max_tokens[slot] = min(sampling.max_tokens, 2**31 - 1)
        self.min_tokens[slot] = min(sampling.min_tokens, 2**31 - 1)
        self.num_top[slot] = sampling.top_logprobs
        self.prompt_logprobs[slot] = sampling.prompt_logprobs
        self.prompt_done[slot] = min(prompt_logprobs_done, 2**31 - 1)

    def gather(self, slots: I32, *, tokens: I32, num_prompt: I32) -> tuple[SampleColumns, Ends]:
        """Columns of S slots. What moves with every step (`rows`, `num_known`, `output_pos`, `ban_end`) is left at zero."""
        picked = slots.tolist()
        ends = [self._ends[slot] for slot in picked]
        bias = [self._bias[slot] for slot in picked]
        end_start, end_ids = _ragged(ends, np.int32)
        bias_start, bias_ids = _ragged([ids for ids, _ in bias], np.int32)
        floats = dict(zip(_FLOATS, self._floats[:, slots], strict=True))
        zeros: I32 = np.zeros(len(slots), np.int32)
        columns = SampleColumns(
            rows=zeros,
            slots=slots,
            top_k=self._top_k[slots],
            seed=self._seed[slots],
            output_pos=zeros,
            tokens=tokens,
            num_prompt=num_prompt[slots],
            num_known=zeros,
            ban_end=np.zeros(len(slots), np.bool_),
            end_start=end_start,
            end_ids=end_ids,
            bias_start=bias_start,
            bias_ids=bias_ids,
            bias_values=_ragged([values for _, values in bias], np.float32)[1],
            want_logprobs=self._logprobs[slots],
            num_top=self.num_top[slots],
            **floats,
        )
        return columns, Ends(row=np.repeat(np.arange(len(slots), dtype=np.int32), np.diff(end_start)), ids=end_ids)


def at_each_place(columns: SampleColumns, ends: Ends, *, times: I32) -> tuple[SampleColumns, Ends]:
    """Columns of rows, each said `times[s]` times behind each other: once for each place where the row's tokens are chosen."""
    own = {field.name: np.repeat(getattr(columns, field.name), times) for field in fields(columns) if field.name not in _NOT_BY_ROW}
    end_start, place = _repeat_ragged(columns.end_start, times=times)
    bias_start, bias_place = _repeat_ragged(columns.bias_start, times=times)
    repeated = SampleColumns(
        tokens=columns.tokens,
        end_start=end_start,
        end_ids=columns.end_ids[place],
        bias_start=bias_start,
        bias_ids=columns.bias_ids[bias_place],
        bias_values=columns.bias_values[bias_place],
        **own,
    )
    rows = np.repeat(np.arange(len(end_start) - 1, dtype=np.int32), np.diff(end_start))
    return repeated, Ends(row=rows, ids=ends.ids[place])


def _repeat_ragged(starts: I32, *, times: I32) -> tuple[I32, I32]:
    """New starts, and for each new flat entry where it was."""
    sizes = np.repeat(np.diff(starts), times)
    new: I32 = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=new[1:])
    place = np.arange(new[-1], dtype=np.int32) + np.repeat(np.repeat(starts[:-1], times) - new[:-1], sizes)
    return new, place


def _ragged(
    values: "list[tuple[int, ...]] | list[tuple[float, ...]]", dtype: "type[np.int32] | type[np.float32]"
) -> tuple[I32, "np.ndarray"]:
    """Starts [S+1] and the flat values."""
    starts: I32 = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=starts[1:])
    return starts, np.array([item for value in values for item in value], dtype)
