"""Records beside messages and fates: a death stays recorded after a replay, until the message is removed."""

from __future__ import annotations

from pathlib import Path

import trunkline as tl
from tests.journal.journals import Place, journal_of, take, tend
from trunkline.journal import Reader, records
from trunkline.journal.settings import Retention
from trunkline.testing import Simulation


async def test_a_death_stays_on_record_when_its_letter_is_replayed(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", durable=True, name="x") as stream,
    ):
        await bus.publish("a", b"1")
        for reason in ("not now", "nor now"):
            (message,) = await take(stream, 1, ack=False)
            stream.reject(message, reason)
            (letter,) = bus.dead_letters
            await journal_of(bus).flush()
            bus.dead_letters.replay(letter)
        await take(stream, 1)
        await journal_of(bus).flush()
        with Reader(journal_of(bus).directory) as reader:
            assert not reader.query("SELECT * FROM dead_letters")
            found = records.deaths(reader, 1, 10)
            assert [(death.subscriber, death.seq, death.reason) for death in found] == [
                ("x", message.seq, "Reject: not now"),
                ("x", message.seq, "Reject: nor now"),
            ]
            assert found[0].cause == letter.cause.value
            assert found[0].attempts == 1
            assert records.deaths(reader, message.seq + 1, 10) == []


async def test_letters_of_an_older_version_are_deaths_too(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:

        @bus.on("a", durable=True, retry=tl.Retry(attempts=2))
        async def fail(_: bytes) -> None:
            raise ValueError("bad")

        await bus.publish("a", b"1")
        await bus.quiet()
        await journal_of(bus).flush()
        with Reader(journal_of(bus).directory) as reader:
            expected = records.deaths(reader, 1, 10)
        assert [(death.error_type, death.attempts) for death in expected] == [("ValueError", 2)]
        assert "raise ValueError" in (expected[0].traceback or "")
        journal_of(bus).writer.call(lambda database: database.execute("DROP TABLE deaths")).result()
        with Reader(journal_of(bus).directory) as reader:
            assert records.deaths(reader, 1, 10) == expected


async def test_a_death_goes_with_its_message_and_the_removal_is_on_record(
    simulation: Simulation, tmp_path: Path
) -> None:
    place = Place(simulation, tmp_path, retention=(Retention(max_count=1, even_unread=True),))
    async with place.bus() as bus, bus.subscribe("a", durable=True, name="x") as stream:
        for payload in (b"1", b"2"):
            await bus.publish("a", payload)
            (message,) = await take(stream, 1, ack=False)
            stream.reject(message, "no")
        bus.dead_letters.clear()
        await journal_of(bus).flush()
        tend(bus)
        with Reader(journal_of(bus).directory) as reader:
            assert [death.seq for death in records.deaths(reader, 1, 10)] == [message.seq]
            (removal,) = records.removals(reader, 0)
            assert (removal.topic, removal.count) == ("a", 1)
            assert records.removals(reader, removal.number) == []
