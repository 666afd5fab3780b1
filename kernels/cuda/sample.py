"""Chooses one token a row. What a choice is: kernels/README.md, "Sampling, in order"; `kernels/cpu/sample.py` is its twin.

All that varies from step to step is in one array of int32 words, `inputs`, made by `Sampler.pack` and sent by one copy: a record
for each row, then histories, biases and end ids of the rows that have any. So a CUDA graph that holds the launch stays valid.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.device import Device
from kernels.cuda.spec import Array, Kernel
from kernels.layout import I32
from kernels.sample_columns import SampleColumns

_COPIED: Final = {
    "seed": "u8", "row": "i4", "output_pos": "i4", "temperature": "f4", "top_k": "i4", "top_p": "f4", "min_p": "f4",
    "repetition_penalty": "f4", "presence_penalty": "f4", "frequency_penalty": "f4",
}  # fmt: skip
_PLACES: Final = ("prompt", "output", "bias", "ends", "stop")
RECORD: Final = np.dtype([*_COPIED.items(), *((name, "i4") for name in _PLACES)])
"""A row as `sample_row.cuh` reads it, 64 bytes."""
RECORD_WORDS: Final = RECORD.itemsize // 4
_MOST_IDS: Final = 1 << 19
"""The kernel keeps a bit of each id in shared memory, and adds masses of so many in 64 bits."""


class Sampler:
    """One configuration of the kernel: for logits [rows, vocab_size] of which the first `num_valid` of each row are ids.

    Args:
        vocab_size: elements from one row of logits to the next. num_valid: ids from it on are padding and never chosen.
        dtype: of the logits, float32 or bfloat16.
        max_rows: most records of a step, padding among them.
        max_words: room for history, bias and end ids of all rows of a step: a word for each token of history and each end id, two
            for each biased id.
    Raises:
        ValueError: num_valid is not in 1..vocab_size, or vocab_size is beyond 524288.
    """

    def __init__(self, *, vocab_size: int, num_valid: int, dtype: str, max_rows: int, max_words: int) -> None:
        if not 0 < num_valid <= vocab_size <= _MOST_IDS:
            raise ValueError(f"sample: {num_valid} of {vocab_size} ids are valid; want 1 to vocab_size, and at most {_MOST_IDS}")
        self.max_rows = max_rows
        self.num_words = max_rows * RECORD_WORDS + max_words
        self._max_words = max_words
        self.kernel = _kernel(vocab_size, num_valid, dtype)

    @property
    def inputs(self) -> tuple[tuple[int, ...], str]:
        """Shape and type of the array that takes what `pack` gives, at its front."""
        return (self.num_words,), "int32"

    @property
    def workspace(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Arrays that a launch scribbles on: name -> shape and type. Launches that may run at once need their own."""
        shape = (self.num_words,)
        return {"edit_ids": (shape, "int32"), "edit_counts": (shape, "int32"), "edit_values": (shape, "float32")}

    def fits(self, columns: SampleColumns) -> bool:
        """Whether `pack` has room for the rows' histories, biases and end ids; history counts where penalties read it."""
        history = int(columns.num_known[_penalised(columns)].sum())
        return history + 2 * len(columns.bias_ids) + len(columns.end_ids) <= self._max_words

    def pack(self, columns: SampleColumns, *, rows: I32 | None = None, num_records: int | None = None) -> I32:
        """What a step sends to the front of `inputs`, as words.

        Only rows that penalties, a bias or a ban change cost Python each.

        Args:
            rows: i32 [S], the row of the logits that each one samples from; else 0..S-1. Trusted to be rows of the logits.
            num_records: records in all, the last ones padding, so that a graph of that size may be launched; else S.
        Raises:
            ValueError: more rows than `num_records`, more of these than `max_rows`, or more words than there is room for.
        """
        num_rows = columns.temperature.shape[0]
        num_records = num_rows if num_records is None else num_records
        if not num_rows <= num_records <= self.max_rows:
            raise ValueError(f"sample: {num_rows} rows in {num_records} records; max_rows is {self.max_rows}")
        records = np.zeros(num_records, RECORD)
        records["row"] = -1
        records["row"][:num_rows] = np.arange(num_rows) if rows is None else rows
        for name in _COPIED.keys() - {"row"}:
            records[name][:num_rows] = getattr(columns, name)
        parts = _append_changes(records, columns)
        words: I32 = np.concatenate([records.view(np.int32), *parts])
        if words.shape[0] > self.num_words:
            room = self.num_words - self.max_rows * RECORD_WORDS
            raise ValueError(f"sample: histories, biases and end ids go beyond {self.num_words} words; max_words is {room}")
        return words

    def sample(self, device: Device, logits: Any, *, inputs: Any, workspace: dict[str, Any], token_ids: Any, failed: Any) -> None:
        """Writes the token of each record, i32 [S], and whether its row failed, u8 [S]: a valid logit is not finite, an adjusted
        one is NaN or inf, or nothing may be chosen. The token of such a row, and of padding, is 0.

        Changes no logits. `inputs` and `workspace` as the properties say; `inputs` holds S records.
        """
        scratch = (workspace[name] for name in self.workspace)
        device.launch(self.kernel, (token_ids.shape[0],), (logits, inputs, *scratch, token_ids, failed))


