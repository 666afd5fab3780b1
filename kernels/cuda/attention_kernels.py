"""Descriptions of the kernels that paged attention is made of."""

from dataclasses import dataclass
from functools import cache
from typing import Final

from kernels.cuda.spec import Array, Kernel, Scalar

FEW_THREADS: Final = 128
"""Threads of the tensor-core kernels: 4 warps."""
_PLAN_THREADS: Final = 256
_SHARED_LIMIT: Final = 99 << 10
"""Bytes that a block may have on every GPU from sm_80 on (sm_86 and sm_89 have no more)."""


def _ints(name: str) -> Array:
    """Lengths and places, read one by one."""
    return Array(name, "int32", align=4)


def _read(dtype: str) -> tuple[Array, ...]:
    """What all kernels of attention read."""
    return (*(Array(name, dtype) for name in "qkv"), _ints("tables"))


@dataclass(frozen=True, slots=True)
class TensorCoreKernels:
    """One configuration: plan, then decode and merge, and prefill, whose items hold `prefill_tokens` query tokens."""

    plan: Kernel
    decode: Kernel
    merge: Kernel
    prefill: Kernel
    prefill_tokens: int

    @property
    def all(self) -> tuple[Kernel, ...]:
        """For `Device.prepare`."""
        return self.plan, self.decode, self.merge, self.prefill

    @classmethod
    def of(cls, head_dim: int, *, group: int, window: int, split: int, few: int) -> "TensorCoreKernels":
        """`few` = most new tokens of a row that decode items take; `split` = keys of a part of a context."""
        prefill_tokens = 64 // group
        plan = _plan(few, decode_tokens=16 // group, split=split, prefill_tokens=prefill_tokens, window=window)
        return cls(plan, *_decode(head_dim, group, window), _prefill(head_dim, group, window), prefill_tokens)


@cache
def _plan(few: int, *, decode_tokens: int, split: int, prefill_tokens: int, window: int) -> Kernel:
    return Kernel(
        source="attention_plan",
        name="attention_plan",
        args=(
            _ints("query_start"),
            _ints("context_len"),
            Array("decode_items", "int32", "inout"),
            Array("item_slot", "int32", "inout", align=4),
            Array("prefill_items", "int32", "inout"),
            Array("num_items", "int32", "out", align=4),
            Array("row_slots", "int32", "inout", align=8),
            Scalar("num_rows", "int32"),
        ),
        defines=(
            ("FEW", few),
            ("DECODE_TOKENS", decode_tokens),
            ("SPLIT", split),
            ("PREFILL_TOKENS", prefill_tokens),
            ("WINDOW", window),
            ("THREADS", _PLAN_THREADS),
        ),
        block=_PLAN_THREADS,
    )


@cache
def _decode(head_dim: int, group: int, window: int) -> tuple[Kernel, Kernel]:
    stage_bytes = 4 * 64 * head_dim  # 4 warps, 16 keys and values of 2 bytes each
    merge_bytes = 4 * 16 * (head_dim + 8 + 2) * 4
    stages = min(4, _SHARED_LIMIT // stage_bytes)
    defines = (("HEAD_DIM", head_dim), ("GROUP", group), ("WINDOW", window), ("STAGES", max(2, stages)))
    decode = Kernel(
        source="paged_decode",
        name="paged_decode",
        args=(
            *_read("bfloat16"),
            Array("items", "int32"),
            _ints("item_slot"),
            _ints("num_items"),
            _ints("query_start"),
            _ints("context_len"),
            Array("out", "bfloat16", "inout"),
            Array("part_o", "float32", "inout"),
            Array("part_ml", "float32", "inout"),
            Scalar("table_pitch", "int32"),
            Scalar("scale_log2", "float32"),
        ),
        defines=defines,
        block=FEW_THREADS,
        shared_bytes=max(max(2, stages) * stage_bytes, merge_bytes),
    )
    merge = Kernel(
        source="paged_decode",
        name="paged_decode_merge",
        args=(
            Array("part_o", "float32"),
            Array("part_ml", "float32"),
            Array("row_slots", "int32", align=8),
            _ints("query_start"),
            Array("out", "bfloat16", "inout"),
        ),
        defines=defines,
        block=head_dim // 2,
    )
    return decode, merge


@cache
def _prefill(head_dim: int, group: int, window: int) -> Kernel:
    keys = {64: 64, 128: 32}.get(head_dim, 16)
    return Kernel(
        source="paged_prefill",
        name="paged_prefill",
        args=(
            *_read("bfloat16"),
            Array("items", "int32"),
            _ints("num_items"),
            _ints("query_start"),
            _ints("context_len"),
            Array("out", "bfloat16", "inout"),
            Scalar("table_pitch", "int32"),
            Scalar("scale_log2", "float32"),
        ),
        defines=(("HEAD_DIM", head_dim), ("GROUP", group), ("WINDOW", window), ("KEYS", keys)),
        block=FEW_THREADS,
        shared_bytes=2 * 2 * keys * head_dim * 2,
    )


@cache
def simt_kernel(head_dim: int, *, group: int, window: int, dtype: str) -> Kernel:
    """On plain cores. Raises ValueError for a head size that is not a multiple of 8 up to 256."""
    if head_dim % 8 or not 8 <= head_dim <= 256:
        raise ValueError(f"paged_attention: head size {head_dim}; want a multiple of 8 up to 256")
    lanes = 1 << (head_dim // 8 - 1).bit_length()
    return Kernel(
        source="paged_attention_simt",
        name="paged_attention_simt",
        args=(
            *_read(dtype),
            _ints("query_start"),
            _ints("context_len"),
            Array("out", dtype, "inout"),
            Scalar("num_rows", "int32"),
            Scalar("table_pitch", "int32"),
            Scalar("scale", "float32"),
        ),
        defines=(
            ("ELEMENT_F32", int(dtype == "float32")),
            ("HEAD_DIM", head_dim),
            ("LANES", lanes),
            ("GROUP", group),
            ("WINDOW", window),
        ),
        block=128,
    )
