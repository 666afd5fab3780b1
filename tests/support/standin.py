"""A service that does nothing, as a process: it binds a port, says that it is ready, and ends when told to. For launcher tests.

`python -m tests.support.standin --name gateway --log FILE --port 0 [--fail-start N] [--drain-s 0.2] [--deaf] [--short-lived]`
"""

import argparse
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True, help="one line per event, from all stand-ins of a test")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--drain-s", type=float, default=0.0)
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--bound-s", type=float, default=0.0, help="say BOUND, then load for so long")
    parser.add_argument("--fail-start", type=int, default=0, help="end with this status before getting ready")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--short-lived", action="store_true", help="end right after getting ready")
    parser.add_argument("--dies-once", action="store_true", help="the same, but for the first one with its name")
    given = parser.parse_args()

    def note(event: str) -> None:
        with given.log.open("a") as file:
            file.write(f"{given.name} {event} {os.getpid()}\n")

    stop = threading.Event()
    signal.signal(signal.SIGTERM, (lambda *_: note("deaf")) if given.deaf else (lambda *_: stop.set()))
    time.sleep(given.start_s)
    if given.fail_start and not given.bound_s:
        return given.fail_start
    with socket.create_server(("127.0.0.1", given.port)) as server:
        if given.bound_s:
            print(f"BOUND {given.name} 127.0.0.1:{server.getsockname()[1]}", flush=True)
            stop.wait(given.bound_s)
        if given.fail_start:
            return given.fail_start
        note(f"ready:{','.join(given.peer)}")
        print("some chatter first", flush=True)
        print(f"READY {given.name} 127.0.0.1:{server.getsockname()[1]}", flush=True)
        print("x" * 200_000, flush=True)  # a pipe that nobody reads would block here
        if given.short_lived or (given.dies_once and given.log.read_text().count(f"{given.name} ready") == 1):
            return 3
        while not stop.wait(0.05):
            pass
        note("draining")
        time.sleep(given.drain_s)
        note("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
