"""Whose turn it is: noise that comes and goes must hit all arms alike."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """The same in another order: over len(items) turns each comes once in each place, and goes forwards and backwards by turns.

    So neither a machine that slows down nor one that warms up favours an arm.
    """
    shift = turn % len(items)
    order = [*items[shift:], *items[:shift]]
    return order if turn // len(items) % 2 == 0 else order[::-1]
