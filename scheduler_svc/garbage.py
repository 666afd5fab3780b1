"""Python's search for reference cycles, kept out of the step.

A full search visits every object there is: 47 ms with 2,048 resident sequences, and whoever makes many objects at once, as a
snapshot does, sets it off. The books make no cycles; what gRPC and asyncio leave is young and small, and is still looked for often.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 50_000
"""Objects made and not given back before the young ones are searched."""
OLDER: Final = 50
"""Such searches before the older ones are searched too, and as often that until all are."""


def calm() -> None:
    """What was loaded is never searched again, and full searches become rare. Once, when a process begins to serve."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, OLDER, OLDER)


@contextmanager
def quiet() -> Iterator[None]:
    """No search within: for many objects that are all kept."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
