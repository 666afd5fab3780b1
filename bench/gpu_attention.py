"""Decode attention alone: bytes of keys and values a second, and their share of what the memory could deliver."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from executor_svc.backends.cuda.place import Place
from kernels.cuda.paged_attention import PagedAttention
from kernels.layout import BLOCK_SIZE

NUM_KV_HEADS: Final = 8
GROUP: Final = 4
HEAD_DIM: Final = 128
"""Llama 3 8B's; one layer."""
_CALLS: Final = 10
_ROUNDS: Final = 7


@dataclass(frozen=True, slots=True)
class Attended:
    """One layer over rows of one length, or of lengths between two.

    Attributes:
        error: relative, against float64, the worst of eight rows.
        tb_s: keys and values read, each once. share: of the peak; None = not known.
    """

    num_rows: int
    least: int
    most: int
    microseconds: float
    tb_s: float
    share: float | None
    error: float


def measure(place: Place, *, num_rows: int, least: int, most: int, peak_tb_s: float) -> Attended:
    """Ten calls in a graph, the median of seven replays."""
    device = place.device
    lengths = torch.randint(least, most + 1, (num_rows,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    blocks = (lengths + BLOCK_SIZE - 1) // BLOCK_SIZE
    tables = torch.full((num_rows, int(blocks.max())), -1, dtype=torch.int32)
    order = torch.randperm(int(blocks.sum()), generator=torch.Generator().manual_seed(1)).int()
    for row, part in enumerate(torch.split(order, blocks.tolist())):
        tables[row, : len(part)] = part
    shape = (int(blocks.sum()), NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(num_rows, NUM_KV_HEADS * GROUP, HEAD_DIM, device=device, dtype=torch.bfloat16)
    out = torch.zeros_like(q)
    attention = PagedAttention(
        num_heads=NUM_KV_HEADS * GROUP,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        dtype="bfloat16",
        max_rows=num_rows,
        max_tokens=num_rows,
        max_context=most,
    )
    workspace = {
        name: torch.zeros(size, dtype=getattr(torch, kind), device=device) for name, (size, kind) in attention.workspace.items()
    }
    rows = {
        "query_start": torch.arange(num_rows + 1, dtype=torch.int32, device=device),
        "context_len": lengths.to(device),
    }
    tables = tables.to(device)
    attention.plan(place.kernels, **rows, workspace=workspace)

    def attend() -> None:
        for _ in range(_CALLS):
            attention.attend(
                place.kernels,
                q,
                k=k,
                v=v,
                block_tables=tables,
                **rows,
                workspace=workspace,
                longest=1,
                scale=HEAD_DIM**-0.5,
                out=out,
            )

    seconds = _replayed_s(place, attend) / _CALLS
    tb_s = int(lengths.sum()) * NUM_KV_HEADS * HEAD_DIM * 2 * 2 / seconds / 1e12
    return Attended(
        num_rows=num_rows,
        least=least,
        most=most,
        microseconds=seconds * 1e6,
        tb_s=tb_s,
        share=tb_s / peak_tb_s if peak_tb_s else None,
        error=_error(q, k, v, tables, lengths, out),
    )


def _replayed_s(place: Place, run: Callable[[], None]) -> float:
    replay = place.capture(run)
    times = []
    for _ in range(_ROUNDS):
        place.wait()
        began = time.perf_counter()
        replay()
        place.wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _error(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor
) -> float:
    """The worst of eight rows."""
    worst = 0.0
    for row in range(0, len(lengths), max(1, len(lengths) // 8)):
        length = int(lengths[row])
        blocks = tables[row, : -(-length // BLOCK_SIZE)].long()
        keys, values = (part[blocks].transpose(0, 1).flatten(1, 2)[:, :length].double() for part in (k, v))
        scores = torch.einsum("kgd,ktd->kgt", q[row].view(NUM_KV_HEADS, GROUP, HEAD_DIM).double(), keys) * HEAD_DIM**-0.5
        want = torch.einsum("kgt,ktd->kgd", scores.softmax(-1), values).reshape(-1, HEAD_DIM)
        worst = max(worst, float((out[row].double() - want).norm() / want.norm()))
    return worst


def peak_tb_s(place: Place) -> float:
    """Peak of the device's memory by its clock (two transfers a cycle) and bus width; 0 where nobody knows."""
    if place.device.type != "cuda":
        return 0.0
    properties = torch.cuda.get_device_properties(place.device)
    clock_khz, bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    return float(2 * clock_khz * 1e3 * bits / 8 / 1e12)
