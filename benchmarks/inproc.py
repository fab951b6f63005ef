"""How many messages per second go from `publish` to one subscriber that takes each message with `async for`?

This is the default bus: ids, counters, history, fates and ttl checks are on. The publisher is ahead of the subscriber:
most messages wait in columns, and message objects are built when they are taken. The queue carries the same struct and
does nothing else. pykka's `tell` puts an envelope into the queue of a thread. It is measured twice: with threads
scheduled freely, and pinned to one core, which is faster.
"""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, QUEUE, TOPIC, on_one_core, one_core, queue_rate, rate, tell_rate
from trunkline import Stream, connect

TELL = "pykka tell"


async def ours(count: int) -> Sample:
    async with connect() as bus, bus.subscribe(TOPIC) as stream:
        began = time.perf_counter()
        reader = asyncio.create_task(_read(stream, count))
        for _ in range(count):
            await bus.publish(TOPIC, PAYLOAD)
        await reader
        return rate(count, began)


async def _read(stream: Stream, count: int) -> None:
    async for _ in stream:
        count -= 1
        if not count:
            return


CASE = Case(
    name="inproc",
    question="publish to one subscriber that takes every message with async for",
    unit="messages/s",
    better="more",
    ours=ours,
    peers={QUEUE: queue_rate, TELL: tell_rate, **on_one_core(TELL, tell_rate)},
    target={QUEUE: 1.0, one_core(TELL): 2.3},
    aim={TELL: 4.0},
)
