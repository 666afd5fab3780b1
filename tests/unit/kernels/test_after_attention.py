"""One call from attention to attention: the bits of its parts one after the other, near the reference, whatever the batch."""

from dataclasses import replace

import numpy as np
import pytest

from kernels.cpu.after_attention import AfterAttention, Workspace, after_attention
from kernels.cpu.crew import num_threads, set_num_threads
from kernels.cpu.gated_mul import gelu_mul, silu_mul
from kernels.cpu.integer_linear import integer_linear, packed, rotated
from kernels.cpu.rms_norm import add_rms_norm, rms_norm
from kernels.group_weights import GROUP, GroupWeights
from kernels.packed_weights import ROTATED, PackedWeights
from kernels.reference.after_attention import after_attention as reference
from kernels.rotated_weights import RotatedWeights

ATTENDED, HIDDEN, GATED, QKV = 96, 64, 160, 176
PLAIN = {"sandwich": False, "qkv": True, "bias": False, "gelu": False, "bits": 4}
KINDS = {
    "llama": {},
    "last layer": {"qkv": False},
    "qwen2": {"bias": True},
    "gemma3": {"sandwich": True, "gelu": True},
    "8 bits": {"bits": 8},
    "rotated": {"bits": ROTATED, "sandwich": True},
}


def weights_of(num_out: int, num_in: int, *, bits: int, seed: int) -> GroupWeights | RotatedWeights:
    rng = np.random.default_rng(seed)
    if bits == ROTATED:
        return rotated((rng.standard_normal((num_out, num_in)) * 0.15).astype(np.float32))
    shape = (num_out, num_in // GROUP)
    scale = (rng.uniform(0.5, 1.5, shape) * (0.02 if bits == 4 else 0.002)).astype(np.float16)
    if bits == 8:
        return GroupWeights(rng.integers(-127, 128, (num_out, num_in)).astype(np.int8), scale, None)
    return GroupWeights(rng.integers(0, 16, (num_out, num_in)).astype(np.uint8), scale, (scale * -7.5).astype(np.float16))


def parts_of(kind: str) -> dict:
    """Arguments of the reference."""
    told = PLAIN | KINDS[kind]
    rng = np.random.default_rng(1)

    def norm():
        return rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)

    return {
        "out": weights_of(HIDDEN, ATTENDED, bits=told["bits"], seed=2),
        "gate_up": weights_of(2 * GATED, HIDDEN, bits=told["bits"], seed=3),
        "down": weights_of(HIDDEN, GATED, bits=told["bits"], seed=4),
        "post_norm": norm(),
        "next_norm": norm(),
        "attention_norm": norm() if told["sandwich"] else None,
        "gated_norm": norm() if told["sandwich"] else None,
        "qkv": weights_of(QKV, HIDDEN, bits=told["bits"], seed=5) if told["qkv"] else None,
        "qkv_bias": rng.standard_normal(QKV).astype(np.float32) if told["bias"] else None,
        "eps": 1e-5,
        "gelu": told["gelu"],
    }


def layer_of(kind: str) -> AfterAttention:
    parts = parts_of(kind)
    return AfterAttention(
        **{name: packed(part) if isinstance(part, GroupWeights | RotatedWeights) else part for name, part in parts.items()}
    )


