"""Paged attention over ragged rows: decode, verify and prompt chunks of one batch, any mixture.

bfloat16 with heads of 64, 128, 192 or 256 runs on tensor cores: `attention_plan` cuts rows into items on the device, which
`paged_decode` and `paged_prefill` take. Everything else runs on plain cores. Sources: Dao, https://arxiv.org/abs/2307.08691 (tiles
and running maximum); Ye et al., https://arxiv.org/abs/2501.01005 (items over ragged rows).
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from kernels.cuda.attention_kernels import FEW_THREADS, TensorCoreKernels, simt_kernel
from kernels.cuda.device import Device
from kernels.cuda.spec import Kernel

Workspace = dict[str, tuple[tuple[int, ...], str]]
_MOST_PARTS: Final = 2048
"""Parts of contexts that are parked at the same time: with 8 kv heads of 128, 128 MiB."""
_LEAST_SPLIT: Final = 512
"""Keys of a part, at least: below it, merging costs what splitting gains."""


class PagedAttention:
    """One configuration; owns no memory. Layers that agree on the window share a workspace.

    Attributes:
        workspace: name -> (shape, dtype) of what the caller allocates on the device, once, in any state.
        kernels: all that may be launched, for `Device.prepare`.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: str,
        max_rows: int,
        max_tokens: int,
        max_context: int,
        window: int = 0,
        max_verify: int = 1,
        num_blocks: int = 1024,
    ) -> None:
        """Args:
            dtype: "bfloat16" or "float32", of queries, keys, values and output.
            max_rows, max_tokens, max_context: the most that a step has; they decide the workspace.
            window: keys that a query sees, itself included; 0 = all.
            max_verify: rows of at most so many new tokens share the bandwidth-bound path: 1, or 1 + drafts.
            num_blocks: thread blocks that take items in turn; by default more than any GPU runs at once.

        Raises:
            ValueError: heads that do not share kv heads evenly, or a head size that is not a multiple of 8 up to 256.
        """
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(f"{num_heads} query heads do not share {num_kv_heads} kv heads evenly")
        group = num_heads // num_kv_heads
        self._heads, self._kv_heads, self._max_rows, self._max_tokens = num_heads, num_kv_heads, max_rows, max_tokens
        self._max_verify = max_verify
        self._grid = max(1, num_blocks // num_kv_heads)
        self._simt = simt_kernel(head_dim, group=group, window=window, dtype=dtype)
        self._tensor_cores: TensorCoreKernels | None = None
        self.workspace: Workspace = {}
        self.kernels: tuple[Kernel, ...] = (self._simt,)
        if dtype != "bfloat16" or head_dim % 64 or group > 16:
            return
        tiles = -(-max_verify // (16 // group))
        split = _split_of(max_context, most_parts=max(1, _MOST_PARTS // (max_rows * tiles)))
        self._parts = -(-max_context // split) if split < max_context else 1
        self._tiles = tiles
        made = TensorCoreKernels.of(head_dim, group=group, window=window, split=split, few=max_verify)
        slots = max_rows * tiles * self._parts if self._parts > 1 else 1
        self._tensor_cores = made
        self.kernels = made.all
        self.workspace = {
            "decode_items": ((max_rows * tiles * self._parts, 4), "int32"),
            "item_slot": ((max_rows * tiles * self._parts,), "int32"),
            "prefill_items": ((max_tokens // made.prefill_tokens + max_rows, 4), "int32"),
            "num_items": ((2,), "int32"),
            "row_slots": ((max_rows, 2), "int32"),
            "part_o": ((slots, num_kv_heads, 16, head_dim), "float32"),
            "part_ml": ((slots, num_kv_heads, 16, 2), "float32"),
        }

    def plan(self, device: Device, *, query_start: Any, context_len: Any, workspace: Mapping[str, Any]) -> None:
        """Once a step, before any layer: query_start i32 [R + 1], context_len i32 [R], both on the device.

        Raises ValueError for more rows than `max_rows`, for which the workspace has no room.
        """
        if context_len.shape[0] > self._max_rows:
            raise ValueError(f"paged_attention: {context_len.shape[0]} rows, max_rows is {self._max_rows}")
        if self._tensor_cores is None:
            return
        names = ("decode_items", "item_slot", "prefill_items", "num_items", "row_slots")
        args = (query_start, context_len, *(workspace[name] for name in names), context_len.shape[0])
        device.launch(self._tensor_cores.plan, (1,), args)

    def attend(
        self,
        device: Device,
        q: Any,
        *,
        k: Any,
        v: Any,
        block_tables: Any,
        query_start: Any,
        context_len: Any,
        workspace: Mapping[str, Any],
        longest: int,
        scale: float,
        out: Any,
    ) -> None:
        """One layer.

        Args:
            q, out: [T, N, D]. Tokens behind query_start[R] belong to nobody: not read, their output left as it is.
            k, v: [B, K, 16, D], the keys of the fed tokens already in them; behind a row's last token nothing is read.
            block_tables: i32 [R, W]; entries behind a row's last block are not looked at.
            longest: most new tokens of a row, which the host knows: prefill is not even launched where no row can have a chunk.
            query_start, context_len: as planned. A row with fewer tokens of context than it feeds is dead: its output is 0.
        """
        if q.shape[0] > self._max_tokens:
            raise ValueError(f"paged_attention: {q.shape[0]} tokens, max_tokens is {self._max_tokens}")
        rows, pitch = context_len.shape[0], block_tables.shape[1]
        ragged = (query_start, context_len)
        if self._tensor_cores is None:
            plain = (q, k, v, block_tables, *ragged, out, rows, pitch, scale)
            device.launch(self._simt, (q.shape[0], self._heads), plain)
            return
        made, items = self._tensor_cores, rows * self._tiles * self._parts
        scale_log2 = scale * math.log2(math.e)
        parked = (workspace["part_o"], workspace["part_ml"])
        chosen = (workspace["decode_items"], workspace["item_slot"], workspace["num_items"])
        grid = (min(items, self._grid), self._kv_heads)
        device.launch(made.decode, grid, (q, k, v, block_tables, *chosen, *ragged, out, *parked, pitch, scale_log2))
        if self._parts > 1:
            device.launch(made.merge, (rows, self._heads), (*parked, workspace["row_slots"], query_start, out))
        if longest > self._max_verify:
            grid = (min(q.shape[0] // made.prefill_tokens + rows, self._grid), self._kv_heads)
            args = (q, k, v, block_tables, workspace["prefill_items"], workspace["num_items"][1:], *ragged, out, pitch, scale_log2)
            device.launch(made.prefill, grid, args)


def _split_of(max_context: int, *, most_parts: int) -> int:
    """Keys of a part: so many that the longest context has at most `most_parts`."""
    least = -(-max_context // most_parts)
    step = FEW_THREADS // 2
    return max(_LEAST_SPLIT, -(-least // step) * step)
