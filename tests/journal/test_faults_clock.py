"""A clock that jumps back, while the journal is open and while it is closed, does not affect numbers and order."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import pytest

import trunkline as tl
from tests.journal.books import check_order
from tests.journal.books import messages as stored
from trunkline.journal import Journal, JournalSettings, Reader

HOUR_NS = 3600 * 1_000_000_000
SETTINGS = JournalSettings(seal=False, seal_rows=50, replaced_s=0.0)


class Clock:
    """The clock of this machine, with an offset."""

    def __init__(self) -> None:
        self.wrong_ns = 0
        self.world = tl.World(time_ns=self.time_ns, uuid7=self._uuid7)

    def time_ns(self) -> int:
        return time.time_ns() + self.wrong_ns

    def _uuid7(self) -> str:
        chance = uuid.uuid4().int & ((1 << 74) - 1)
        return str(uuid.UUID(int=self.time_ns() // 1_000_000 << 80 | 7 << 76 | 2 << 62 | chance >> 12))


async def publish(bus: tl.Bus, era: int) -> None:
    """In every way of publishing, each with a clock that jumped."""
    await bus.publish_many("a", [f"{era}:{n}".encode() for n in range(20)])
    await asyncio.gather(*(bus.publish("b", f"{era}:b{n}".encode()) for n in range(20)))
    async with bus.pipeline() as pipe:
        for n in range(20):
            await pipe.publish("c", f"{era}:c{n}".encode())


def accepted(reader: Reader) -> list[int]:
    """The times of acceptance, in microseconds, in order."""
    return [us for batch in reader.arrow(columns=["accepted"]) for us in batch["accepted"].cast("int64").to_pylist()]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_clock_that_jumps_back_changes_nothing(tmp_path: Path, restarts: bool, sealed: bool) -> None:
    clock = Clock()
    jumps = [0, -5 * HOUR_NS, 26 * HOUR_NS, -48 * HOUR_NS, -1_000_000]
    taken: list[str] = []

    async def era(journal: Journal, number: int) -> None:
        clock.wrong_ns += jumps[number]
        async with (
            tl.connect("memory:", journal=journal) as bus,
            bus.subscribe(">", name="worker", durable=True, start="beginning") as stream,
            asyncio.timeout(20),
        ):
            await publish(bus, number)
            while len(taken) < 60 * (number + 1):
                message = await stream.recv()
                assert message is not None
                taken.append(message.payload.decode())
                stream.ack(message)
        if sealed:
            await asyncio.to_thread(journal.seal, everything=True)
            await asyncio.to_thread(journal.tender.join)
            await asyncio.to_thread(journal.tender.forget_replaced)

    async def main() -> None:
        journal = Journal(tmp_path, SETTINGS, world=clock.world)
        for number in range(len(jumps)):
            with journal.open():
                await era(journal, number)
                while not restarts and number + 1 < len(jumps):
                    number += 1
                    await era(journal, number)
            if not restarts:
                break

    asyncio.run(main())
    with Reader(tmp_path) as reader:
        found = stored(reader)
        check_order(found)
        assert len(found) == 60 * len(jumps)
        assert [each.payload for each in found] == taken
        times = accepted(reader)
        assert times == sorted(times)
        rows = [at_ns for (at_ns,) in reader.query("SELECT at_ns FROM batches ORDER BY first")]
        assert rows == sorted(rows)
        # By their own time, which is that of the clock: each era by itself.
        for number in range(len(jumps)):
            own = [each for each in reader.messages() if each.payload.startswith(f"{number}:".encode())]
            since, until = min(each.timestamp_ns for each in own), max(each.timestamp_ns for each in own)
            between = reader.messages(since=(since - 1000) / 1e9, until=(until + 2000) / 1e9)
            assert {each.seq for each in own} <= {each.seq for each in between}
        at_once = list(reader.messages(since=0.0))
        assert [each.seq for each in at_once] == [each.seq for each in found]


def test_a_message_is_found_by_its_id_after_the_clock_jumped(tmp_path: Path) -> None:
    """Ids are drawn in blocks: those of a block begun before the jump carry a time that is far from the message's."""
    clock = Clock()

    async def main() -> None:
        with Journal(tmp_path, SETTINGS, world=clock.world) as journal:
            async with tl.connect("memory:", journal=journal) as bus:
                before = await bus.publish("a", b"before")
                clock.wrong_ns -= HOUR_NS
                after = await bus.publish("a", b"after")
                for name in (before, after):
                    found = journal.reader.find(name)
                    assert found is not None
                    assert found.id == name

    asyncio.run(main())