def batch(num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(num_tokens)
    return (rng.standard_normal((num_tokens, width)).astype(np.float32) for width in (ATTENDED, HIDDEN))


def rng_rows(num_tokens: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((num_tokens, width)).astype(np.float32)


def space(num_tokens: int) -> Workspace:
    return Workspace.of(num_tokens, attended=ATTENDED, hidden=HIDDEN, intermediate=GATED, qkv=QKV)


def run(layer: AfterAttention, attended: np.ndarray, residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(new residual, result), the arguments unchanged."""
    residual = residual.copy()
    given = attended.copy()
    result = after_attention(given, residual_TH=residual, layer=layer, workspace=space(len(attended)))
    return residual, result.copy()


def linear(x: np.ndarray, weights: PackedWeights) -> np.ndarray:
    out = np.empty((len(x), weights.num_out), np.float32)
    integer_linear(x, weights=weights, out_MN=out)
    return out


def part_by_part(layer: AfterAttention, attended: np.ndarray, residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    residual, x = residual.copy(), np.empty_like(residual)
    part = linear(attended, layer.out)
    if layer.attention_norm is not None:
        rms_norm(part, weight_H=layer.attention_norm, eps=layer.eps, out_TH=part)
    add_rms_norm(part, residual_TH=residual, weight_H=layer.post_norm, eps=layer.eps, out_TH=x)
    gated = np.empty((len(x), layer.down.num_in), np.float32)
    (gelu_mul if layer.gelu else silu_mul)(linear(x, layer.gate_up), out_TI=gated)
    part = linear(gated, layer.down)
    if layer.gated_norm is not None:
        rms_norm(part, weight_H=layer.gated_norm, eps=layer.eps, out_TH=part)
    add_rms_norm(part, residual_TH=residual, weight_H=layer.next_norm, eps=layer.eps, out_TH=x)
    if layer.qkv is None:
        return residual, x
    qkv = linear(x, layer.qkv)
    return residual, qkv if layer.qkv_bias is None else qkv + layer.qkv_bias


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request):
    before = num_threads()
    set_num_threads(request.param)
    yield request.param
    set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 133])
def test_equals_its_parts_one_after_the_other_in_every_bit(kind, num_tokens, threads):
    layer = layer_of(kind)
    attended, residual = batch(num_tokens)
    for ours, theirs in zip(run(layer, attended, residual), part_by_part(layer, attended, residual), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_reference(kind):
    """An input on the edge between two codes may be rounded either way: so a few elements differ by a step, the mean does not."""
    attended, residual = batch(40)
    expected = reference(attended, residual_TH=residual, **parts_of(kind))
    for ours, theirs in zip(run(layer_of(kind), attended, residual), expected, strict=True):
        off = np.abs(ours - theirs) / np.abs(theirs).max()
        assert off.mean() < 2e-5
        assert off.max() < 5e-3


def test_a_row_has_the_same_bits_alone(threads):
    layer = layer_of("llama")
    attended, residual = batch(37)
    whole = run(layer, attended, residual)
    for row in (0, 17, 36):
        alone = run(layer, attended[row : row + 1], residual[row : row + 1])
        for ours, theirs in zip(alone, whole, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[row])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_stays_alone(bad):
    layer = layer_of("gemma3")
    attended, residual = batch(6)
    healthy = run(layer, attended, residual)[1]
    attended[2, 5] = bad
    broken = run(layer, attended, residual)[1]
    assert np.isnan(broken[2]).all()
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(broken[others], healthy[others])


def test_arrays_that_do_not_fit_are_refused_by_name():
    layer = layer_of("llama")
    attended, residual = batch(3)

    def refused(match: str, *, attended=attended, residual=residual, workspace=None) -> None:
        before = residual.copy()
        with pytest.raises(ValueError, match=match):
            after_attention(attended, residual_TH=residual, layer=layer, workspace=workspace or space(3))
        np.testing.assert_array_equal(residual, before)

    refused("residual_TH", workspace=space(4))
    refused("residual_TH", residual=residual[:2].copy())
    refused("attended_TA", attended=attended.astype(np.float64))
    refused("attended_TA", attended=attended[:, :64].copy())
    narrow = rng_rows(3, 32)
    refused("workspace", attended=narrow, workspace=Workspace.of(3, attended=32, hidden=HIDDEN, intermediate=GATED, qkv=QKV))
    refused("attended_TA", workspace=Workspace.of(3, attended=32, hidden=HIDDEN, intermediate=GATED, qkv=QKV))
    refused("workspace", workspace=Workspace.of(3, attended=ATTENDED, hidden=HIDDEN, intermediate=GATED, qkv=QKV - 1))
    refused("workspace", workspace=Workspace.of(3, attended=ATTENDED, hidden=HIDDEN, intermediate=32, qkv=QKV))


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("post_norm", lambda layer: np.ones(3, np.float32)),
        ("next_norm", lambda layer: layer.next_norm.astype(np.float64)),
        ("gated_norm", lambda layer: np.ones((HIDDEN, 1), np.float32)),
        ("qkv_bias", lambda layer: np.ones(1, np.float32)),
        ("down", lambda layer: layer.out),
        ("gate_up", lambda layer: layer.out),
        ("qkv", lambda layer: layer.out),
        ("out", lambda layer: replace(layer.out, panel=24 - layer.out.panel)),
        ("qkv", lambda layer: replace(layer.qkv, panel=24 - layer.qkv.panel)),
    ],
)
def test_a_layer_whose_parts_do_not_fit_is_never_made(name, made):
    layer = layer_of("llama")
    with pytest.raises(ValueError, match=name):
        replace(layer, **{name: made(layer)})


def test_rows_that_two_matrices_read_are_rounded_one_way():
    grouped, turned = layer_of("llama"), layer_of("rotated")
    with pytest.raises(ValueError, match="gate_up and qkv"):
        replace(grouped, qkv=turned.qkv)
    both = replace(grouped, out=turned.out, down=turned.down)
    attended, residual = batch(7)
    for ours, theirs in zip(run(both, attended, residual), part_by_part(both, attended, residual), strict=True):
        np.testing.assert_array_equal(ours, theirs)
