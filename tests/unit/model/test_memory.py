"""Memory of the caches: zeroed, claimed from the system ahead of its use, and gone with the last array."""

import resource
import threading

import numpy as np
import pytest

from executor_svc.model.memory import claimed

SHAPE = (64, 1024, 256)  # 32 MiB of float16


def settle() -> None:
    """Until nothing is being claimed any more."""
    for thread in threading.enumerate():
        if thread.name == "claim":
            thread.join(60)
            assert not thread.is_alive()


def num_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_arrays_are_zero_lie_apart_and_keep_what_is_written_while_memory_is_claimed() -> None:
    first, second = claimed(2, SHAPE, np.float16)
    first[:] = 1  # the claiming thread may be anywhere
    settle()
    assert (first == 1).all()
    assert not second.any()
    assert first.flags.c_contiguous
    assert first.flags.writeable
    assert first.dtype == np.float16


def test_whoever_writes_first_finds_the_pages_there() -> None:
    usual = np.zeros(SHAPE, np.float16)
    before = num_faults()
    usual[:] = 1
    without = num_faults() - before
    [array] = claimed(1, SHAPE, np.float16)
    settle()
    before = num_faults()
    array[:] = 1
    assert num_faults() - before < max(4, without // 10)


def test_memory_goes_with_the_last_array() -> None:
    before = resident_bytes()
    arrays = claimed(2, SHAPE, np.float16)
    settle()
    assert resident_bytes() - before > arrays[0].nbytes
    last = arrays.pop()
    del arrays
    assert not last[-1, -1].any()
    del last
    assert resident_bytes() - before < 2**23


def test_nothing_is_no_mapping_and_too_much_is_said_so() -> None:
    assert [array.shape for array in claimed(2, (0, 3), np.float32)] == [(0, 3)] * 2
    with pytest.raises(MemoryError, match="no room for"):
        claimed(1, (2**46,), np.float32)
