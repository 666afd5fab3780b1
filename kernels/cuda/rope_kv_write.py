"""Per-head norms, rotary positions and the paged cache write in one kernel. Source: Su et al., https://arxiv.org/abs/2104.09864."""

from functools import cache
from typing import Any

from kernels.cuda.device import Device
from kernels.cuda.spec import Array, Kernel, Scalar, dtype_of

_THREADS = 128


@cache
def rope_kv_write_kernel(heads: int, kv_heads: int, head_dim: int, rotary: int, dtype: str) -> Kernel:
    """For float32 or bfloat16. Raises ValueError for heads or pairs that are not whole vectors of 4."""
    if head_dim % 4 or rotary % 4 or 2 * rotary > head_dim:
        raise ValueError(
            f"rope_kv_write: head size {head_dim} with {rotary} rotary pairs; want multiples of 4, the pairs up to half"
        )
    return Kernel(
        source="rope_kv_write",
        name="rope_kv_write",
        args=(
            Array("qkv", dtype),
            Array("cos", "float32"),
            Array("sin", "float32"),
            Array("position", "int32", align=4),
            Array("slot", "int32", align=4),
            Array("q_norm", "float32", optional=True),
            Array("k_norm", "float32", optional=True),
            Array("k", dtype, "inout"),
            Array("v", dtype, "inout"),
            Array("q", dtype, "out"),
            Scalar("num_positions", "int32"),
            Scalar("num_blocks", "int32"),
            Scalar("eps", "float32"),
        ),
        defines=(
            ("ELEMENT_F32", int(dtype == "float32")),
            ("HEADS", heads),
            ("KV_HEADS", kv_heads),
            ("HEAD_DIM", head_dim),
            ("ROTARY", rotary),
            ("THREADS", _THREADS),
        ),
        block=_THREADS,
        shared_bytes=(heads + 2 * kv_heads) * head_dim * 4,
    )


def rope_kv_write(
    device: Device,
    qkv: Any,
    *,
    cos: Any,
    sin: Any,
    positions: Any,
    slot_mapping: Any,
    k: Any,
    v: Any,
    num_heads: int,
    q_out: Any,
    q_norm: Any = None,
    k_norm: Any = None,
    eps: float = 0.0,
) -> None:
    """Writes rotated queries into `q_out`, keys (rotated) and values into the cache slots of their tokens.

    Args:
        qkv: [T, C], a row is all q heads, then k heads, then v heads.
        cos, sin: f32 [L, E]; element i is rotated with element E + i, those behind 2 E are kept.
        positions, slot_mapping: i32 [T]; a position outside the table makes that token's query NaN and writes nothing else, so
            does a slot behind the cache; slot -1 (padding) writes nothing to the cache.
        k, v: [B, K, 16, D]. q_out: [T, N, D]. q_norm, k_norm: f32 [D] or None.
    """
    kernel = rope_kv_write_kernel(num_heads, k.shape[1], k.shape[3], cos.shape[1], dtype_of(qkv))
    args = (qkv, cos, sin, positions, slot_mapping, q_norm, k_norm, k, v, q_out, cos.shape[0], k.shape[0], eps)
    device.launch(kernel, (qkv.shape[0],), args)
