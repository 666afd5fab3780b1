"""A lease per GPU: one executor process owns one device; the kernel gives the lease back when the process ends, however it ends.

A lease is a `flock` on a file named after the GPU's UUID, so that replicas on one host which all see the same GPU do not share it
by accident. The file keeps the holder's process id and name for whoever comes second.
"""

import fcntl
import os
import re
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from drumline.errors import Unavailable


class GpuLease:
    """Held from construction to `release` or the process's end. Raises Unavailable, naming the holder, when another has it."""

    def __init__(self, gpu_uuid: str, *, folder: str = "") -> None:
        name = re.sub(r"[^A-Za-z0-9-]", "_", gpu_uuid)
        path = Path(folder or tempfile.gettempdir()) / f"drumline-gpu-{name}.lease"
        # Never removed: a second process could lock a file that a third one has just replaced.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 200, 0).decode(errors="replace").strip() or "a process that has not said its name yet"
            os.close(self._fd)
            raise Unavailable(f"GPU {gpu_uuid} is leased by {holder}; choose another with CUDA_VISIBLE_DEVICES") from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Gives the GPU back. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
