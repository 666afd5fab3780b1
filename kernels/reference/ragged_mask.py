"""The additive mask of a front-aligned cohort: what `dense_attention` must be equal to, written as a mask.

Row b has `live[b]` tokens that end at column `width`; in front of them lie `width - live[b]` dead columns of zeros. A zero key is
not a masked key: its logit is 0, so it weighs e^0, and with values of 0 it scales the output down without any error.
"""

import numpy as np

from kernels.layout import F32, I32


def ragged_mask(live_R: I32, *, width: int, num_queries: int, window: int = 0) -> F32:
    """f32 [R, 1, t, width + t]: 0 where query i of a row may look, -inf elsewhere; query i itself lies in column width + i.

    `window` counts columns from the query back, itself included; distances inside a row are those of its live positions. A query
    always sees itself, so no row of the mask is empty. One query gets a mask like many: there is no shortcut for `num_queries` 1.
    """
    column = np.arange(width + num_queries)
    own = width + np.arange(num_queries)[:, None]
    lead = (width - live_R)[:, None, None]
    seen = (column >= lead) & (column <= own)
    if window:
        seen &= column > own - window
    return np.where(seen, np.float32(0), np.float32(-np.inf)).astype(np.float32)[:, None]
