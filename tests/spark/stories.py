"""Journals in which something happens between two runs of a pipeline: letters are replayed, a schema is widened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trunkline as tl
from tests.journal.journals import Clock, fill, journal_in
from trunkline.hub.registry_file import KeptRegistry, RegistryFile
from trunkline.journal import Journal, JournalSettings
from trunkline.journal.settings import Retention
from trunkline.message import MessageType
from trunkline.registry.channel import KeptChannel
from trunkline.registry.schemas import KeptSchema, KeptVersion
from trunkline.schema import hash_of
from trunkline.testing import Simulation, simulate, world

HOUR_NS = 3_600_000_000_000
ELEVEN_NS = 1_794_826_800 * 1_000_000_000
"""2026-11-16, eleven o'clock."""
NARROW: dict[str, Any] = {"type": "object", "properties": {"total": {"type": "integer"}}}
WIDE: dict[str, Any] = {"type": "object", "properties": {"total": {"type": "number"}, "note": {"type": "string"}}}
LOST, KEPT = 40, 10


def keep_schema(journal: Path, schema: dict[str, Any]) -> None:
    """The hub of this journal has a channel `orders` with this schema."""
    version = KeptVersion(version="1.0.0", hash=hash_of(schema), schema=schema)
    channel = KeptChannel(channel="orders", pattern="orders.*", owner="me", created_ns=0, schema_hash=version.hash)
    schemas = [KeptSchema(name="order", compatibility="none", versions=[version])]
    RegistryFile(journal).write(KeptRegistry(channels=[channel], schemas=schemas))


class Shop:
    """A program on a journal. Its handler fails on a price of 13, until it is repaired."""

    def __init__(self, directory: Path, start_ns: int, *, mended: bool = False) -> None:
        self.directory = directory
        self.start_ns = start_ns
        self.mended = mended

    def open(self) -> None:
        simulate(self._live, seed=1, start_ns=self.start_ns)

    async def _live(self, simulation: Simulation) -> None:
        settings = JournalSettings(seal_rows=50, tend_s=3600.0)
        with Journal(self.directory, settings, world=world(simulation), threaded=False) as journal:
            if self.mended:
                journal.replay_dead([("bill", seq) for (seq,) in journal.reader.query("SELECT seq FROM dead_letters")])
            async with tl.connect("memory:", name="shop", journal=journal, world=world(simulation)) as bus:
                await self._work(bus, simulation)
                await bus.quiet()
                await bus.flush()
            journal.seal(everything=True)

    async def _work(self, bus: tl.Bus, simulation: Simulation) -> None:
        dies = True

        @bus.on("orders.*", durable=True, retry=tl.Retry(attempts=2))
        async def bill(order: dict[str, Any]) -> None:
            if dies and order["total"] == 13 and (not self.mended or order.get("note") == "new"):
                raise ValueError(f"bad order {order['total']}")

        for total in (5, 13):
            await bus.publish("orders.placed", {"total": total})
        await bus.quiet()
        if self.mended:
            # It dies and is replayed, and no run has seen its letter.
            await bus.publish("orders.placed", {"total": 13, "note": "new"})
            await bus.quiet()
            await bus.flush()
            dies = False
            (letter,) = bus.dead_letters
            bus.dead_letters.replay(letter)
            await bus.quiet()
        await self._ask(bus, simulation, "early" if self.mended else "behind")

    async def _ask(self, bus: tl.Bus, simulation: Simulation, name: str) -> None:
        """At the next full hour. The answer is placed before it, by the clock of the responder."""
        await asyncio.sleep((-simulation.time_ns() % HOUR_NS) / 1e9 + 0.1)
        now_ns = simulation.time_ns()
        asked: dict[str, Any] = {
            "id": f"q-{name}",
            "type": MessageType.REQUEST,
            "request_id": name,
            "timestamp_ns": now_ns,
        }
        answered: dict[str, Any] = {"id": f"a-{name}", "type": MessageType.RESPONSE, "request_id": name}
        await bus.post(tl.Message(topic="pricing", payload=b"1", sender="shop", **asked))
        behind_ns = now_ns - 500_000_000
        await bus.post(tl.Message(topic="prices", payload=b"2", sender="bank", timestamp_ns=behind_ns, **answered))
        await asyncio.sleep(60)
        await bus.publish("ticks", 1)


class StubbornOrder:
    """An order that fails again when it is replayed. Then retention removes it, and the records of its failures."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def dies(self) -> None:
        simulate(self._publish, seed=1, start_ns=ELEVEN_NS)

    def dies_again_and_is_removed(self) -> None:
        simulate(self._replay, seed=1, start_ns=ELEVEN_NS + 2 * HOUR_NS)

    async def _publish(self, simulation: Simulation) -> None:
        with Journal(self.directory, world=world(simulation), threaded=False) as journal:
            async with self._shop(journal, simulation) as bus:
                await bus.publish("orders.placed", {"total": 13})
                await bus.quiet()
                await bus.flush()

    async def _replay(self, simulation: Simulation) -> None:
        settings = JournalSettings(tend_s=3600.0, retention=(Retention(topics="orders.*", max_age_s=60),))
        with Journal(self.directory, settings, world=world(simulation), threaded=False) as journal:
            async with self._shop(journal, simulation) as bus:
                assert (await bus.replay_dead()).count == 1
                await bus.quiet()
                await bus.publish("ticks", 1)
                await bus.flush()
            assert [removal.topic for removal in journal.tender.retain()] == ["orders.placed"]

    @asynccontextmanager
    async def _shop(self, journal: Journal, simulation: Simulation) -> AsyncIterator[tl.Bus]:
        async with tl.connect("memory:", name="shop", journal=journal, world=world(simulation)) as bus:

            @bus.on("orders.*", durable=True, retry=tl.Retry(attempts=1))
            async def bill(order: dict[str, Any]) -> None:
                raise ValueError("bad order")

            yield bus


def forgetful(directory: Path) -> None:
    """A journal whose retention has removed most of a topic before it was read."""
    clock = Clock(ELEVEN_NS)
    with journal_in(directory, clock, retention=(Retention(topics="log", max_count=KEPT),)) as journal:
        fill(journal, 3, 1, "ticks")
        fill(journal, LOST + KEPT, 1, "log")
        journal.tender.retain()
