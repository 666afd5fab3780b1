"""Searches for cycles stay out of the way and still find what they must."""

import gc
import subprocess
import sys
import weakref

from scheduler_svc import garbage


class Knot:
    def __init__(self) -> None:
        self.me = self


def test_nothing_is_searched_within_and_what_was_off_stays_off() -> None:
    with garbage.quiet():
        assert not gc.isenabled()
        with garbage.quiet():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_cycles_are_still_found_in_a_calm_process() -> None:
    """In a process of its own: what `calm` does cannot be taken back."""
    code = (
        "import weakref; from scheduler_svc import garbage; from tests.unit.scheduler.test_garbage import Knot; garbage.calm()\n"
        "seen = weakref.ref(Knot()); kept = [[] for _ in range(2 * garbage.YOUNG)]; assert seen() is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_knot_needs_a_search() -> None:
    """Else the test above would prove nothing."""
    with garbage.quiet():
        seen = weakref.ref(Knot())
        assert seen() is not None
