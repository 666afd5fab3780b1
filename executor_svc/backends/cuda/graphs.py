"""Decode steps as CUDA graphs: one for each of a few numbers of rows, captured when it first runs, at start.

A step of 5 rows runs the graph of 8: rows that are not there feed nothing, and nothing that varies is outside of device memory.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

import torch

from executor_svc.backends.cuda.place import Place, Replay

_FINE: Final = (1, 2, 4)
_STEP: Final = 8


def bucket_sizes(most: int) -> list[int]:
    """1, 2, 4, then every multiple of 8 up to 128 and of 32 behind it, and `most`: no more, for buffers end there."""
    sizes = [*_FINE, *range(_STEP, 129, _STEP)]
    sizes += range(160, most, 32)
    return [*sizes[: bisect_left(sizes, most)], most]


class DecodeGraphs:
    """Runs `step(num_rows)`, which returns the tensors that it fills, again and again with one launch.

    `sizes` are the numbers of rows, rising. Owns the graphs and so the tensors, which are valid until the next run of that size.
    """

    def __init__(self, place: Place, step: Callable[[int], tuple[torch.Tensor, ...]], *, max_rows: int) -> None:
        self._place = place
        self._step = step
        self.sizes = bucket_sizes(max_rows)
        self._graphs: dict[int, tuple[Replay, list[tuple[torch.Tensor, ...]]]] = {}

    def size_for(self, num_rows: int) -> int:
        """Rows of the graph that runs so many; at most the greatest size."""
        return self.sizes[bisect_left(self.sizes, num_rows)]

    def run(self, size: int) -> tuple[torch.Tensor, ...]:
        """The step for `size` rows, a value of `size_for`; what it reads must be in place."""
        if size not in self._graphs:
            made: list[tuple[torch.Tensor, ...]] = []

            def step() -> None:
                made[:] = [self._step(size)]

            self._graphs[size] = (self._place.capture(step), made)
            return made[0]
        replay, made = self._graphs[size]
        replay()
        return made[0]
