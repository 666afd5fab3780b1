"""Cases of `layout_copy`: copies keep every bit, so nothing is tolerated."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.device import Device
from kernels.cuda.layout_copy import Places, blocks_into_cohort, rows_into_cohort
from kernels.layout import BLOCK_SIZE
from kernels.proof.case import Arrays, Case, elements, floats, poison
from kernels.proof.traffic import Bounds
from kernels.reference.layout_copy import dense_run, paged_run, put_row

Run = Callable[[NDArray[Any], int], NDArray[np.float64]]
"""(source, row) -> the row's live columns [K, L, D]."""
MEMBERS = 5
"""Of the goal. One of them is named by no row."""


BOUNDS = Bounds(("front_align, bfloat16", "cache_in, bfloat16"))


def cases() -> Iterator[Case]:
    """Every operation; then runs and blocks that leave their source, leads that leave the goal. NaN lies where no row lives."""
    yield _dense("front_align, float32", "float32", dim=96, columns=70, start=(0, 0, 0), lead=(30, 0, 57), length=(40, 70, 13))
    yield _dense("front_align, bfloat16", "bfloat16", dim=256, columns=33, start=(3, 0, 7), lead=(0, 32, 33), length=(33, 1, 0))
    yield _dense("drop_dead_prefix", "bfloat16", dim=72, columns=50, start=(9, 4, 20), lead=(5, 0, 16), length=(31, 36, 20))
    yield _dense("outside, dense", "float32", dim=64, columns=20, start=(8, -1, 65), lead=(-1, 0, 1), length=(3, 4, 9))
    yield _dense("too long", "float32", dim=64, columns=20, start=(0, 0, 0), lead=(12, 2**31 - 1, 0), length=(9, 2, -1))
    yield _paged("cache_in, float32", "float32", dim=64, columns=64, lead=(0, 27, 63), length=(64, 37, 1))
    yield _paged("cache_in, bfloat16", "bfloat16", dim=128, columns=66, lead=(2, 34, 66), length=(50, 32, 0))
    yield _paged("outside, paged", "bfloat16", dim=64, columns=80, lead=(0, 1, 60), length=(80, 60, 21), spoiled=True)


def _dense(
    name: str,
    dtype: str,
    *,
    dim: int,
    columns: int,
    start: tuple[int, ...],
    lead: tuple[int, ...],
    length: tuple[int, ...],
) -> Case:
    """Three rows out of members 2, 0 and 3 of a source of 4 members and 71 columns."""
    member = np.array([2, 0, 3], np.int32)

    def launch(device: Device, on: Mapping[str, Any]) -> None:
        rows_into_cohort(
            device,
            on["source_k"],
            on["source_v"],
            source_member=on["source_member"],
            source_start=on["source_start"],
            k=on["k"],
            v=on["v"],
            places=_places(on),
        )

    def run(source: NDArray[Any], row: int) -> NDArray[np.float64]:
        return dense_run(source, member=int(member[row]), start=start[row], length=max(length[row], 0))

    def fill(source: NDArray[Any], draw: np.random.Generator) -> None:
        for row in range(3):
            live = source[member[row], :, max(start[row], 0) : max(start[row] + length[row], 0)]
            live[:] = elements(draw.standard_normal(live.shape), dtype)

    more = {"source_member": np.append(member, 0).astype(np.int32), "source_start": np.array([*start, 0], np.int32)}
    source = (4, 2, 71, dim)
    return _case(name, dtype, source, fill, run, more=more, columns=columns, lead=lead, length=length, launch=launch)


def _paged(
    name: str,
    dtype: str,
    *,
    dim: int,
    columns: int,
    lead: tuple[int, ...],
    length: tuple[int, ...],
    spoiled: bool = False,
) -> Case:
    """Three rows out of 12 blocks, tables of 4; spoiled: the second row's table names blocks that the cache does not have."""
    table = np.array([[7, 2, 11, 0], [3, 9, 5, 1], [10, -1, -1, -1], [4, 4, 4, 4]], np.int32)
    if spoiled:
        table[1, 1:3] = 12, -2

    def launch(device: Device, on: Mapping[str, Any]) -> None:
        blocks_into_cohort(device, on["source_k"], on["source_v"], table=on["table"], k=on["k"], v=on["v"], places=_places(on))

    def run(source: NDArray[Any], row: int) -> NDArray[np.float64]:
        return paged_run(source, table_W=table[row], length=length[row])

    def fill(source: NDArray[Any], draw: np.random.Generator) -> None:
        for row in range(3):
            for position in range(min(length[row], 4 * BLOCK_SIZE)):
                if 0 <= (block := table[row, position // BLOCK_SIZE]) < len(source):
                    live = source[block, :, position % BLOCK_SIZE]
                    live[:] = elements(draw.standard_normal(live.shape), dtype)

    source = (12, 2, BLOCK_SIZE, dim)
    return _case(name, dtype, source, fill, run, more={"table": table}, columns=columns, lead=lead, length=length, launch=launch)


def _places(on: Mapping[str, Any]) -> Places:
    return Places(on["member"], on["lead"], on["length"])


def _case(
    name: str,
    dtype: str,
    source: tuple[int, ...],
    fill: Callable[[NDArray[Any], np.random.Generator], None],
    run: Run,
    *,
    more: Arrays,
    columns: int,
    lead: tuple[int, ...],
    length: tuple[int, ...],
    launch: Callable[[Device, Mapping[str, Any]], None],
) -> Case:
    """Rows 0 to 2 go to members 4, 1 and 0; a fourth row is padding, and members 2 and 3 are nobody's."""
    draw = np.random.default_rng(columns)
    goal = (MEMBERS, source[1], columns, source[3])
    start: Arrays = {key: poison(source, dtype) for key in ("source_k", "source_v")}
    for array in start.values():
        fill(array, draw)
    member = np.array([4, 1, 0, -1], np.int32)
    start |= more | {"member": member, "lead": np.array([*lead, 0], np.int32), "length": np.array([*length, columns], np.int32)}
    start |= {key: poison(goal, dtype) for key in ("k", "v")}
    expected = {}
    for key in ("k", "v"):
        expected[key] = np.full(goal, np.nan)
        for row in range(3):
            if length[row] >= 0:
                whole = run(floats(start[f"source_{key}"]), row)
                expected[key][member[row]] = put_row(whole, lead=lead[row], columns=columns)
    return Case(
        name=name,
        arrays=lambda: {key: array.copy() for key, array in start.items()},
        launch=launch,
        expected=expected,
        untouched=("k", "v"),
    )
