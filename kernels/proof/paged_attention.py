"""Cases of paged attention: the plan with decode, merge and prefill on tensor cores, and the kernel on plain cores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.cpu.paged_attention import paged_attention as twin
from kernels.cuda.device import Device
from kernels.cuda.paged_attention import PagedAttention
from kernels.layout import BLOCK_SIZE
from kernels.proof.case import Arrays, Case, elements, floats, poison
from kernels.proof.traffic import Bounds, Exempt
from kernels.reference.paged_attention import paged_attention as reference

NOWHERE = 2**30
"""A block that no cache has: whoever looks it up reads out of bounds."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A configuration and a batch; `rows` = (new tokens, context, which counts them) of each; dead when the context is the less."""

    dtype: str
    heads: int
    kv_heads: int
    dim: int
    rows: Sequence[tuple[int, int]]
    window: int = 0
    max_verify: int = 1
    max_context: int = 640
    spare: int = 0
    num_blocks: int = 1024

    @property
    def name(self) -> str:
        """Unique among the cases."""
        window = f", window {self.window}" if self.window else ""
        return f"{self.dtype} {self.heads}/{self.kv_heads} heads of {self.dim}, {len(self.rows)} rows{window}"


DECODE = [(1, n) for n in (1, 2, 15, 16, 17, 63, 100, 257)]
SPLIT = [(1, 640), (2, 513), (1, 512), (3, 3), (1, 0), (0, 0)]
AS_MANY = [(2, 20), (0, 5), (1, 3)]
"""As many tokens as rows, and yet a row with a chunk."""
PREFILL = [(70, 200), (1, 30), (33, 33), (2, 1), (5, 90)]


_FRAGMENT = "a fragment is 16 bytes of each of 8 rows: half a sector, whose other half is the next instruction's; once an item"
_TWO_VECTORS = "eight float32 are two vectors: each load finds the other's half of a sector in L1"
TENSOR_CORE_BOUNDS = Bounds(
    (
        "bfloat16 4/1 heads of 128, 8 rows",
        "bfloat16 16/2 heads of 64, 6 rows",
        "bfloat16 7/1 heads of 128, 3 rows, window 40",
    ),
    (
        Exempt("paged_decode", "q", "read", 2.0, _FRAGMENT),
        Exempt("paged_prefill", "q", "read", 2.0, _FRAGMENT),
        Exempt("paged_prefill", "out", "write", 2.0, _FRAGMENT),
        Exempt("attention_plan", "query_start", "read", 1.25, "the second of two neighbours lies behind the sector"),
        Exempt("attention_plan", "decode_items", "write", 1.4, "a thread writes all items of its row, one after another"),
        Exempt("attention_plan", "prefill_items", "write", 1.6, "the same"),
    ),
)
SIMT_BOUNDS = Bounds(
    ("float32 3/1 heads of 64, 8 rows",),
    (
        Exempt("paged_attention_simt", "q", "read", 2.0, _TWO_VECTORS),
        Exempt("paged_attention_simt", "k", "read", 2.0, _TWO_VECTORS),
        Exempt("paged_attention_simt", "v", "read", 2.0, _TWO_VECTORS),
        Exempt("paged_attention_simt", "shared memory", "write", 1.9, "a lane parks eight neighbours, once a token"),
    ),
)


def tensor_core_cases() -> Iterator[Case]:
    """Decode in one part and in several, verify, chunks beside decode rows, windows, padding, dead rows, ratios of heads."""
    yield _case(Shape("bfloat16", 4, 1, 128, DECODE, max_context=512))
    yield _case(Shape("bfloat16", 16, 2, 64, SPLIT, max_verify=3, max_context=1024, spare=3, num_blocks=4))
    yield _case(Shape("bfloat16", 3, 1, 64, PREFILL, spare=2, num_blocks=2))
    yield _case(Shape("bfloat16", 7, 1, 128, PREFILL[:3], window=40))
    yield _case(Shape("bfloat16", 2, 1, 256, [(1, 40), (20, 33)]))
    yield _case(Shape("bfloat16", 2, 1, 64, AS_MANY))
    yield _case(Shape("bfloat16", 1, 1, 64, [(1, 640), (1, 90)], window=600, max_context=1024))


def simt_cases() -> Iterator[Case]:
    """The same on plain cores, with head sizes that only they take."""
    yield _case(Shape("float32", 3, 1, 64, DECODE))
    yield _case(Shape("float32", 2, 2, 96, [(5, 40), (1, 1), (1, 70), (2, 1)], spare=2))
    yield _case(Shape("float32", 4, 2, 32, [(9, 60), (1, 45)], window=20))
    yield _case(Shape("bfloat16", 4, 2, 80, [(1, 33), (3, 20)]))


