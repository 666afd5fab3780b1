"""Cosines and sines of the rotary embedding, computed once in float32 as Hugging Face does, so that results agree to rounding."""

import math
from dataclasses import replace

import numpy as np

from executor_svc.model.config import RopeConfig
from executor_svc.model.errors import UnsupportedModel
from kernels.layout import F32


def rope_tables(rope: RopeConfig, *, head_dim: int, num_positions: int) -> tuple[F32, F32]:
    """(cos, sin), each f32 [num_positions, head_dim / 2]; row p is the rotation of position p."""
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * _frequencies(rope, head_dim)[None, :]
    return np.cos(angles), np.sin(angles)


def _frequencies(rope: RopeConfig, head_dim: int) -> F32:
    turning = rope.rotary_dim or head_dim
    if turning < head_dim:
        fewer = _frequencies(replace(rope, rotary_dim=0), turning)
        return np.concatenate((fewer, np.zeros((head_dim - turning) // 2, np.float32)))
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    base: F32 = np.reciprocal(np.power(np.float32(rope.theta), exponents))
    if rope.divisors:
        return np.divide(base, np.array(rope.divisors, np.float32))
    if rope.kind == "default":
        return base
    if rope.kind == "linear":
        return base / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _llama3(base, rope)
    raise UnsupportedModel(f"rope scaling {rope.kind!r} is not supported; known: default, linear, llama3")


def _llama3(base: F32, rope: RopeConfig) -> F32:
    """Long waves are slowed by `factor`, short ones kept, those between blended by how often they turn in the original context."""
    waves = 2 * math.pi / base
    turns = rope.original_max_position / waves
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    middle = (1 - blend) * base / rope.factor + blend * base
    slowed = np.where(turns < rope.low_freq_factor, base / rope.factor, base)
    is_middle = (turns >= rope.low_freq_factor) & (turns <= rope.high_freq_factor)
    return np.where(is_middle, middle, slowed)
