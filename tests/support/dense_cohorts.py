"""A front-aligned cohort made of the rows of a paged batch, with NaN wherever no live token lies."""

from dataclasses import dataclass

import numpy as np

from kernels.layout import BLOCK_SIZE
from tests.support.paged_batches import PagedBatch


@dataclass
class DenseCohort:
    """Arguments of `dense_attention`; members lie in reverse order of the rows, so that a swapped row shows."""

    q: np.ndarray
    rest: dict

    @classmethod
    def of(cls, paged: PagedBatch, *, dead: float = np.nan) -> "DenseCohort":
        """Rows end at one column; dead columns hold `dead`."""
        lengths, num_rows = paged.context_len, len(paged.context_len)
        width = int(lengths.max())
        heads, dim = paged.k.shape[1:3]
        k = np.full((num_rows, heads, dim, width + BLOCK_SIZE), dead, np.float32)
        v = np.full((num_rows, heads, width + BLOCK_SIZE, dim), dead, np.float32)
        member = np.arange(num_rows, dtype=np.int32)[::-1].copy()
        lead = (width - lengths).astype(np.int32)
        for row, length in enumerate(lengths.tolist()):
            for position in range(length):
                block, place = paged.tables[row, position // BLOCK_SIZE], position % BLOCK_SIZE
                k[member[row], :, :, lead[row] + position] = paged.k[block, :, :, place]
                v[member[row], :, lead[row] + position] = paged.v[block, :, place]
        rest = {
            "k_MKDY": k, "v_MKYD": v, "query_start_R": paged.query_start, "context_len_R": paged.context_len,
            "member_R": member, "lead_R": lead, "scale": paged.scale, "window": paged.window,
        }  # fmt: skip
        return cls(paged.q, rest)
