"""Requests to memory are counted as a GPU makes them: a sector once for all lanes that want it, a long vector in parts."""

import numpy as np
import pytest

from kernels.emulator.traffic import excess, line_of
from tests.unit.kernels.emulator.probes import device, kernel, names, written

READS = {
    "neighbours": ("in", 1, 4, 4),
    "one_for_all": ("in", 1, 1, 1),
    "every_eighth": ("in", 1, 32, 4),
    "every_second": ("in", 1, 8, 4),
    "shifted_by_one": ("in", 1, 5, 4),
    "vectors": ("in", 1, 16, 16),
    "halves_of_vectors": ("in", 1, 16, 8),
    "lanes_leave_a_loop_one_by_one": ("in", 16, 40, 40),
    "column_of_shared_memory": ("shared memory", 1, 32, 1),
    "padded_column_of_shared_memory": ("shared memory", 1, 1, 1),
    "vectors_of_shared_memory": ("dynamic shared memory", 1, 4, 4),
}
"""Kernel -> array, requests, what they cost, how few would do."""
ON = device(profile=True)


def traffic_of(name, *, seed):
    """On arrays that begin with a sector."""
    room = np.zeros(64 + 300, np.uint32)
    start = -room.ctypes.data // 4 % 8
    ON.seed, ON.traffic = seed, []
    given, out = room[start : start + 257], room[start + 264 : start + 296]
    ON.launch(kernel("traffic", name, shared_bytes=512, block=32), (1,), (given, out))
    return ON.traffic


def test_every_kernel_of_the_file_is_run():
    assert sorted(READS) == sorted(names("traffic"))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", READS)
def test_reads_are_counted_in_any_schedule(name, seed):
    array, *numbers = READS[name]
    found = [one for one in traffic_of(name, seed=seed) if one.array == array and one.verb == "read"]
    assert [sum(n) for n in zip(*((one.requests, one.cost, one.ideal) for one in found), strict=True)] == numbers


def test_the_excess_is_by_array_and_the_line_is_named():
    traffic = traffic_of("every_eighth", seed=0)
    assert excess(traffic) == {("every_eighth", "in", "read"): 8.0, ("every_eighth", "out", "write"): 1.0}
    line = 1 + written("traffic").splitlines().index("KERNEL(every_eighth) { out[T] = in[T * 8]; }")
    assert {line_of(one) for one in traffic} == {f"traffic.cu:{line}"}
