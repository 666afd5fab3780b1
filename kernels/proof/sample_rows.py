"""Columns of rows that are written down one by one, for cases of samplers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kernels.layout import I32
from kernels.sample_columns import SCALARS, SampleColumns

NEUTRAL = dict.fromkeys(SCALARS, 0.0) | {"top_p": 1.0, "repetition_penalty": 1.0}


@dataclass(frozen=True, slots=True)
class RowState:
    """Parameters of one row by name, those that are not neutral; its history, bias, and ids that end it."""

    values: Mapping[str, float] = field(default_factory=dict)
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    end_ids: Sequence[int] = ()


def columns_of(rows: Sequence[RowState]) -> SampleColumns:
    """The rows' columns; slots run backwards, so that a row and its slot are not the same number."""
    num_prompt = [len(row.prompt) for row in rows]
    num_known = [len(row.prompt) + len(row.output) for row in rows]
    tokens = np.ones((len(rows), max(num_known, default=0) + 1), np.int32)
    slots = np.arange(len(rows))[::-1]
    for slot, row, known in zip(slots, rows, num_known, strict=True):
        tokens[slot, :known] = (*row.prompt, *row.output)
    scalars: dict[str, NDArray[Any]] = {
        name: np.array([row.values.get(name, NEUTRAL[name]) for row in rows], SCALARS[name]) for name in SCALARS
    }
    scalars |= {"slots": slots.astype(np.int32), "num_prompt": np.array(num_prompt, np.int32)}
    columns = SimpleNamespace(
        **scalars | {"num_known": np.array(num_known, np.int32)},
        tokens=tokens,
        end_start=_starts([len(row.end_ids) for row in rows]),
        end_ids=np.array([i for row in rows for i in row.end_ids], np.int32),
        bias_start=_starts([len(row.bias) for row in rows]),
        bias_ids=np.array([i for row in rows for i in row.bias], np.int32),
        bias_values=np.array([value for row in rows for value in row.bias.values()], np.float32),
    )
    return cast(SampleColumns, columns)


def _starts(sizes: Sequence[int]) -> I32:
    return np.cumsum([0, *sizes]).astype(np.int32)
