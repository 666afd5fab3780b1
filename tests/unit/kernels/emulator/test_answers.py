"""What the emulated machine computes, against NumPy: collectives, atomics, intrinsics, the tensor core's layouts, cp.async."""

import numpy as np
import pytest
import torch

from kernels.proof.case import bfloat16, floats
from tests.unit.kernels.emulator.probes import device, kernel, names

LANE = np.arange(32)
IN = np.random.default_rng(0).permutation(40)[:32].astype(np.uint32)
IN[IN == 0] = 40


def bit_set(which):
    return int(np.sum(1 << LANE[which].astype(np.uint64)))


def everywhere(value):
    return np.full(32, value, np.uint32)


WARP = {
    "shuffle_from_lane_5": everywhere(IN[5]),
    "shuffle_within_eights": IN[LANE // 8 * 8 + 3],
    "shuffle_xor_6": IN[LANE ^ 6],
    "shuffle_up_3": IN[np.where(LANE < 3, LANE, LANE - 3)],
    "shuffle_down_3": IN[np.where(LANE > 28, LANE, LANE + 3)],
    "shuffle_down_within_sixteens": IN[np.where(LANE % 16 > 12, LANE, LANE + 3)],
    "shuffle_of_doubles": IN[::-1],
    "ballot_of_odd": everywhere(bit_set(IN % 2 == 1)),
    "any_is_7": everywhere(7 in IN),
    "all_are_below_1000": everywhere(1),
    "match_of_thirds": np.array([bit_set(IN[i] % 3 == IN % 3) for i in LANE], np.uint32),
    "sum": everywhere(IN.sum()),
    "maximum": everywhere(IN.max()),
    "sum_of_the_first_eight": np.where(LANE < 8, IN[:8].sum(), 0),
    "block_counts_odd": everywhere((IN % 2).sum()),
    "block_or": everywhere(7 in IN),
    "block_and": everywhere(1),
    "atomic_add": everywhere(10 + IN.sum()),
    "atomic_max": everywhere(IN.max()),
    "atomic_or": everywhere(2**32 - 1),
    "atomic_exchange_and_swap": np.array([3, 5, 5, 9] + [0] * 28),
    "bits": np.array(
        [int(v).bit_count() | ((int(v) & -int(v)).bit_length() << 8) | ((32 - int(v).bit_length()) << 16) for v in IN]
    ),
    "high_half_of_a_product": np.array([int(v) * 0x10000001 % 2**32 * 0xFEDCBA98 >> 32 for v in IN]),
}
OTHERS = (
    "rounded_to_bfloat16",
    "product_of_matrices",
    "matrices_loaded",
    "matrices_loaded_transposed",
    "copied_or_zero",
)
MODES = {"fast": device(), "check": device(check=True)}


def answer(name, given, size, *, mode, seed, shared_bytes=0):
    on, out = MODES[mode], np.zeros(size, np.uint32)
    on.seed = seed
    on.launch(kernel("answers", name, shared_bytes=shared_bytes, block=32), (1,), (given, out))
    return out


@pytest.fixture(params=["fast", "check"])
def mode(request):
    return request.param


@pytest.fixture(params=[0, 1, 6])
def seed(request):
    return request.param


def test_every_kernel_of_the_file_is_run():
    assert sorted([*WARP, *OTHERS]) == sorted(names("answers"))


@pytest.mark.parametrize("name", WARP)
def test_a_warp_answers_as_numpy_does(name, mode, seed):
    np.testing.assert_array_equal(answer(name, IN, 32, mode=mode, seed=seed), WARP[name])


def test_bfloat16_is_rounded_to_nearest_even(mode):
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.14159, 3e38, 1e-40, np.inf] * 4, np.float32)
    got = answer("rounded_to_bfloat16", values.view(np.uint32), 32, mode=mode, seed=0)
    want = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy().astype(np.uint32)
    np.testing.assert_array_equal(got, want | 0x3F800000)


def test_the_tensor_core_multiplies_matrices(mode, seed):
    draw = np.random.default_rng(1)
    a, b = bfloat16(draw.standard_normal((16, 16))), bfloat16(draw.standard_normal((16, 8)))
    c = draw.standard_normal((16, 8)).astype(np.float32)
    given = np.concatenate([a.ravel().view(np.uint32), b.ravel().view(np.uint32), c.ravel().view(np.uint32)])
    got = answer("product_of_matrices", given, 128, mode=mode, seed=seed).view(np.float32).reshape(16, 8)
    np.testing.assert_allclose(got, floats(a) @ floats(b) + c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["matrices_loaded", "matrices_loaded_transposed"])
def test_a_lane_gets_two_neighbours_of_each_matrix(name, mode, seed):
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    got = answer(name, matrices.ravel().view(np.uint32), 128, mode=mode, seed=seed, shared_bytes=512)
    seen = matrices.swapaxes(1, 2) if name.endswith("transposed") else matrices
    pairs = np.ascontiguousarray(seen).reshape(4, 32, 2)  # lane t: row t / 4, columns 2 (t % 4) and the next
    np.testing.assert_array_equal(got.view(np.uint16).reshape(32, 4, 2), pairs.swapaxes(0, 1))


def test_copies_that_are_not_valid_are_zero(mode, seed):
    given = np.arange(1, 129, dtype=np.uint32)
    got = answer("copied_or_zero", given, 128, mode=mode, seed=seed, shared_bytes=512)
    np.testing.assert_array_equal(got, np.where(np.arange(128) // 4 % 2 == 0, given, 0))
