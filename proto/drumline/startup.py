"""What a service does with a signal before it serves."""

import os
import signal
import socket
import threading
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


def exit_on_signals() -> None:
    """From now on SIGTERM and SIGINT end this process at once with status 0, until a running service takes them over for its drain.

    There is nothing to drain yet. Without a handler the first process of a container ignores SIGTERM while it loads a model, and
    Ctrl-C prints a traceback. Only from a process's main thread.

    Python calls a handler when its main thread next runs Python. That thread may be in C for minutes, entered just after the
    signal or not interrupted by it because another thread got it. So a thread of its own waits for the number, which the
    interpreter writes to a socket whichever thread the signal meets. An event loop that handles signals puts its own in its place.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_exit_when_told, args=(reader, writer), name="signals", daemon=True).start()
    for number in _ENDING:
        signal.signal(number, _exit)


def _exit_when_told(reader: socket.socket, writer: socket.socket) -> None:
    """Owns both ends: the interpreter keeps only the writer's number."""
    while number := reader.recv(1):
        if number[0] in _ENDING:
            os._exit(0)


def _exit(number: int, frame: FrameType | None) -> None:
    # no exception: libraries that load a model call back into Python from places which swallow one
    os._exit(0)
