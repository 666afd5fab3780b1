"""Ragged batches over a paged cache whose every unused number is NaN: what must not be read, poisons whoever reads it."""

from dataclasses import dataclass, replace

import numpy as np

from kernels.cpu.paged_attention import paged_attention
from kernels.layout import BLOCK_SIZE, F32, I32, KvArray, cache_shapes


@dataclass(frozen=True)
class PagedBatch:
    """Arguments of `paged_attention`, named as there."""

    q: F32
    k: KvArray
    v: KvArray
    query_start: I32
    context_len: I32
    tables: I32
    window: int

    @property
    def scale(self) -> float:
        return self.q.shape[2] ** -0.5

    def arguments(self) -> dict:
        return {
            "k_BKDP": self.k, "v_BKPD": self.v, "query_start_R": self.query_start, "context_len_R": self.context_len,
            "block_tables_RW": self.tables, "scale": self.scale, "window": self.window,
        }  # fmt: skip

    def run(self, *, tile_tokens: int = 0) -> F32:
        out = np.full_like(self.q, np.nan)
        paged_attention(self.q, **self.arguments(), out_TND=out, tile_tokens=tile_tokens)
        return out

    def part(self, row: int, first: int, last: int) -> "PagedBatch":
        """Query tokens first..last-1 (counted in the row) of one row, as a batch of its own."""
        start, stop = self.query_start[row], self.query_start[row + 1]
        context = np.array([self.context_len[row] - (stop - start) + last], np.int32)
        return replace(
            self,
            q=np.ascontiguousarray(self.q[start + first : start + last]),
            context_len=context,
            tables=self.tables[row : row + 1].copy(),
            query_start=np.array([0, last - first], np.int32),
        )


def paged_batch(
    rows: list[tuple[int, int]],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int = 0,
    seed: int = 0,
    kv_type: type = np.float32,
) -> PagedBatch:
    """A batch of rows (context length, query tokens); blocks are scattered over the cache in random order."""
    rng = np.random.default_rng(seed)
    lengths = [context for context, _ in rows]
    num_blocks = [-(-length // BLOCK_SIZE) for length in lengths]
    total = sum(num_blocks) + 3
    key_shape, value_shape = cache_shapes(total, num_kv_heads=num_kv_heads, head_dim=head_dim)
    k, v = (np.full(shape, np.nan, kv_type) for shape in (key_shape, value_shape))
    free = list(rng.permutation(total))
    tables = np.full((len(rows), max(num_blocks, default=1) + 1), -1, np.int32)
    for row, length in enumerate(lengths):
        for j in range(num_blocks[row]):
            block = tables[row, j] = free.pop()
            used = min(BLOCK_SIZE, length - j * BLOCK_SIZE)
            k[block, :, :, :used] = rng.standard_normal((num_kv_heads, head_dim, used)) * 2
            v[block, :, :used] = rng.standard_normal((num_kv_heads, used, head_dim))
    query_start = np.concatenate([[0], np.cumsum([tokens for _, tokens in rows])]).astype(np.int32)
    q = rng.standard_normal((int(query_start[-1]), num_heads, head_dim), dtype=np.float32)
    return PagedBatch(q, k, v, query_start, np.array(lengths, np.int32), tables, window)
