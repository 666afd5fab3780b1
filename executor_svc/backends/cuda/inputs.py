"""What a step reads, on the device: one host buffer, filled by NumPy, goes over in one copy; addresses never change.

Legend: R rows, T fed tokens, S rows that sample, W blocks of the longest table. A step may be padded to more rows and tokens: a
token behind the last row belongs to nobody (slot -1), a row behind the last one feeds nothing.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from executor_svc.backends.cuda.place import Place
from executor_svc.model.cache import KvCache
from executor_svc.plan import Batch

I32 = NDArray[np.int32]
_ALIGN: Final = 4
"""Fields begin at multiples of so many int32, 16 bytes: what vector loads want."""


@dataclass(frozen=True, slots=True)
class Fed:
    """One step's inputs, all int32 on the device but `longest`, the most tokens of a row.

    Attributes:
        token_ids, positions, slot_mapping: [T]; slot_mapping is block * BLOCK_SIZE + place.
        query_start: [R + 1]. context_len: [R]. block_tables: [R, W of the longest sequence possible].
        ends: [R], each row's last token. sampled: [S], that of each row that samples.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    ends: torch.Tensor
    sampled: torch.Tensor
    block_tables: torch.Tensor
    longest: int


class StepInputs:
    """Owns the buffers. A fill must not begin before the step that reads the one before is over."""

    def __init__(self, place: Place, *, max_rows: int, max_places: int, max_tokens: int, max_blocks: int) -> None:
        """`max_places`: where tokens are chosen, at least `max_rows`."""
        sizes = {
            "token_ids": max_tokens,
            "positions": max_tokens,
            "slot_mapping": max_tokens,
            "query_start": max_rows + 1,
            "context_len": max_rows,
            "ends": max_rows,
            "sampled": max_places,
            "tables": max_rows * max_blocks,
        }
        self._starts: dict[str, int] = {}
        total = 0
        for name, size in sizes.items():
            self._starts[name] = total
            total += -(-size // _ALIGN) * _ALIGN
        self._staged = place.host(total, torch.int32)
        self._host: I32 = self._staged.numpy()
        self._device = torch.zeros(total, dtype=torch.int32, device=place.device)
        self._tables = torch.full((max_rows, max_blocks), -1, dtype=torch.int32, device=place.device)
        self._views: dict[tuple[int, int, int, int], Fed] = {}

    def fill(self, batch: Batch, *, num_rows: int, num_tokens: int) -> Fed:
        """The batch on the device, padded to `num_rows` and `num_tokens`; valid until the next fill."""
        fed, live_rows = len(batch.token_ids), len(batch.context_len)
        ends = batch.query_start[1:] - 1
        self._put("token_ids", batch.token_ids, num_tokens, padding=0)
        self._put("positions", batch.positions, num_tokens, padding=0)
        self._put("slot_mapping", KvCache.slots_of(batch), num_tokens, padding=-1)
        self._put("query_start", batch.query_start, num_rows + 1, padding=fed)
        self._put("context_len", batch.context_len, num_rows, padding=0)
        self._put("ends", ends, num_rows, padding=0)
        sampled = num_rows if num_rows > live_rows else len(batch.sample.rows)
        self._put("sampled", batch.sampled_at, sampled, padding=0)
        width = batch.block_tables.shape[1]
        stop = self._put("tables", batch.block_tables.reshape(-1), live_rows * width, padding=-1)
        self._device[:stop].copy_(self._staged[:stop], non_blocking=True)
        staged = self._device[self._starts["tables"] : stop].view(live_rows, width)
        self._tables[:live_rows, :width].copy_(staged)
        return self._fed(num_rows, num_tokens, sampled, longest=int(np.diff(batch.query_start).max(initial=0)))

    def _put(self, name: str, values: I32, count: int, *, padding: int) -> int:
        """Writes the field; gives where it stops."""
        start = self._starts[name]
        field = self._host[start : start + count]
        field[: len(values)] = values
        field[len(values) :] = padding
        return start + count

    def _fed(self, num_rows: int, num_tokens: int, num_sampled: int, *, longest: int) -> Fed:
        key = (num_rows, num_tokens, num_sampled, longest)
        if key not in self._views:

            def view(name: str, count: int) -> torch.Tensor:
                return self._device[self._starts[name] : self._starts[name] + count]

            self._views[key] = Fed(
                token_ids=view("token_ids", num_tokens),
                positions=view("positions", num_tokens),
                slot_mapping=view("slot_mapping", num_tokens),
                query_start=view("query_start", num_rows + 1),
                context_len=view("context_len", num_rows),
                ends=view("ends", num_rows),
                sampled=view("sampled", num_sampled),
                block_tables=self._tables[:num_rows],
                longest=longest,
            )
        return self._views[key]
