"""A terminal that goes away must not end a run of hours, nor may what is printed to it afterwards."""

import os
import signal
from types import FrameType


def survive_hangup() -> None:
    """From now on SIGHUP ends nothing; standard streams that were the terminal lead nowhere. `nohup` has done it already."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    terminals = [number for number in (0, 1, 2) if _is_terminal(number)]

    def let_go(signum: int, frame: FrameType | None) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in terminals:
            os.dup2(nowhere, number)
        os.close(nowhere)

    signal.signal(signal.SIGHUP, let_go)


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False
