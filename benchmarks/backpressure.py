"""How soon does a blocked publisher continue, once the consumer of a full inbox has taken a message?

The consumer takes one message every 2 ms. Blocked publishers are woken when there is room for many messages, or
after a short time. The result is therefore not the time of one wake-up, but the longest time that a publisher waits
although there is room.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import CAPACITY, PAYLOAD, TOPIC
from trunkline import Stream, connect

EVERY_S = 0.002


class Consumer:
    """Takes a message every 2 ms. `first_take` is the time of the first one since it was set to None."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.first_take: float | None = None

    async def work(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self._stream.try_recv()
            if self.first_take is None:
                self.first_take = time.perf_counter()


async def ours(count: int) -> Sample:
    waits: list[float] = []
    began = time.perf_counter()
    async with connect() as bus, bus.subscribe(TOPIC) as stream:
        await bus.publish_many(TOPIC, [PAYLOAD] * CAPACITY)
        consumer = Consumer(stream)
        working = asyncio.create_task(consumer.work())
        try:
            while len(waits) < count:
                consumer.first_take = None
                await bus.publish(TOPIC, PAYLOAD)
                # If it is still None, there was room, and the publish did not wait.
                if consumer.first_take is not None:
                    waits.append(time.perf_counter() - consumer.first_take)
        finally:
            working.cancel()
            await asyncio.wait([working])
    return Sample(statistics.median(waits) * 1e3, time.perf_counter() - began)


CASE = Case(
    name="backpressure",
    question="from the first message taken out of a full inbox until the blocked publisher continues, p50",
    unit="ms",
    better="less",
    ours=ours,
    limit=100.0,
    size=2,
)
