"""Ports for servers that tests start, kill and start again on the same port.

The kernel gives ports of its ephemeral range to whoever asks for any. It may give away the port of a server that is
down just now. These ports are below that range, each worker of pytest has its own, and hands out each of
them only once in 625 times.
"""

from __future__ import annotations

import itertools
import os
import socket

FIRST = 10_240
LAST = 20_239
"""A node of a Redis cluster also listens on its port + 10,000, which is below the ephemeral range as well."""
WORKERS = 16
SHARE = (LAST - FIRST + 1) // WORKERS


def _ports_of_this_worker() -> itertools.cycle[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % WORKERS
    begin = os.getpid() % SHARE  # two runs on one machine begin at different places
    return itertools.cycle(FIRST + worker * SHARE + (begin + step) % SHARE for step in range(SHARE))


_ports = _ports_of_this_worker()


def free_port() -> int:
    """A port on which nothing listens, and which is not given to another test."""
    for port in itertools.islice(_ports, SHARE):
        if _is_free(port) and _is_free(port + LAST - FIRST + 1):
            return port
    raise OSError(f"all ports from {FIRST} to {LAST} of this worker are taken")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
