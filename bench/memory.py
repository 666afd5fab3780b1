"""How much memory a server needs for so many rows of such a length, from the model's configuration, before anything is started.

Bounds, not guesses: weights, keys and values count as float32 whatever they are, every block as touched, and a dense cohort as long
as its longest row, three times over, since a membership change copies the old cohort (and the prompts that enter) into a new one
while the old one stands.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import psutil

from executor_svc.model.place import check_place

BLOCK_SIZE: Final = 16
HEADROOM: Final = 128
"""Columns behind a row's last token that a cohort may allocate: growth, tile and rounding (`executor_svc.layouts.cohort`)."""
FEWEST_BLOCKS: Final = 64
"""An executor warms up with one step as long as its budget, which must fit too."""
PROCESSES_BYTES: Final = 1 << 30
"""Interpreters and libraries of executor, scheduler and gateway."""
MARGIN: Final = 0.05
"""Share of what is available that stays free."""
_CGROUP: Final = Path("/sys/fs/cgroup")


class MemoryUnknown(Exception):
    """Neither fits nor does not fit: what is needed or what there is cannot be found out. Says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What of a model decides about memory.

    Attributes:
        token_bytes: keys and values of one token in all layers.
        weight_bytes: of all tensors in float32.
        row_copies: copies when one row is joined into a cohort, keys and values of each layer; 0 where nothing is ever copied.
        max_position: longest sequence.
    """

    token_bytes: int
    weight_bytes: int
    row_copies: int
    max_position: int


FAKE: Final = Geometry(token_bytes=8, weight_bytes=0, row_copies=0, max_position=4096)


def geometry_of(model: str, *, backend: str) -> Geometry:
    """Of a model on disk ("" = the default one). Raises MemoryUnknown when it cannot be opened."""
    if backend == "fake":
        return FAKE
    try:
        if model:
            check_place(Path(model))
        # not before: what is wrong should be told at once, and these take seconds
        from executor_svc.model.config import expected_tensors
        from executor_svc.model.load import open_model

        config = open_model(Path(model) if model else None).config
    except Exception as error:
        raise MemoryUnknown(f"the model's configuration cannot be read: {error}") from error
    head = config.num_kv_heads * config.head_dim
    return Geometry(
        token_bytes=2 * 4 * config.num_layers * head,
        weight_bytes=4 * sum(prod(shape) for shape in expected_tensors(config).values()),
        row_copies=2 * config.num_layers,
        max_position=config.max_position,
    )


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one server needs at most."""

    weights: int
    blocks: int
    cohorts: int

    @property
    def total(self) -> int:
        """All of it, processes included."""
        return self.weights + self.blocks + self.cohorts + PROCESSES_BYTES


def num_blocks(num_rows: int, *, longest: int) -> int:
    """Blocks with which `num_rows` rows of `longest` tokens fit, in a dense cohort too."""
    return max(FEWEST_BLOCKS, num_rows * -(-(longest + HEADROOM) // BLOCK_SIZE))


def need_of(geometry: Geometry, *, num_rows: int, longest: int, dense: bool) -> Need:
    """What a server needs for `num_rows` rows of at most `longest` tokens."""
    blocks = num_blocks(num_rows, longest=longest) * BLOCK_SIZE * geometry.token_bytes
    return Need(weights=geometry.weight_bytes, blocks=blocks, cohorts=3 * blocks if dense and geometry.row_copies else 0)


def available_bytes() -> int:
    """What may be used here: memory that is available, or less where a control group says so. Raises MemoryUnknown."""
    try:
        free = int(psutil.virtual_memory().available)
    except (OSError, RuntimeError, AttributeError) as error:
        raise MemoryUnknown(f"the system does not say how much memory is available: {error}") from error
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return free if limit == "max" else min(free, max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        return free
