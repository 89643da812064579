"""Ports for tests, below the range from which kernels hand out ports (ip_local_port_range in ip(7); 32768 and up): in
that range, a connection of another test takes a port between its choice and its use."""

from __future__ import annotations

import os
import socket
from itertools import count

FIRST, LAST = 20000, 32000
_asked = count(os.getpid() * 7)  # another run of the tests begins elsewhere


def free_port() -> int:
    """A port that no other test of this run is given, nor this one again for a long time."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    length = (LAST - FIRST) // 12
    while True:
        port = FIRST + worker % 12 * length + next(_asked) % length
        if _is_free(port):
            return port


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row. Who looks at the same moment begins elsewhere: a port is free until it
    is used."""
    starts = range(FIRST, LAST - count, count)
    begin = os.getpid() % len(starts)
    for start in (*starts[begin:], *starts[:begin]):
        if all(_is_free(port) for port in range(start, start + count)):
            return start
    raise RuntimeError(f"ports {FIRST} to {LAST}: no {count} free ones in a row. Stop what uses them.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
