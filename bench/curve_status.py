"""The status file: one line per event, written at once, so that a run of hours can be followed from anywhere."""

import time
from pathlib import Path
from types import TracebackType
from typing import Final

DONE: Final = "DONE"
"""First word of the last line's message, however the run ended."""


class StatusFile:
    """Truncated when it is opened; each line begins with the time (UTC). A context: whatever happens, the last line says DONE."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when it cannot be written."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._done = False

    def say(self, message: str) -> None:
        """One event."""
        self._file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {' '.join(message.split())}\n")

    def done(self, message: str) -> None:
        """The last event."""
        if not self._done:
            self._done = True
            self.say(f"{DONE} {message}")

    def __enter__(self) -> "StatusFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.done(f"ended by {kind.__name__}: {error}" if kind else "")
        self._file.close()