def _kernel(vocab_size: int, num_valid: int, dtype: str) -> Kernel:
    """Few threads where ids are few."""
    threads = min(512, max(64, 1 << (num_valid // 16).bit_length()))
    map_words = -(-num_valid // 32)
    return Kernel(
        source="sample",
        name="sample",
        args=(
            Array("logits", dtype),
            Array("inputs", "int32"),
            Array("edit_ids", "int32", "inout"),
            Array("edit_counts", "int32", "inout"),
            Array("edit_values", "float32", "inout"),
            Array("token_ids", "int32", "out", align=4),
            Array("failed", "uint8", "out", align=1),
        ),
        defines=(
            ("LOGITS_F32", int(dtype == "float32")),
            ("PITCH", vocab_size),
            ("VALID", num_valid),
            ("GROUP", 1 if vocab_size % 8 else 8),
            ("THREADS", threads),
        ),
        block=threads,
        shared_bytes=4 * (map_words + -(-map_words // 8)),
    )


def _penalised(columns: SampleColumns) -> NDArray[np.bool_]:
    """bool [S], rows whose history matters."""
    penalised: NDArray[np.bool_] = (
        (columns.repetition_penalty != 1) | (columns.presence_penalty != 0) | (columns.frequency_penalty != 0)
    )
    return penalised


def _append_changes(records: NDArray[np.void], columns: SampleColumns) -> list[I32]:
    """Words behind the records, of rows whose logits change; sets their places. A row that is in no need of them has none."""
    c = columns
    penalised = _penalised(c)
    banned = c.ban_end & (np.diff(c.end_start) > 0)
    places = records.view(np.int32).reshape(-1, RECORD_WORDS)[:, -len(_PLACES) :]
    at, parts = records.shape[0] * RECORD_WORDS, []
    for row in np.flatnonzero(penalised | banned | (np.diff(c.bias_start) > 0)).tolist():
        known, num_prompt = (int(c.num_known[row]), int(c.num_prompt[row])) if penalised[row] else (0, 0)
        ids, values = _bias(c, row)
        ends = c.end_ids[c.end_start[row] : c.end_start[row + 1]] if banned[row] else c.end_ids[:0]
        parts += [c.tokens[c.slots[row], :known], ids, values.view(np.int32), np.unique(ends)]
        sizes = (0, min(num_prompt, known), known, known + 2 * len(ids), sum(map(len, parts[-4:])))
        places[row] = [at + size for size in sizes]
        at += sizes[-1]
    return parts


def _bias(columns: SampleColumns, row: int) -> tuple[I32, NDArray[np.float32]]:
    """Distinct ids of a row and what is added to each."""
    own = slice(columns.bias_start[row], columns.bias_start[row + 1])
    ids, which = np.unique(columns.bias_ids[own], return_inverse=True)
    values = np.zeros(ids.shape, np.float32)
    np.add.at(values, which, columns.bias_values[own])
    return ids, values
