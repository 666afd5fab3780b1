"""Dialogues on disk: safetensors files of a few hundred each, numbered, written whole or not at all."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from executor_svc.training.generate import Finished


@dataclass(frozen=True, slots=True)
class Shard:
    """Dialogues behind each other.

    Attributes:
        token_ids: [T] of all. hidden: f16 [T, H], zeros behind a dialogue's last token.
        starts: i64 [N + 1]. answers: i64 [N], where in each dialogue its answer begins. numbers: i64 [N].
    """

    token_ids: NDArray[Any]
    hidden: NDArray[np.float16]
    starts: NDArray[np.int64]
    answers: NDArray[np.int64]
    numbers: NDArray[np.int64]


def write_shard(folder: Path, finished: list[Finished]) -> Path:
    """Writes the next file."""
    finished = sorted(finished, key=lambda one: one.turn.number)
    width = finished[0].hidden.shape[1]
    last = np.zeros((1, width), np.float16)
    tensors = {
        "token_ids": np.concatenate([one.token_ids for one in finished]),
        "hidden": np.concatenate([part for one in finished for part in (one.hidden, last)]),
        "starts": np.cumsum([0, *(len(one.token_ids) for one in finished)]),
        "answers": np.array([len(one.turn.prompt) for one in finished], np.int64),
        "numbers": np.array([one.turn.number for one in finished], np.int64),
    }
    path = folder / f"shard-{len(shards_in(folder)):05d}.safetensors"
    part = path.with_suffix(".part")
    save_file(tensors, part)
    part.rename(path)
    return path


def shards_in(folder: Path) -> list[Path]:
    """Whole files, in order."""
    return sorted(folder.glob("shard-*.safetensors"))


def read_shard(path: Path) -> Shard:
    """One file, in memory."""
    return Shard(**load_file(path))


def column(path: Path, name: str) -> NDArray[Any]:
    """One column of a file: hidden states, nearly all of it, stay on disk."""
    with safe_open(path, framework="numpy") as file:
        values: NDArray[Any] = file.get_tensor(name)
    return values


def count_tokens(folder: Path) -> int:
    """Tokens of all dialogues there are."""
    return sum(int(column(path, "starts")[-1]) for path in shards_in(folder))
