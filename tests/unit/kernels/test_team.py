"""A team's phases: each item once, none before the phase before it is done, and no thread that others must wait for."""

import threading

import numpy as np
import pytest

from kernels.cpu.jit import jit
from kernels.cpu.team import done_then_take, new_team, take, wait

NUM_PHASES, NUM_ITEMS = 40, 7


@jit
def member(team, values):
    """In each phase an item adds up what all items of the phase before have left: one item that came too early shows in the sum."""
    for phase in range(NUM_PHASES):
        item = take(team, phase)
        while item < NUM_ITEMS:
            values[phase + 1, item] += values[phase].sum() + 1
            item = done_then_take(team, phase)
        wait(team, phase, NUM_ITEMS)


def expected() -> np.ndarray:
    values = np.zeros((NUM_PHASES + 1, NUM_ITEMS), np.uint64)
    for phase in range(NUM_PHASES):
        values[phase + 1] = values[phase].sum() + np.uint64(1)
    return values


@pytest.mark.parametrize("num_members", [1, 2, 5])
def test_phases_follow_each_other_with_any_number_of_members(num_members):
    for _ in range(50):
        team, values = new_team(NUM_PHASES), np.zeros((NUM_PHASES + 1, NUM_ITEMS), np.uint64)
        members = [threading.Thread(target=member, args=(team, values)) for _ in range(num_members)]
        for one in members:
            one.start()
        for one in members:
            one.join(60)
            assert not one.is_alive()
        np.testing.assert_array_equal(values, expected())


def test_a_member_that_comes_late_finds_everything_done():
    team, values = new_team(NUM_PHASES), np.zeros((NUM_PHASES + 1, NUM_ITEMS), np.uint64)
    member(team, values)
    member(team, values)
    np.testing.assert_array_equal(values, expected())
