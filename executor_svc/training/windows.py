"""Dialogues cut into windows of one length, in an order of their own in each epoch.

Legend: B windows, T positions, H hidden.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from executor_svc.training.config import TrainDraftSettings
from executor_svc.training.shards import shards_in


@dataclass(frozen=True, slots=True)
class Window:
    """A batch.

    Attributes:
        token_ids: i64 [B, T], 0 behind a dialogue's end.
        before: f32 [B, T, H], the target's state before each position, zeros where there is none. hidden: the one behind it.
        counted: bool [B, T], positions behind which an answer's token stands.
    """

    token_ids: torch.Tensor
    before: torch.Tensor
    hidden: torch.Tensor
    counted: torch.Tensor


class Windows:
    """All windows of a folder, one dialogue each: the last `length` tokens of it. Shards stay on disk until a batch wants a
    piece."""

    def __init__(self, paths: list[Path], *, length: int, keep: Callable[[int], bool]) -> None:
        """`keep`: dialogue number -> whether it belongs here."""
        self._length = length
        self._files: list[Any] = [safe_open(path, framework="numpy") for path in paths]
        self._places: list[tuple[int, int, int, int]] = []
        for index, file in enumerate(self._files):
            starts, answers, numbers = (file.get_tensor(name) for name in ("starts", "answers", "numbers"))
            for begin, end, answer, number in zip(
                starts[:-1].tolist(), starts[1:].tolist(), answers.tolist(), numbers.tolist(), strict=True
            ):
                if keep(number) and end - begin > answer:
                    self._places.append((index, begin, end, begin + answer))

    def __len__(self) -> int:
        """Dialogues."""
        return len(self._places)

    def batch(self, step: int, *, size: int, seed: int) -> Window:
        """The `step`-th batch: every dialogue once an epoch, in an order drawn from seed and epoch."""
        per_epoch = max(1, len(self) // size)
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng((seed, epoch)).permutation(len(self))
        return self.of(order[place * size : (place + 1) * size].tolist())

    def of(self, numbers: list[int]) -> Window:
        """Some dialogues."""
        pieces = [self._piece(*self._places[number]) for number in numbers]
        longest = max(len(tokens) for tokens, *_ in pieces)
        tokens = torch.zeros((len(pieces), longest), dtype=torch.int64)
        width = pieces[0][1].shape[1]
        before, hidden = (torch.zeros((len(pieces), longest, width)) for _ in range(2))
        counted = torch.zeros((len(pieces), longest), dtype=torch.bool)
        for row, (ids, states, first, answer) in enumerate(pieces):
            count = len(ids)
            tokens[row, :count] = torch.from_numpy(ids.astype(np.int64))
            hidden[row, :count] = torch.from_numpy(states[1:].astype(np.float32))
            before[row, :count] = torch.from_numpy(states[:-1].astype(np.float32))
            counted[row, max(0, answer - 1 - first) : count - 1] = True
        return Window(tokens, before, hidden, counted)

    def _piece(self, index: int, begin: int, end: int, answer: int) -> tuple[np.ndarray, np.ndarray, int, int]:
        """Tokens, states from one before the first token on, where the piece begins, where its answer does."""
        first = max(begin, end - self._length)
        file = self._files[index]
        ids = file.get_slice("token_ids")[first:end]
        states = file.get_slice("hidden")[max(begin, first - 1) : end]
        if first == begin:
            states = np.concatenate((np.zeros((1, states.shape[1]), states.dtype), states))
        return ids, states, first, answer


def windows_of(settings: TrainDraftSettings, *, folder: Path, held_out: bool) -> Windows:
    """Those to train on, or those that never are. Raises ValueError when there are none."""
    windows = Windows(shards_in(folder), length=settings.window, keep=lambda number: (number % settings.held_out == 0) == held_out)
    if not len(windows):
        raise ValueError(f"{folder} holds no dialogues: run the stage `generate` first")
    return windows
