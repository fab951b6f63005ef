"""A journal like that of a busy bus: events, requests with their answers, and messages that refer to others.

Of a thousand messages, 700 are events on one of 50 topics, 100 are requests, 100 are their answers, and 100 refer to
the message before them. A subscriber receives all of them. A thousand messages span two seconds, and five million a bit
less than three hours.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import trunkline as tl
from benchmarks.durable import DIFFERENT, payloads
from benchmarks.servers import Server
from benchmarks.spark_lakes import lakes_of
from trunkline.clock import World
from trunkline.journal import Journal, JournalSettings
from trunkline.journal.settings import Sync
from trunkline.message import MessageType

TOPICS = 50
AT_ONCE = 1000
EVENTS, ASKED, FOLLOWING = 700, 100, 100
STEP_NS = 2_000_000_000
BEGIN_NS = 1_763_290_800 * 1_000_000_000
SEAL_ROWS = 250_000
SETTINGS = JournalSettings(seal=False, seal_rows=SEAL_ROWS, sync=Sync.SYSTEM)
EVENT = payloads(DIFFERENT)


class _Clock:
    def __init__(self) -> None:
        self.now_ns = BEGIN_NS

    def time_ns(self) -> int:
        self.now_ns += 100
        return self.now_ns


def fill(place: Path, count: int) -> None:
    """Create a journal of `count` messages, a multiple of a thousand. An eighth of them is not sealed."""
    clock = _Clock()
    hot = count // 8 // AT_ONCE
    with Journal(place, SETTINGS, world=World(time_ns=clock.time_ns)) as journal:
        asyncio.run(_publish(journal, clock, 0, count // AT_ONCE - hot))
        journal.seal(everything=True)
        asyncio.run(_publish(journal, clock, count // AT_ONCE - hot, count // AT_ONCE))


async def _publish(journal: Journal, clock: _Clock, first: int, last: int) -> None:
    world = World(time_ns=clock.time_ns)
    async with tl.connect("memory:", name="shop", journal=journal, world=world) as bus, bus.subscribe(">") as heard:
        reading = asyncio.create_task(_read(heard))
        for number in range(first, last):
            clock.now_ns = max(clock.now_ns, BEGIN_NS + number * STEP_NS)
            await _thousand(bus, number)
        await bus.quiet()
        heard.stop()
        await reading


async def _read(heard: tl.Stream) -> None:
    async for _ in heard.batches():
        pass


async def _thousand(bus: tl.Bus, number: int) -> None:
    at = number * EVENTS % (len(EVENT) - EVENTS)
    ids = await bus.publish_many(f"events.{number % TOPICS}", EVENT[at : at + EVENTS])
    asked = [
        bus.message("pricing", {"item": each}, type=MessageType.REQUEST, request_id=f"{number}-{each}", sender="till")
        for each in range(ASKED)
    ]
    await asyncio.gather(*map(bus.post, asked))
    answers = [
        bus.message("pricing.answers", {"price": 9.5}, type=MessageType.RESPONSE, request_id=f"{number}-{each}")
        for each in range(ASKED)
    ]
    following = [bus.message("orders.placed", {"n": each}, correlation_id=ids[each]) for each in range(FOLLOWING)]
    await asyncio.gather(*map(bus.post, answers + following))


BUSY = Server(lakes_of(fill, SETTINGS))
