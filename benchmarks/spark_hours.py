"""A journal of a hundred hours with the same number of messages each. Further hours can be added."""

from __future__ import annotations

import asyncio
from pathlib import Path

import trunkline as tl
from benchmarks.durable import payloads
from trunkline.clock import World
from trunkline.journal import Journal, JournalSettings
from trunkline.journal.settings import Sync

HOURS = 100
HOUR_NS = 3_600_000_000_000
BEGIN_NS = 1_763_290_800 * 1_000_000_000
TOPICS = 10
AT_ONCE = 500
SETTINGS = JournalSettings(seal=False, sync=Sync.SYSTEM)


class _Clock:
    """A clock that advances by a step with each reading, and stays within the hour."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._now_ns = self._end_ns = 0

    def begin_hour(self, number: int) -> None:
        self._now_ns = BEGIN_NS + number * HOUR_NS
        self._end_ns = self._now_ns + HOUR_NS

    def time_ns(self) -> int:
        self._now_ns = min(self._now_ns + self._step_ns, self._end_ns - 1)
        return self._now_ns


class HourlyJournal:
    def __init__(self, directory: Path, per_hour: int) -> None:
        self.directory = directory
        self.per_hour = per_hour
        self._hours = 0
        self._clock = _Clock(HOUR_NS // (8 * per_hour))

    def fill(self) -> None:
        """Create the hundred hours, all of them sealed."""
        self.grow(HOURS)
        with Journal(self.directory, SETTINGS) as journal:
            journal.seal(everything=True)

    def grow(self, hours: int = 1) -> None:
        world = World(time_ns=self._clock.time_ns)
        self._clock.begin_hour(self._hours)
        with Journal(self.directory, SETTINGS, world=world) as journal:
            asyncio.run(self._publish(journal, world, hours))

    async def _publish(self, journal: Journal, world: World, hours: int) -> None:
        async with tl.connect("memory:", name="shop", journal=journal, world=world) as bus, bus.subscribe(">") as heard:
            reading = asyncio.create_task(_read(heard))
            for _ in range(hours):
                self._clock.begin_hour(self._hours)
                self._hours += 1
                for number, first in enumerate(range(0, self.per_hour, AT_ONCE)):
                    some = payloads(min(AT_ONCE, self.per_hour - first))
                    await bus.publish_many(f"events.{number % TOPICS}", some)
                await bus.quiet()
            heard.stop()
            await reading


async def _read(heard: tl.Stream) -> None:
    async for _ in heard.batches():
        pass
