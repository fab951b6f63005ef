"""How fast are messages published durably, read by a durable subscription and acknowledged, on one JetStream server?

Publisher and consumer run in separate processes. nats-py publishes with `publish_async`, with 1,000 in flight, fetches
1,000 at a time and acknowledges each message. Ours publishes 256 at a time, with as many in flight, and acknowledges in
batches. For both, the server syncs at its default interval. With `sync_interval: always` the difference is larger,
because a batch needs one sync. The result is messages per second of processor time of both clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count as numbers
from pathlib import Path

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType

from benchmarks import jetstream
from benchmarks.durable import IN_FLIGHT, TOPIC, payloads
from benchmarks.harness import Case, Sample
from benchmarks.processes import Crew, Line, crew, results
from benchmarks.servers import Place, Server, together
from trunkline import EngineSettings, connect

NATS = "nats-py"
FETCH = jetstream.FETCH
MANY = 256
_runs = numbers(1)


@contextmanager
def _start(folder: Path) -> Iterator[Place]:
    with jetstream._start(folder) as address:
        yield Place(address, 0)


JETSTREAM = Server(_start)


def _how(space: str) -> EngineSettings:
    return EngineSettings(namespace=space, durable=(TOPIC,), synced=True)


async def publish(line: Line, address: str, count: int, space: str) -> int:
    messages = payloads(count)
    async with connect(address, connection=_how(space)) as bus:
        await bus.publish("ready")
        await bus.flush()
        line.ready()
        began_ns = time.perf_counter_ns()
        under_way: set[asyncio.Task[list[str]]] = set()
        for first in range(0, count, MANY):
            under_way.add(asyncio.create_task(bus.publish_many(TOPIC, messages[first : first + MANY])))
            if len(under_way) * MANY >= IN_FLIGHT:
                _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*under_way)
    return began_ns


async def consume(line: Line, address: str, count: int, space: str) -> int:
    async with (
        connect(address, connection=_how(space)) as bus,
        bus.subscribe(TOPIC, name="bench", durable=True) as stream,
    ):
        line.ready()
        async for batch in stream.batches():
            stream.ack_many(batch)
            count -= len(batch)
            if count <= 0:
                break
        await bus.flush()
        return time.perf_counter_ns()


async def peer_publish(line: Line, address: str, count: int, space: str) -> int:
    messages = payloads(count)
    connection = await nats.connect(address)
    stream = connection.jetstream(publish_async_max_pending=IN_FLIGHT)
    line.ready()
    began_ns = time.perf_counter_ns()
    for payload in messages:
        await stream.publish_async(f"{space}.{TOPIC}", payload)
    await stream.publish_async_completed()
    await connection.close()
    return began_ns


async def peer_consume(line: Line, address: str, count: int, space: str) -> int:
    connection = await nats.connect(address)
    stream = connection.jetstream()
    await stream.add_stream(name=space, subjects=[f"{space}.>"], storage=StorageType.FILE)
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, deliver_policy=DeliverPolicy.ALL, max_ack_pending=-1)
    consumer = await stream.pull_subscribe(f"{space}.>", durable="bench", stream=space, config=config)
    line.ready()
    while count:
        try:
            found = await consumer.fetch(min(FETCH, count), timeout=1)
        except TimeoutError:
            continue
        for message in found:
            await message.ack()
        count -= len(found)
    await connection.flush()
    ended_ns = time.perf_counter_ns()
    await stream.delete_stream(space)
    await connection.close()
    return ended_ns


def flow(count: int, sides: tuple[object, object], crew: Crew) -> Sample:
    """Messages per second of processor time of both clients."""
    sends, takes = sides
    space = f"bench{next(_runs)}"
    with JETSTREAM.running() as place, crew.running() as (publisher, consumer):
        consumer.begin(takes, place.address, count, space)  # type: ignore[arg-type]
        consumer.ready()
        publisher.begin(sends, place.address, count, space)  # type: ignore[arg-type]
        cpu_s = sum(done.cpu_s for done in results([publisher, consumer]))
    return Sample(count / cpu_s, cpu_s)


_workers = crew(2)
CASE = Case(
    name="nats-durable",
    question="durable publish, consume and acknowledge on JetStream, 100 bytes",
    unit="messages/CPU s",
    better="more",
    ours=partial(flow, sides=(publish, consume), crew=_workers),
    peers={NATS: partial(flow, sides=(peer_publish, peer_consume), crew=_workers)},
    target={NATS: 15.0},
    size=20_000,
    around=partial(together, _workers, JETSTREAM),
)
