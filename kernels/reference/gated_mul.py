"""The gated activation of a feed-forward block."""

import numpy as np
from numpy.typing import NDArray

from kernels.layout import F32


def silu_mul(gate_up_TJ: F32) -> NDArray[np.float64]:
    """silu(gate) * up, where a row is gate then up (J = 2 I)."""
    gate, up = np.split(gate_up_TJ.astype(np.float64), 2, axis=-1)
    product: NDArray[np.float64] = gate / (1 + np.exp(-gate)) * up
    return product


def gelu_mul(gate_up_TJ: F32) -> NDArray[np.float64]:
    """gelu(gate) * up with the tanh form of GELU, where a row is gate then up (J = 2 I)."""
    gate, up = np.split(gate_up_TJ.astype(np.float64), 2, axis=-1)
    tanh = np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))
    product: NDArray[np.float64] = 0.5 * gate * (1 + tanh) * up
    return product
