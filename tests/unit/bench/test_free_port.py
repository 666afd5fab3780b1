"""Ports that are named before they are bound."""

import socket

from bench.server import free_port


def test_a_port_can_be_bound_and_is_none_that_the_system_gives_away() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first, last = map(int, file.read().split())
    for port in {free_port() for _ in range(20)}:
        assert not first <= port <= last
        with socket.create_server(("127.0.0.1", port)):
            pass
