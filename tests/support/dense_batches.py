"""Drives a backend in the dense layouts as a scheduler with one plan in flight would: prompts by length, decodes as one cohort."""

import dataclasses
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from executor_svc.backends.base import Backend
from executor_svc.plan import ALIGNED, CACHE_IN, CACHE_NOTHING, CACHE_RESET, STRIPPED, Batch, Sampled
from tests.support.batches import Driver, Seq


class DenseDriver(Driver):
    """As `Driver`; each sequence lives in a slot of its own. `cohort` is who is assembled, `steps` what each step returned."""

    def __init__(self, backend: Backend, *, layout: int, granted: bool = True, seed: int = 1) -> None:
        super().__init__(backend, seed=seed)
        self.layout = layout
        self.cohort: list[int] = []
        self.steps: list[Sampled] = []
        self._slots: dict[int, int] = {}
        self._op = CACHE_NOTHING
        backend.reset()
        backend.pipeline.begin_session()
        backend.pipeline.set_ragged_batch_admission(granted=granted)

    def slot(self, sequence: Seq) -> int:
        return self._slots.setdefault(id(sequence), len(self._slots))

    def batch(self, rows: Sequence[tuple[Seq, int]], **options: object) -> Batch:
        slots = np.array([self.slot(sequence) for sequence, _ in rows], np.int32)
        return dataclasses.replace(super().batch(rows, **options), layout=self.layout, cache_op=self._op, slots=slots)

    def step(self, rows: Sequence[tuple[Seq, int]], *, op: int, **options: object) -> Sampled:
        self._op = op
        self.steps.append(self.run(rows, **options))
        return self.steps[-1]

    def prompts(self, sequences: Sequence[Seq], **options: object) -> None:
        """Whole prompts, those of one start and length together."""

        def key(sequence: Seq) -> tuple[int, int]:
            return sequence.computed, sequence.pending

        for (start, count), group in groupby(sorted(sequences, key=key), key):
            self.step([(sequence, count) for sequence in group], op=CACHE_IN if start else CACHE_RESET, **options)
        self.cohort = []

    def decode(self, sequences: Sequence[Seq], **options: object) -> Sampled:
        """One token each: IN when the cohort is another, and in every step of the stripped layout."""
        slots = [self.slot(sequence) for sequence in sequences]
        changed = slots != self.cohort
        self.cohort = slots
        op = CACHE_IN if changed or self.layout == STRIPPED else CACHE_NOTHING
        return self.step([(sequence, 1) for sequence in sequences], op=op, **options)


LAYOUTS = {"aligned": ALIGNED, "stripped": STRIPPED}
