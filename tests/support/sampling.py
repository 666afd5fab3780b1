"""Sampling columns with neutral values, to be changed one by one."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.cpu.sample import sample
from kernels.layout import F32, I32
from kernels.logprobs_result import TokenLogprobs

DEFAULTS: dict[str, tuple[float, type]] = {
    "slots": (0, np.int32), "temperature": (0, np.float32),
    "top_k": (0, np.int32), "top_p": (1, np.float32), "min_p": (0, np.float32),
    "repetition_penalty": (1, np.float32), "presence_penalty": (0, np.float32), "frequency_penalty": (0, np.float32),
    "seed": (0, np.uint64), "output_pos": (0, np.int32), "num_prompt": (0, np.int32), "num_known": (0, np.int32),
    "ban_end": (False, np.bool_), "want_logprobs": (False, np.bool_), "num_top": (0, np.int32),
}  # fmt: skip


@dataclass
class RowState:
    """Parameters of one row; `values` override DEFAULTS."""

    values: dict[str, Any] = field(default_factory=dict)
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    bias: dict[int, float] = field(default_factory=dict)
    end_ids: tuple[int, ...] = ()


class Columns:
    """The executor's columns, built from rows."""

    def __init__(self, rows: list[RowState]) -> None:
        for name, (default, dtype) in DEFAULTS.items():
            setattr(self, name, np.array([row.values.get(name, default) for row in rows], dtype))
        self.slots = np.arange(len(rows), dtype=np.int32)[::-1].copy()
        self.num_prompt = np.array([len(row.prompt) for row in rows], np.int32)
        self.num_known = np.array([len(row.prompt) + len(row.output) for row in rows], np.int32)
        self.tokens = np.full((len(rows), 64), 1, np.int32)
        for slot, row in zip(self.slots, rows, strict=True):
            self.tokens[slot, : len(row.prompt) + len(row.output)] = row.prompt + row.output
        self.end_start = np.cumsum([0] + [len(row.end_ids) for row in rows]).astype(np.int32)
        self.end_ids = np.array([i for row in rows for i in row.end_ids], np.int32)
        self.bias_start = np.cumsum([0] + [len(row.bias) for row in rows]).astype(np.int32)
        self.bias_ids = np.array([i for row in rows for i in row.bias], np.int32)
        self.bias_values = np.array([v for row in rows for v in row.bias.values()], np.float32)


def choose(logits: F32, rows: list[RowState], *, num_valid: int | None = None) -> tuple[I32, TokenLogprobs]:
    """`sample` over these rows."""
    return sample(logits, columns=Columns(rows), num_valid=logits.shape[1] if num_valid is None else num_valid)
