"""Cosines and sines of the rotary embedding, computed once in float32 as Hugging Face does, so that results agree to rounding."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from executor_svc.model.config import RopeConfig
from executor_svc.model.errors import UnsupportedModel


def rope_tables(rope: RopeConfig, *, head_dim: int, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin), each f32 [num_positions, head_dim / 2]; row p is the rotation of position p."""
    frequencies = _frequencies(rope, head_dim)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    return angles.cos().contiguous(), angles.sin().contiguous()


def rope_arrays(rope: RopeConfig, *, head_dim: int, num_positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The same for kernels."""
    cos, sin = rope_tables(rope, head_dim=head_dim, num_positions=num_positions)
    return cos.numpy(), sin.numpy()


def _frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    base = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if rope.divisors:
        return base / torch.tensor(rope.divisors, dtype=torch.float32)
    if rope.kind == "default":
        return base
    if rope.kind == "linear":
        return base / rope.factor
    if rope.kind == "llama3":
        return _llama3(base, rope)
    raise UnsupportedModel(f"rope scaling {rope.kind!r} is not supported; known: default, linear, llama3")


def _llama3(base: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Long waves are slowed by `factor`, short ones kept, those between blended by how often they turn in the original context."""
    waves = 2 * math.pi / base
    turns = rope.original_max_position / waves
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    middle = (1 - blend) * base / rope.factor + blend * base
    slowed = torch.where(turns < rope.low_freq_factor, base / rope.factor, base)
    is_middle = (turns >= rope.low_freq_factor) & (turns <= rope.high_freq_factor)
    return torch.where(is_middle, middle, slowed)