def _case(shape: Shape) -> Case:
    arrays = _arrays(shape)
    fed = np.array([fed for fed, _ in shape.rows])
    attention = PagedAttention(
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.dim,
        dtype=shape.dtype,
        max_rows=512 if shape.max_context == 1024 else len(fed),
        max_tokens=int(fed.sum()) + shape.spare,
        max_context=shape.max_context,
        window=shape.window,
        max_verify=shape.max_verify,
        num_blocks=shape.num_blocks,
    )
    sizes = {name: (size, kind) for name, (size, kind) in attention.workspace.items()}

    def made() -> Arrays:
        workspace = {name: poison(size, kind) for name, (size, kind) in sizes.items()}
        return {name: array.copy() for name, array in arrays.items()} | workspace

    def launch(device: Device, on: Mapping[str, Any]) -> None:
        rows = {"query_start": on["query_start"], "context_len": on["context_len"]}
        attention.plan(device, **rows, workspace=on)
        attention.attend(
            device,
            on["q"],
            k=on["k"],
            v=on["v"],
            block_tables=on["tables"],
            **rows,
            workspace=on,
            longest=int(fed.max()),
            scale=shape.dim**-0.5,
            out=on["out"],
        )

    return Case(
        name=shape.name,
        arrays=made,
        launch=launch,
        expected={"out": _expected(shape, arrays)},
        untouched=("out",),
        tolerance=5e-3 if shape.dtype == "bfloat16" else 2e-6,
        twin=(lambda changed: _twin(shape, changed)) if shape.dtype == "float32" else None,
    )


def _arrays(shape: Shape) -> Arrays:
    """Blocks in a scattered order, NaN wherever no row has written, tables that lead nowhere behind a row's last block."""
    draw = np.random.default_rng(shape.dim + shape.heads)
    fed, context = (np.array(column) for column in zip(*shape.rows, strict=True))
    needed = -(-context // BLOCK_SIZE)
    order = draw.permutation(int(needed.sum()) + 2)
    tables = np.full((len(fed), max(1, int(needed.max()))), NOWHERE, np.int32)
    cache = [np.full((len(order), shape.kv_heads, BLOCK_SIZE, shape.dim), np.nan) for _ in range(2)]
    taken = 0
    for row, count in enumerate(needed):
        tables[row, :count] = order[taken : taken + count]
        taken += count
        for position in range(context[row]):
            for array in cache:
                block = tables[row, position // BLOCK_SIZE]
                array[block, :, position % BLOCK_SIZE] = draw.standard_normal((shape.kv_heads, shape.dim))
    q = draw.standard_normal((int(fed.sum()) + shape.spare, shape.heads, shape.dim))
    q[int(fed.sum()) :] = np.nan
    return {
        "q": elements(q, shape.dtype),
        "k": elements(cache[0], shape.dtype),
        "v": elements(cache[1], shape.dtype),
        "tables": tables,
        "query_start": np.concatenate([[0], np.cumsum(fed)]).astype(np.int32),
        "context_len": context.astype(np.int32),
        "out": poison(q.shape, shape.dtype),
    }


def _float32(array: Any) -> Any:
    return floats(array).astype(np.float32)


def _keys_transposed(k: Any) -> Any:
    """As the CPU has them, [B, K, D, P]."""
    return np.ascontiguousarray(k.swapaxes(2, 3))


def _expected(shape: Shape, arrays: Arrays) -> Any:
    """0 for dead rows, NaN for what belongs to nobody."""
    total = int(arrays["query_start"][-1])
    want = np.full(arrays["q"].shape, np.nan)
    want[:total] = reference(
        _float32(arrays["q"])[:total],
        k_BKDP=_keys_transposed(_float32(arrays["k"])),
        v_BKPD=_float32(arrays["v"]),
        query_start_R=arrays["query_start"],
        context_len_R=arrays["context_len"],
        block_tables_RW=arrays["tables"],
        scale=shape.dim**-0.5,
        window=shape.window,
    )
    return want


def _twin(shape: Shape, arrays: Arrays) -> Arrays:
    total = int(arrays["query_start"][-1])
    out = np.empty((total, shape.heads, shape.dim), np.float32)
    twin(
        np.ascontiguousarray(arrays["q"][:total]),
        k_BKDP=_keys_transposed(arrays["k"]),
        v_BKPD=arrays["v"],
        query_start_R=arrays["query_start"],
        context_len_R=arrays["context_len"],
        block_tables_RW=arrays["tables"],
        scale=shape.dim**-0.5,
        out_TND=out,
        window=shape.window,
    )
    arrays["out"][:total] = out
    return {"out": arrays["out"]}
