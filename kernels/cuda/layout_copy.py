"""Rows into members of a dense cohort: the copies of layouts A and B. Leads are decided by `executor_svc.layouts.align`.

| operation | source_start | lead |
|---|---|---|
| front-align, cache-in of own caches | the row's first live column: its old lead, or 0 | width - length |
| drop the common dead prefix | the old lead | the old lead, less the least of all |
| grow a cohort | the old lead | the old lead |
| cache-in of a prefix hit | blocks: `blocks_into_cohort` | width - length |

A contiguous cache of one row is a cohort of one member. Copies go from one array to another, never inside one.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from kernels.cuda.device import Device
from kernels.cuda.spec import Array, Kernel, Scalar, dtype_of, memory_of
from kernels.layout import BLOCK_SIZE

_THREADS: Final = 128
_VECTOR: Final = 16
"""Bytes that a thread moves at once."""
_STEPS: Final = 4
"""Vectors of a thread, as the source has it."""
_ITEM: Final = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Places:
    """Where rows go, all i32 [R] on the device.

    Attributes:
        member: of the cohort; no two alike, -1 (or any other that it lacks) writes nothing.
        lead: dead columns in front. length: live columns behind them. A run that does not fit makes its member NaN.
    """

    member: Any
    lead: Any
    length: Any


@cache
def dense_kernel(head_dim: int, dtype: str) -> Kernel:
    """From a dense cohort, float32 or bfloat16. Raises ValueError for heads that are not whole vectors of 16 bytes."""
    more = (Array("source_member", "int32", align=4), Array("source_start", "int32", align=4))
    return _kernel("layout_copy_dense", more, ("source_members", "source_columns"), head_dim, dtype)


@cache
def paged_kernel(head_dim: int, dtype: str) -> Kernel:
    """From blocks; otherwise as `dense_kernel`."""
    return _kernel("layout_copy_paged", (Array("table", "int32", align=4),), ("blocks", "width"), head_dim, dtype)


def _kernel(name: str, more: tuple[Array, ...], sizes: tuple[str, ...], head_dim: int, dtype: str) -> Kernel:
    if dtype not in _ITEM or head_dim * _ITEM[dtype] % _VECTOR:
        raise ValueError(f"{name}: heads of {head_dim} {dtype} are not whole vectors of {_VECTOR} bytes of float32 or bfloat16")
    return Kernel(
        source="layout_copy",
        name=name,
        args=(
            Array("source_k", dtype),
            Array("source_v", dtype),
            *more,
            Array("k", dtype, "inout"),
            Array("v", dtype, "inout"),
            *(Array(column, "int32", align=4) for column in ("member", "lead", "length")),
            *(Scalar(size, "int32") for size in (*sizes, "members", "columns")),
        ),
        defines=(("VECTORS", head_dim * _ITEM[dtype] // _VECTOR), ("THREADS", _THREADS)),
        block=_THREADS,
    )


def rows_into_cohort(
    device: Device, source_k: Any, source_v: Any, *, source_member: Any, source_start: Any, k: Any, v: Any, places: Places
) -> None:
    """Copies runs of columns of one cohort into members of another, whose other columns become 0.

    Args:
        source_k, source_v: [M', K, Y', D]. k, v: [M, K, Y, D], other arrays of the same type; members that no row names are left.
        source_member, source_start: i32 [R], where each run begins. Columns that the source does not have come out as NaN.

    Raises:
        ValueError: shapes do not fit, or a source and a destination overlap.
    """
    _check(source_k, source_v, k, v, rows=(source_member, source_start, places.member, places.lead, places.length))
    sizes = (source_k.shape[0], source_k.shape[2], k.shape[0], k.shape[2])
    args = (source_k, source_v, source_member, source_start, k, v, places.member, places.lead, places.length, *sizes)
    device.launch(dense_kernel(k.shape[3], dtype_of(k)), _grid(k, places), args)


def blocks_into_cohort(device: Device, source_k: Any, source_v: Any, *, table: Any, k: Any, v: Any, places: Places) -> None:
    """Copies the first `places.length` tokens of rows that lie in blocks into members of a cohort, whose other columns become 0.

    Args:
        source_k, source_v: [B, K, 16, D]. k, v: [M, K, Y, D], other arrays of the same type; members that no row names are left.
        table: i32 [R, W], blocks of each row. Tokens of a block that the cache does not have come out as NaN.

    Raises:
        ValueError: shapes do not fit, or a source and a destination overlap.
    """
    _check(source_k, source_v, k, v, rows=(table, places.member, places.lead, places.length))
    if source_k.shape[2] != BLOCK_SIZE:
        raise ValueError(f"source_k {tuple(source_k.shape)} does not have blocks of {BLOCK_SIZE} tokens")
    sizes = (source_k.shape[0], table.shape[1], k.shape[0], k.shape[2])
    args = (source_k, source_v, table, k, v, places.member, places.lead, places.length, *sizes)
    device.launch(paged_kernel(k.shape[3], dtype_of(k)), _grid(k, places), args)


def _grid(k: Any, places: Places) -> tuple[int, int, int]:
    _, heads, columns, head_dim = k.shape
    vectors = columns * head_dim * _ITEM[dtype_of(k)] // _VECTOR
    return -(-vectors // (_THREADS * _STEPS)), 2 * heads, places.member.shape[0]


def _check(source_k: Any, source_v: Any, k: Any, v: Any, *, rows: tuple[Any, ...]) -> None:
    shapes = [tuple(array.shape) for array in (source_k, source_v, k, v)]
    if shapes[0] != shapes[1] or shapes[2] != shapes[3] or (shapes[0][1], shapes[0][3]) != (shapes[2][1], shapes[2][3]):
        raise ValueError(f"source {shapes[0]} and {shapes[1]}, cohort {shapes[2]} and {shapes[3]} do not fit together")
    if len({column.shape[0] for column in rows}) > 1:
        raise ValueError(f"columns of rows differ in length: {[column.shape[0] for column in rows]}")
    spans = [(memory.address, memory.address + memory.num_bytes) for memory in map(memory_of, (source_k, source_v, k, v))]
    for start, stop in spans[:2]:
        if any(start < other_stop and other_start < stop for other_start, other_stop in spans[2:]):
            raise ValueError("a source and a destination overlap: what a block of threads reads, another may already have written")
