"""One server with everything that an arm of a comparison is told, started afresh and asked whether it is what it was told to be."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from bench.client import BenchError, Target
from bench.server import Server, started
from drumline.settings import env_of

_READY_S: Final = 300.0
"""The first start of a release compiles the kernels."""
_DRAIN_S: Final = 2
"""Nothing that still runs when an arm ends is wanted by anybody."""


class ArmRefused(BenchError):
    """The server runs, but not as this arm must: measuring it would say something about another arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What a server is told beside the defaults. All arms of a comparison share all but what they compare.

    Attributes:
        model, precision, backend: as the executor's settings.
        num_blocks: KV blocks of the executor, and so the most that a dense cohort may take.
        record: folder for the recording, which is where steps are counted.
        max_wait_s: time to live of a request.
    """

    admission: str
    layout: str
    plans_in_flight: int
    max_num_seqs: int
    num_blocks: int
    model: str
    precision: str
    backend: str
    record: Path
    max_wait_s: float = 3600.0

    def environ(self) -> dict[str, str]:
        """Its settings as `DRUMLINE_*` names, which go before anything that the user's environment says."""
        scheduler = {
            "admission": self.admission,
            "layout": self.layout,
            "plans_in_flight": self.plans_in_flight,
            "max_num_seqs": self.max_num_seqs,
            "enable_prefix_caching": "false",
            "record": self.record,
            "default_timeout_s": f"{self.max_wait_s:g}",
        }
        executor = {
            "max_num_seqs": self.max_num_seqs,
            "num_blocks": self.num_blocks,
            "model": self.model,
            "precision": self.precision,
            "backend": self.backend,
        }
        told = {env_of("scheduler", name): str(value) for name, value in scheduler.items()}
        return told | {env_of("executor", name): str(value) for name, value in executor.items()}


@dataclass(frozen=True, slots=True)
class Standing:
    """A house that answers. `status` is the scheduler's word about itself at the start."""

    server: Server
    target: Target
    status: Mapping[str, Any]

    @property
    def executor(self) -> Mapping[str, Any]:
        """Its only executor."""
        executor: Mapping[str, Any] = self.status["executors"][0]
        return executor

    @property
    def grant(self) -> str:
        """The ragged grant and its reason, in words."""
        word = "granted" if self.executor.get("ragged_granted") else "refused"
        return f"{word}: {self.executor.get('ragged_reason') or 'no reason was given'}"


@asynccontextmanager
async def standing(house: House, *, log: Path) -> AsyncIterator[Standing]:
    """Fresh services, which end with the context. Raises BenchError when they do not come up, ArmRefused when not as told."""
    flags = ["--drain-timeout-s", str(_DRAIN_S)]
    async with _told_why(log), started(flags, environ=house.environ(), log=log) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http:
            status = await _status(http)
            model = str((await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"])
        if lines := refusals(log):
            raise ArmRefused(lines[0])
        found = Standing(server, Target(server.url, model), status)
        _check(house, found)
        yield found


def refusals(log: Path) -> list[str]:
    """Lines in which a service says that it cannot honour what it was told."""
    return [line for line in lines_of(log) if "cannot honour it" in line]


def lines_of(log: Path) -> list[str]:
    """What the services said; nothing when there is no log."""
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


@asynccontextmanager
async def _told_why(log: Path) -> AsyncIterator[None]:
    """A server that fails: its first error is the reason, and the log may be gone when somebody reads the message."""
    try:
        yield
    except ArmRefused:
        raise
    except BenchError as error:
        said = next((line for line in lines_of(log) if " E " in line), "")
        raise BenchError(f"{error}: {said}" if said else str(error)) from error


async def _status(http: httpx.AsyncClient) -> Mapping[str, Any]:
    """The status once an executor is ready."""
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        status: Mapping[str, Any] = (await http.get("/status")).raise_for_status().json()
        if [one.get("state") for one in status.get("executors", ())] == ["ready"]:
            return status
        await asyncio.sleep(0.1)
    raise BenchError(f"no executor was ready after {_READY_S:g} s")


def _check(house: House, found: Standing) -> None:
    """Flags read back: what the server says it runs against what it was told."""
    wanted = {"admission": house.admission, "layout": house.layout, "ragged": house.admission != "bucketed"}
    if house.admission == "bucketed" and house.layout == "stripped":
        wanted["layout"] = "aligned"  # a refused grant has nothing to strip and says so
    says = {
        "admission": found.status.get("admission"),
        "layout": found.executor.get("layout"),
        "ragged": bool(found.executor.get("ragged_granted")),
    }
    for name, value in wanted.items():
        if says[name] != value:
            raise ArmRefused(f"the arm needs {name} {value}, the server runs {says[name]} ({found.grant})")
