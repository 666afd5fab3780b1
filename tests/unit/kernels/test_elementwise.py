"""rms_norm, silu_mul, gelu_mul, rope_kv_write, copy_blocks: against references, torch and transformers; bits by row; bounds."""

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from kernels.cpu import crew
from kernels.cpu.copy_blocks import copy_blocks
from kernels.cpu.gated_mul import gelu_mul, silu_mul
from kernels.cpu.rms_norm import add_rms_norm, rms_norm
from kernels.cpu.rope_kv_write import rope_kv_write
from kernels.layout import cache_shapes
from kernels.reference import gated_mul as gated_reference
from kernels.reference import rms_norm as norm_reference
from kernels.reference import rope_kv_write as rope_reference


@pytest.fixture(params=[1, 2])
def threads(request):
    before = crew.num_threads()
    crew.set_num_threads(request.param)
    yield request.param
    crew.set_num_threads(before)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("shape", [(1, 576), (200, 576), (3, 37), (5, 8)])
def test_rms_norm(shape, threads):
    x, weight, out = normal(*shape), normal(shape[1], seed=1), np.full(shape, np.nan, np.float32)
    rms_norm(x, weight_H=weight, eps=1e-5, out_TH=out)
    np.testing.assert_allclose(out, norm_reference.rms_norm(x, weight_H=weight, eps=1e-5), rtol=2e-6, atol=1e-7)
    oracle = LlamaRMSNorm(shape[1], eps=1e-5)
    oracle.weight.data = torch.from_numpy(weight)
    np.testing.assert_allclose(out, oracle(torch.from_numpy(x)).detach().numpy(), rtol=2e-6, atol=1e-7)
    for row in range(shape[0]):
        alone = np.empty((1, shape[1]), np.float32)
        rms_norm(x[row : row + 1].copy(), weight_H=weight, eps=1e-5, out_TH=alone)
        np.testing.assert_array_equal(alone[0], out[row])


def test_add_rms_norm_in_place(threads):
    x, residual, weight = normal(200, 576), normal(200, 576, seed=1), normal(576, seed=2)
    expected_residual, expected = norm_reference.add_rms_norm(x, residual_TH=residual, weight_H=weight, eps=1e-5)
    add_rms_norm(x, residual_TH=residual, weight_H=weight, eps=1e-5, out_TH=x)
    np.testing.assert_array_equal(residual, expected_residual)
    np.testing.assert_allclose(x, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1536, 24, 7])
def test_silu_mul(size, threads):
    x = normal(40, 2 * size) * 10
    x[0, 0], x[0, 1] = 200, -200
    out = np.full((40, size), np.nan, np.float32)
    silu_mul(x, out_TI=out)
    np.testing.assert_allclose(out, gated_reference.silu_mul(x), rtol=1e-6, atol=1e-30)
    gate, up = torch.from_numpy(x).chunk(2, -1)
    np.testing.assert_allclose(out, (torch.nn.functional.silu(gate) * up).numpy(), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("size", [1536, 24, 7])
def test_gelu_mul(size, threads):
    """Errors are measured against |gate up|: torch subtracts near numbers where gates are negative."""
    x = normal(40, 2 * size) * 10
    x[0, 0], x[0, 1] = 200, -200
    out = np.full((40, size), np.nan, np.float32)
    gelu_mul(x, out_TI=out)
    gate, up = torch.from_numpy(x).chunk(2, -1)
    scale, theirs = (gate * up).abs().numpy(), torch.nn.functional.gelu(gate, approximate="tanh") * up
    assert (np.abs(out - gated_reference.gelu_mul(x)) <= 5e-7 * scale).all()
    assert (np.abs(out - theirs.numpy()) <= 1e-6 * scale).all()
    exact = torch.nn.functional.gelu(gate) * up
    assert not (np.abs(out - exact.numpy()) <= 1e-6 * scale).all()
    for row in range(0, 40, 13):
        alone = np.empty((1, size), np.float32)
        gelu_mul(x[row : row + 1].copy(), out_TI=alone)
        np.testing.assert_array_equal(alone[0], out[row])


@pytest.mark.parametrize("kernel", [silu_mul, gelu_mul])
def test_activations_pass_nan_on(kernel):
    out = np.zeros((1, 32), np.float32)
    kernel(np.full((1, 64), np.nan, np.float32), out_TI=out)
    assert np.isnan(out).all()


def rotary(length, pairs, base=10000.0):
    angles = np.outer(np.arange(length), base ** (-np.arange(pairs) / pairs))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "pairs", "norms"), [(9, 3, 64, 32, False), (4, 2, 128, 64, True), (2, 1, 20, 8, True)]
)
def test_rope_kv_write(heads, kv_heads, head_dim, pairs, norms, threads):
    num_tokens, num_blocks = 37, 6
    rng = np.random.default_rng(0)
    qkv = normal(num_tokens, (heads + 2 * kv_heads) * head_dim)
    cos, sin = rotary(128, pairs)
    positions = rng.integers(0, 128, num_tokens).astype(np.int32)
    slots = rng.permutation(num_blocks * 16)[:num_tokens].astype(np.int32)
    slots[5] = -1
    weights = (normal(head_dim, seed=1), normal(head_dim, seed=2)) if norms else (None, None)
    common = {
        "cos_LE": cos,
        "sin_LE": sin,
        "positions_T": positions,
        "slot_mapping_T": slots,
        "q_norm_D": weights[0],
        "k_norm_D": weights[1],
        "eps": 1e-6,
    }
    shapes = cache_shapes(num_blocks, num_kv_heads=kv_heads, head_dim=head_dim)
    k, v = (np.full(shape, np.nan, np.float32) for shape in shapes)
    k64, v64 = (np.full(shape, np.nan, np.float64) for shape in shapes)
    q = np.full((num_tokens, heads, head_dim), np.nan, np.float32)
    rope_kv_write(qkv, **common, k_BKDP=k, v_BKPD=v, q_TND=q)
    expected = rope_reference.rope_kv_write(qkv, **common, k_BKDP=k64, v_BKPD=v64, num_heads=heads)
    for mine, theirs in ((q, expected), (k, k64), (v, v64)):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6, equal_nan=True)


