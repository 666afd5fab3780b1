"""What rope_kv_write, gated_mul and copy_blocks refuse, and that a token's bits do not depend on the tokens beside it."""

import numpy as np
import pytest

from kernels.cuda.gated_mul import gated_mul, gated_mul_kernel
from kernels.cuda.rope_kv_write import rope_kv_write, rope_kv_write_kernel
from kernels.emulator.device import EmulatedDevice
from kernels.layout import BLOCK_SIZE

HEADS, KV_HEADS, DIM = 4, 2, 64


def rotated(qkv, positions):
    """(q, keys, values) of tokens that go to slots 0, 1, ... of one block."""
    angles = np.random.default_rng(1).uniform(0, 6, (50, DIM // 2)).astype(np.float32)
    k, v = (np.zeros((1, KV_HEADS, BLOCK_SIZE, DIM), np.float32) for _ in range(2))
    q = np.empty((len(qkv), HEADS, DIM), np.float32)
    weight = np.linspace(0.5, 1.5, DIM, dtype=np.float32)
    rope_kv_write(
        EmulatedDevice(),
        qkv,
        cos=np.cos(angles),
        sin=np.sin(angles),
        positions=np.array(positions, np.int32),
        slot_mapping=np.arange(len(qkv), dtype=np.int32),
        k=k,
        v=v,
        num_heads=HEADS,
        q_out=q,
        q_norm=weight,
        k_norm=weight,
        eps=1e-6,
    )
    return q, k[0, :, : len(qkv)].swapaxes(0, 1), v[0, :, : len(qkv)].swapaxes(0, 1)


def test_a_rotated_token_has_the_same_bits_alone():
    qkv = np.random.default_rng(0).standard_normal((3, (HEADS + 2 * KV_HEADS) * DIM), np.float32)
    together = rotated(qkv, (7, 49, 0))
    for token, position in enumerate((7, 49, 0)):
        for mine, alone in zip(together, rotated(qkv[token : token + 1], (position,)), strict=True):
            np.testing.assert_array_equal(mine[token], alone[0])


def test_a_gated_row_has_the_same_bits_alone():
    gate_up = np.random.default_rng(0).standard_normal((3, 2 * 104), np.float32)
    together, alone = np.empty((3, 104), np.float32), np.empty((1, 104), np.float32)
    gated_mul(EmulatedDevice(), gate_up, activation="gelu_tanh", out=together)
    for row in range(3):
        gated_mul(EmulatedDevice(), gate_up[row : row + 1], activation="gelu_tanh", out=alone)
        np.testing.assert_array_equal(together[row], alone[0])


@pytest.mark.parametrize(("head_dim", "rotary"), [(62, 28), (64, 30), (64, 36)])
def test_heads_that_vectors_do_not_fit_are_refused_by_name(head_dim, rotary):
    with pytest.raises(ValueError, match=f"head size {head_dim} with {rotary} rotary pairs"):
        rope_kv_write_kernel(HEADS, KV_HEADS, head_dim, rotary, "float32")


@pytest.mark.parametrize(("inner", "activation"), [(100, "silu"), (96, "relu")])
def test_an_unknown_activation_or_an_odd_row_is_refused_by_name(inner, activation):
    with pytest.raises(ValueError, match=f"{activation} over rows of {inner}"):
        gated_mul_kernel(inner, activation, "float32")


def test_more_rows_than_a_grid_has_are_refused():
    few = np.zeros((1, 16), np.float32)
    with pytest.raises(ValueError, match="65536 rows"):
        gated_mul(EmulatedDevice(), few, activation="silu", out=np.broadcast_to(few[:, :8], (65536, 8)))
