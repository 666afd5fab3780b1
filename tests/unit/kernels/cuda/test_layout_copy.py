"""The layout copies against the dense layouts of the CPU executor, and what they refuse."""

from types import SimpleNamespace

import numpy as np
import pytest

from executor_svc.layouts.align import drop_dead_prefix
from executor_svc.layouts.blocks import read_blocks
from executor_svc.layouts.cohort import Cohort, KvShape
from executor_svc.layouts.normal import NormalSlot
from kernels.cuda.layout_copy import Places, blocks_into_cohort, dense_kernel, rows_into_cohort
from kernels.emulator.device import EmulatedDevice
from kernels.layout import cache_shapes

K, D = 2, 8
LENGTHS = (5, 23, 16)
SHAPE = KvShape(num_layers=1, num_kv_heads=K, head_dim=D, max_bytes=1 << 20)
ROWS = np.arange(3, dtype=np.int32)


def int32(*values):
    return np.array(values, np.int32)


@pytest.fixture
def cohort():
    """Three rows of `LENGTHS` tokens that the CPU executor has joined."""
    draw = np.random.default_rng(0)
    rows = []
    for length in LENGTHS:
        keys, values = (draw.standard_normal(shape, np.float32) for shape in ((K, D, length), (K, length, D)))
        rows.append([NormalSlot(keys, values, length)])
    return rows, Cohort.join(rows, members=ROWS, room=4, granted=True, shape=SHAPE)


def device_keys(layer):
    """The keys of a cohort's layer as the device has them: not transposed."""
    return np.ascontiguousarray(layer.keys.swapaxes(2, 3))


def copied(k, v, *, columns, **more):
    """A new cohort on the device, out of another one."""
    out = [np.full((3, K, columns, D), np.nan, np.float32) for _ in range(2)]
    rows_into_cohort(EmulatedDevice(), k, v, k=out[0], v=out[1], **more)
    return out


def test_front_align_is_what_the_cpu_executor_joins(cohort):
    rows, joined = cohort
    own = [np.full((3, K, 23, D), np.nan, np.float32) for _ in range(2)]  # caches of their own, as members of one array
    for row, (slot,) in enumerate(rows):
        own[0][row, :, : slot.length], own[1][row, :, : slot.length] = slot.keys.swapaxes(1, 2), slot.values
    layer = joined.layers[0]
    places = Places(ROWS, joined.lead, int32(*LENGTHS))
    k, v = copied(*own, columns=layer.values.shape[2], source_member=ROWS, source_start=int32(0, 0, 0), places=places)
    np.testing.assert_array_equal(k, device_keys(layer))
    np.testing.assert_array_equal(v, layer.values)


def test_dropping_the_dead_prefix_gives_each_row_its_own_cache(cohort):
    rows, joined = cohort
    layer = joined.layers[0]
    places = Places(ROWS, int32(0, 0, 0), int32(*LENGTHS))
    k, v = copied(device_keys(layer), layer.values, columns=23, source_member=ROWS, source_start=joined.lead, places=places)
    for row, slot in enumerate(joined.own(member)[0] for member in range(3)):
        drop_dead_prefix(slot, int(joined.lead[row]))
        np.testing.assert_array_equal(k[row, :, : slot.length], slot.keys[:, :, : slot.length].swapaxes(1, 2))
        np.testing.assert_array_equal(v[row, :, : slot.length], slot.values[:, : slot.length])
        np.testing.assert_array_equal(v[row, :, : slot.length], rows[row][0].values)


def test_cache_in_of_blocks_is_what_the_cpu_executor_reads():
    draw = np.random.default_rng(1)
    keys, values = (draw.standard_normal(shape, np.float32) for shape in cache_shapes(6, num_kv_heads=K, head_dim=D))
    blocks = SimpleNamespace(keys=[keys], values=[values])
    table = int32(4, 1, 3)
    [slot] = read_blocks(blocks, table=table, length=48, empty=[NormalSlot()])
    out = [np.full((2, K, 60, D), np.nan, np.float32) for _ in range(2)]
    keys = np.ascontiguousarray(keys.swapaxes(2, 3))
    places = Places(int32(1), int32(12), int32(48))
    blocks_into_cohort(EmulatedDevice(), keys, values, table=table[None], k=out[0], v=out[1], places=places)
    np.testing.assert_array_equal(out[0][1, :, 12:], slot.keys.swapaxes(1, 2))
    np.testing.assert_array_equal(out[1][1, :, 12:], slot.values)
    assert not out[1][1, :, :12].any()
    assert np.isnan(out[1][0]).all()


def test_a_copy_inside_one_array_is_refused():
    whole = np.zeros((4, K, 8, D), np.float32)
    values = np.zeros((3, K, 8, D), np.float32)
    places = Places(ROWS, int32(0, 0, 0), int32(8, 8, 8))
    with pytest.raises(ValueError, match="overlap"):
        rows_into_cohort(
            EmulatedDevice(),
            whole[:3],
            values,
            source_member=ROWS,
            source_start=int32(0, 0, 0),
            k=whole[1:],
            v=values.copy(),
            places=places,
        )


def test_heads_and_rows_that_do_not_fit_are_refused():
    source, goal = np.zeros((3, K, 8, D), np.float32), np.zeros((3, K, 8, 2 * D), np.float32)
    places = Places(ROWS, int32(0, 0, 0), int32(8, 8, 8))
    with pytest.raises(ValueError, match="do not fit together"):
        rows_into_cohort(
            EmulatedDevice(), source, source, source_member=ROWS, source_start=ROWS, k=goal, v=goal.copy(), places=places
        )
    with pytest.raises(ValueError, match="differ in length"):
        copied(source, source.copy(), columns=8, source_member=int32(0), source_start=ROWS, places=places)
    with pytest.raises(ValueError, match="whole vectors"):
        dense_kernel(12, "bfloat16")
