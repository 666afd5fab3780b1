"""What every kernel asks memory for: whole sectors, no two lanes in a bank, but where its proof gives a reason."""

import pytest

from kernels.emulator.device import EmulatedDevice
from kernels.emulator.traffic import excess, line_of
from kernels.proof.catalogue import BOUNDS, STEMS
from kernels.proof.traffic import RULE, Bounds, Exempt, excesses, launch
from tests.unit.kernels.cuda.test_binaries import kernels_of


@pytest.mark.parametrize("family", STEMS)
def test_nothing_is_asked_for_in_vain(family):
    device = EmulatedDevice(profile=True)
    launch(BOUNDS[family], STEMS[family](), device)
    found = excesses(BOUNDS[family], excess(device.traffic))
    worst = sorted(device.traffic, key=lambda one: one.cost - one.ideal, reverse=True)[:5]
    assert not found, [f"{line_of(one)}: {one.array}, {one.verb}: {one.cost}, {one.ideal} would do" for one in worst]
    launched = {one.kernel for one in device.traffic}
    assert launched == {kernel.name for kernel in kernels_of(family)}


@pytest.mark.parametrize("family", STEMS)
def test_the_cases_that_are_counted_exist(family):
    assert {case.name for case in STEMS[family]()} >= set(BOUNDS[family].cases)


KEY = ("f", "a", "read")


@pytest.mark.parametrize(
    ("most", "measured", "words"),
    [
        (None, {KEY: RULE}, []),
        (None, {KEY: 1.2}, ["f a read: 1.20 times the traffic that would do, at most 1.10 is right"]),
        (2.0, {KEY: 2.0}, []),
        (2.0, {KEY: 2.1}, ["f a read: 2.10 times the traffic that would do, at most 2.00 is right"]),
        (2.0, {KEY: 1.5}, ["f a read: 2.00 is allowed, 1.50 is needed"]),
        (2.0, {}, ["f a read: an exception for what does not occur"]),
        (None, {("f", "a", "atomic"): 9.0}, []),
    ],
)
def test_an_exception_covers_what_is_so_and_no_more(most, measured, words):
    bounds = Bounds((), (Exempt(*KEY, most, "why"),) if most else ())
    assert excesses(bounds, measured) == words