def test_rope_writes_the_nearest_halves(threads):
    cos, sin = rotary(50, 32)
    qkv = normal(50, 3 * 64) * 20
    qkv[3, 70], qkv[4, 140] = 1e5, -1e5
    shapes = cache_shapes(4, num_kv_heads=1, head_dim=64)
    caches = [[np.zeros(shape, kind) for shape in shapes] for kind in (np.float32, np.float16)]
    at = np.arange(50, dtype=np.int32)
    for k, v in caches:
        q = np.empty((50, 1, 64), np.float32)
        rope_kv_write(qkv, cos_LE=cos, sin_LE=sin, positions_T=at, slot_mapping_T=at, k_BKDP=k, v_BKPD=v, q_TND=q)
    with np.errstate(over="ignore"):
        for whole, half in zip(*caches, strict=True):
            np.testing.assert_array_equal(half, whole.astype(np.float16))
    assert np.isinf(caches[1][0]).any()
    assert np.isinf(caches[1][1]).any()


def test_rope_equals_transformers_to_the_bit():
    cos, sin = rotary(50, 32)
    qkv = normal(50, 3 * 64)
    k, v = (np.zeros(shape, np.float32) for shape in cache_shapes(4, num_kv_heads=1, head_dim=64))
    q = np.empty((50, 1, 64), np.float32)
    at = np.arange(50, dtype=np.int32)
    rope_kv_write(qkv, cos_LE=cos, sin_LE=sin, positions_T=at, slot_mapping_T=at, k_BKDP=k, v_BKPD=v, q_TND=q)
    twice = [torch.from_numpy(np.concatenate([table, table], -1))[None] for table in (cos, sin)]
    theirs = apply_rotary_pos_emb(*(torch.from_numpy(qkv[None, None, :, i * 64 : (i + 1) * 64].copy()) for i in range(2)), *twice)
    np.testing.assert_array_equal(q[:, 0], theirs[0][0, 0].numpy())
    np.testing.assert_array_equal(k.transpose(0, 3, 1, 2).reshape(-1, 64)[:50], theirs[1][0, 0].numpy())


@pytest.mark.parametrize(("position", "slot"), [(-1, 3), (50, 3), (3, 64)])
def test_a_token_out_of_bounds_is_nan_alone_and_writes_nothing(position, slot):
    cos, sin = rotary(50, 32)
    k, v = (np.zeros(shape, np.float32) for shape in cache_shapes(4, num_kv_heads=1, head_dim=64))
    q = np.zeros((2, 1, 64), np.float32)
    positions, slots = np.array([position, 4], np.int32), np.array([slot, 4], np.int32)
    rope_kv_write(normal(2, 192), cos_LE=cos, sin_LE=sin, positions_T=positions, slot_mapping_T=slots, k_BKDP=k, v_BKPD=v, q_TND=q)
    assert np.isnan(q[0]).all()
    assert np.isfinite(q[1]).all()
    assert not np.delete(k.transpose(0, 3, 1, 2).reshape(-1, 64), 4, 0).any()


def test_copy_blocks_reads_every_source_first():
    k, v = (normal(*shape) for shape in cache_shapes(5, num_kv_heads=2, head_dim=8))
    before = k.copy(), v.copy()
    copy_blocks(k, v_BKPD=v, src_M=np.array([0, 1], np.int32), dst_M=np.array([1, 2], np.int32))
    for now, then in zip((k, v), before, strict=True):
        np.testing.assert_array_equal(now, then[[0, 0, 1, 3, 4]])


@pytest.mark.parametrize(("src", "dst"), [([0], [1, 2]), ([0], [5]), ([-1], [0]), ([0, 1], [2, 2])])
def test_copy_blocks_refuses_bad_pairs(src, dst):
    k, v = (normal(*shape) for shape in cache_shapes(5, num_kv_heads=2, head_dim=8))
    with pytest.raises(ValueError, match=r"pair|cache|same"):
        copy_blocks(k, v_BKPD=v, src_M=np.array(src, np.int32), dst_M=np.array(dst, np.int32))


def test_bad_shapes_are_refused():
    x, out = normal(2, 8), np.empty((2, 8), np.float32)
    with pytest.raises(ValueError, match="fit"):
        rms_norm(x, weight_H=normal(9), eps=1e-5, out_TH=out)
    with pytest.raises(ValueError, match="residual"):
        add_rms_norm(x, residual_TH=normal(3, 8), weight_H=normal(8), eps=1e-5, out_TH=out)
    with pytest.raises(ValueError, match="wide"):
        silu_mul(normal(2, 9), out_TI=out)
    with pytest.raises(ValueError, match="wide"):
        gelu_mul(normal(2, 9), out_TI=out)
    with pytest.raises(ValueError, match="want"):
        rms_norm(x.astype(np.float64), weight_H=normal(8), eps=1e-5, out_TH=out)
