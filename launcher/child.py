"""Becomes a service process that dies with its launcher: `python child.py LAUNCHER_PID PROGRAM ARGUMENT...`.

A launcher that is killed outright can clean up nothing, so the kernel is asked to (PR_SET_PDEATHSIG). The request survives exec,
and making it here keeps Python code from running between fork and exec in a launcher with threads. Run by path, with the standard
library alone: it starts in milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """From now on this process gets SIGKILL when its parent ends; exits at once if that has already happened.

    A no-op where the system has no prctl.
    """
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the launcher's own command line, no shell wanted
