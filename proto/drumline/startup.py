"""What a service does with a signal before it serves."""

import os
import signal
from types import FrameType


def exit_on_signals() -> None:
    """From now on SIGTERM and SIGINT end this process at once with status 0, until a running service takes them over for its drain.

    There is nothing to drain yet. Without a handler the first process of a container ignores SIGTERM while it loads a model, and
    Ctrl-C prints a traceback. Only from a process's main thread.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    # no exception: libraries that load a model call back into Python from places which swallow one
    os._exit(0)
