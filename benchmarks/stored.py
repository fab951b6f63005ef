"""Our side of the cases of the journal: durable publishes by a thousand tasks, or a thousand messages at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.durable import DIFFERENT, IN_FLIGHT, TOPIC, payloads
from benchmarks.servers import directory
from trunkline import Bus, connect
from trunkline.journal import Journal


async def ready(bus: Bus) -> None:
    """Open the journal by storing a first message. The servers of peers are also started before the measurement."""
    await bus.publish("bench.ready")


async def publish_piped(bus: Bus, messages: Sequence[bytes]) -> None:
    """From one task, with a thousand in flight, like JetStream's publish_async and a pipeline of Redis."""
    async with bus.pipeline(IN_FLIGHT) as pipe:
        for payload in messages:
            await pipe.publish(TOPIC, payload)


async def publish_each(bus: Bus, messages: Sequence[bytes]) -> None:
    """By a thousand tasks. Each waits until its message is on disk before it publishes the next."""
    waiting = iter(messages)

    async def work() -> None:
        for payload in waiting:
            await bus.publish(TOPIC, payload)

    await asyncio.gather(*(work() for _ in range(min(IN_FLIGHT, len(messages)))))


async def publish_batches(bus: Bus, count: int) -> None:
    """`count` messages, a thousand at once, one batch after another."""
    messages = payloads(min(count, DIFFERENT))
    for first in range(0, count, IN_FLIGHT):
        start = first % DIFFERENT
        await bus.publish_many(TOPIC, messages[start : start + min(IN_FLIGHT, count - first)])


@asynccontextmanager
async def stored(count: int, *, sealed: bool) -> AsyncIterator[Path]:
    """A directory with `count` messages in its journal, or in its lake if `sealed`."""
    with directory() as folder:
        async with connect("memory:", journal=folder) as bus:
            await publish_batches(bus, count)
        if sealed:
            with Journal(folder) as journal:
                journal.seal(everything=True)
        yield folder
