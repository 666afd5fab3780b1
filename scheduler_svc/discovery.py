"""From what `--executor` says to one client an address, while executors come and go.

A name is resolved again every few seconds and every address behind it is an executor of its own, so that a replicated service
needs no other registry. An address that leaves its name is not dialled again, but a session that still works is kept: an executor
that is taken down drains by itself.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from drumline.errors import InvalidRequest

_LOG = logging.getLogger(__name__)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> IP addresses; raises OSError if the name is unknown now."""


class Client(Protocol):
    """What discovery starts for each address."""

    def retire(self) -> None:
        """The address left its name."""
        ...

    async def run(self) -> None:
        """Serves the address until retired or cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """One `--executor` value."""

    host: str
    port: int


def parse_target(text: str) -> Target:
    """`host:port`, or `[v6]:port`. Raises InvalidRequest naming the value."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidRequest(f"executor {text!r} must be host:port", param="executor")
    return Target(host, int(port))


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """The system's resolver. IPv4 addresses if there are any, so that a dual-stack name is not dialled twice."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    by_family = {family: [str(info[4][0]) for info in found if info[0] == family] for family in (socket.AF_INET, socket.AF_INET6)}
    return by_family[socket.AF_INET] or by_family[socket.AF_INET6]


C = TypeVar("C", bound=Client)


class Discovery(Generic[C]):
    """Runs one client per address.

    Attributes:
        clients: address -> client; a retired one stays until its last session is over.
    """

    def __init__(
        self,
        targets: Sequence[str],
        *,
        start: Callable[[str], C],
        interval_s: float,
        resolve: Resolve = resolve_by_system,
    ) -> None:
        """`start` makes the client of an address; discovery runs it. Raises InvalidRequest for a target that is no host:port."""
        self.clients: dict[str, C] = {}
        self._targets = [parse_target(text) for text in dict.fromkeys(targets)]
        self._start = start
        self._interval_s = interval_s
        self._resolve = resolve
        self._known: dict[Target, Sequence[str]] = {}
        self._retired: set[str] = set()
        self._over: set[str] = set()
        """Addresses whose client has ended without being retired: a newer scheduler owns them."""

    async def run(self) -> None:
        """Until cancelled, which ends every client. A client that fails in an unforeseen way ends this with its error."""
        async with asyncio.TaskGroup() as group:
            while True:
                wanted = await self._wanted()
                for address in wanted - self.clients.keys():
                    self._begin(address, group)
                for address in self.clients.keys() - wanted - self._retired:
                    _LOG.info("executor=%s left its name", address)
                    self._retire(address)
                await asyncio.sleep(self._interval_s)

    def _begin(self, address: str, group: asyncio.TaskGroup) -> None:
        client = self._start(address)
        self.clients[address] = client
        task = group.create_task(client.run(), name=f"executor {address}")
        task.add_done_callback(lambda _: self._ended(address))

    def _retire(self, address: str) -> None:
        self.clients[address].retire()
        self._retired.add(address)
        if address in self._over:
            self._ended(address)

    def _ended(self, address: str) -> None:
        """A retired client makes room for another one; a superseded one stays while its address is wanted, and is not dialled."""
        self._over.add(address)
        if address in self._retired:
            self._retired.discard(address)
            self._over.discard(address)
            self.clients.pop(address, None)

    async def _wanted(self) -> set[str]:
        addresses: set[str] = set()
        for target in self._targets:
            addresses.update(_join(host, target.port) for host in await self._hosts(target))
        return addresses

    async def _hosts(self, target: Target) -> Sequence[str]:
        """Addresses of one target; those of the last time if its name cannot be resolved just now."""
        try:
            ipaddress.ip_address(target.host)
        except ValueError:
            pass
        else:
            return [target.host]
        try:
            self._known[target] = await self._resolve(target.host, target.port)
        except OSError as error:
            _LOG.warning("executor name %s cannot be resolved: %s", target.host, error)
        return self._known.get(target, ())


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
