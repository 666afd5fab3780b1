"""A launcher over stand-ins, as a process that a test can kill: `python -m tests.support.standin_launcher LOG`."""

import asyncio
import sys
from pathlib import Path

from launcher.process import Addresses, Service
from launcher.supervisor import Supervisor

PYTHON = [sys.executable, "-m", "tests.support.standin"]


def standin(name: str, log: Path, *flags: str, peers: tuple[str, ...] = (), ready_timeout_s: float = 20.0) -> Service:
    def dialled(addresses: Addresses) -> list[str]:
        return [word for peer in peers for word in ("--peer", addresses[peer])]

    command = [*PYTHON, "--name", name, "--log", str(log), *flags]
    return Service(name=name, command=command, argv_of=dialled, ready_timeout_s=ready_timeout_s)


def three(log: Path) -> list[list[Service]]:
    return [
        [standin("executor-0", log), standin("executor-1", log)],
        [standin("scheduler", log, peers=("executor-0", "executor-1"))],
        [standin("gateway", log, peers=("scheduler",))],
    ]


async def say(addresses: dict[str, str]) -> None:
    print("UP", *sorted(addresses), flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(Supervisor(three(Path(sys.argv[1])), drain_timeout_s=5.0, on_ready=say).run()))
