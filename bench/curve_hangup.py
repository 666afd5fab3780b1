"""A terminal that goes away must not end a run of hours, nor may what is printed to it afterwards."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def surviving_hangup() -> Iterator[None]:
    """Meanwhile SIGHUP ends nothing; standard streams that were the terminal lead nowhere once it came. `nohup` did it already."""
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN:
        yield
        return
    terminals = [number for number in (0, 1, 2) if _is_terminal(number)]

    def let_go(signum: int, frame: FrameType | None) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in terminals:
            os.dup2(nowhere, number)
        os.close(nowhere)

    signal.signal(signal.SIGHUP, let_go)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False
