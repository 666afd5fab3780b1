"""Deadlines, earliest first. Entries of ended sequences are dropped lazily, and never outnumber the living for long."""

from collections.abc import Container, Sized
from heapq import heapify, heappop, heappush
from typing import Protocol


class Alive(Container[int], Sized, Protocol):
    """Keys of sequences that have not ended."""


class Deadlines:
    """A heap of (deadline_ns, key); ties end in key order."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Entries, ended sequences included."""
        return len(self._heap)

    def add(self, deadline_ns: int, key: int) -> None:
        """0 = none."""
        if deadline_ns:
            heappush(self._heap, (deadline_ns, key))

    def expired(self, now_ns: int, *, alive: Alive) -> list[int]:
        """Takes out and returns the living keys whose deadline is `now_ns` or before."""
        keys = []
        while self._heap and self._heap[0][0] <= now_ns:
            key = heappop(self._heap)[1]
            if key in alive:
                keys.append(key)
        if len(self._heap) > 2 * len(alive) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in alive]
            heapify(self._heap)
        return keys
