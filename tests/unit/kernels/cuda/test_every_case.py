"""Every case of every CUDA kernel: under the emulator in three schedules and in check mode, and by the CPU twin."""

import numpy as np
import pytest

from kernels.emulator.device import EmulatedDevice
from kernels.proof.case import faults
from kernels.proof.catalogue import STEMS

CASES = [pytest.param(case, id=f"{stem}: {case.name}") for stem, make in STEMS.items() for case in make()]
SCHEDULES = (0, 1, 7)


def run(case, device):
    arrays = case.arrays()
    case.launch(device, arrays)
    return arrays


@pytest.mark.parametrize("case", CASES)
def test_is_right_in_any_order_of_threads_and_blocks(case):
    results = [run(case, EmulatedDevice(seed=seed)) for seed in SCHEDULES]
    assert faults(case, results[0]) == []
    for other in results[1:]:
        for name in case.expected:
            np.testing.assert_array_equal(results[0][name], other[name], err_msg=f"{name} depends on the schedule")


@pytest.mark.parametrize("case", CASES)
def test_no_access_is_wrong(case):
    assert faults(case, run(case, EmulatedDevice(check=True, seed=2))) == []


@pytest.mark.parametrize("case", [case for case in CASES if case.values[0].twin])
def test_the_cpu_twin_agrees(case):
    arrays = case.arrays()
    assert faults(case, arrays | case.twin(arrays)) == []
