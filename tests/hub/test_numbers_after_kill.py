"""No number is given twice, also if the hub is killed: its clients hold and report messages by their numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import trunkline as tl
from tests.hub.hubs import connection_of, received, until
from tests.hub.up import up
from trunkline.journal import Journal, JournalSettings, Sync
from trunkline.journal.broker import JournalBroker
from trunkline.journal.number_reserve import BLOCK, NumberReserve
from trunkline.wire import control

DEADLINE_S = 60.0


def settings(folder: Path) -> str:
    return f'[hub.journal]\ndirectory = "{folder / "journal"}"\nsync = "system"\ndurable = ["orders.>"]\n'


async def connected(bus: tl.Bus, before: str) -> str:
    """Return when the bus is connected to another run of the hub than before; its id."""
    connection = connection_of(bus)

    def run() -> str:
        return connection.welcome.hub if connection.live and connection.welcome is not None else before

    await until(lambda: run() != before, f"{bus.name} is connected")
    return run()


async def has_subscribers(bus: tl.Bus, topic: str) -> bool:
    answer = await connection_of(bus).ask(lambda number: control.Topic(id=number, topic=topic))
    assert isinstance(answer, control.TopicInfo)
    return answer.heard


def test_an_acknowledgement_is_about_the_message_that_was_sent(tmp_path: Path) -> None:
    """A member of a group holds a message while the hub is killed. What comes next is another message."""

    async def main() -> None:
        how = tl.ConnectionSettings(connect_s=DEADLINE_S, backoff_s=0.05)
        async with (
            asyncio.timeout(DEADLINE_S),
            tl.connect(hub.address, name="worker", connection=how) as worker,
            worker.subscribe("work", group="workers", name="worker", ack=True) as work,
        ):
            run = await connected(worker, "")
            async with tl.connect(hub.address, name="before") as publisher:
                await publisher.publish("work", "first")
                await publisher.flush()
            first = await work.recv()
            assert first is not None
            hub.kill()
            await asyncio.to_thread(hub.start)
            await connected(worker, run)
            async with tl.connect(hub.address, name="after") as publisher:
                while not await has_subscribers(publisher, "work"):
                    # Each question takes a round trip.
                    continue
                second_id = await publisher.publish("work", "second")
                await publisher.flush()
                assert work.ack(first)
                await worker.flush()
                (outcome,) = (await publisher.explain(second_id)).outcomes
                assert outcome.fate is tl.Fate.IN_FLIGHT
                assert await received(work) == "second"

    with up(tmp_path, config=settings(tmp_path)) as hub:
        asyncio.run(main())


def test_a_killed_run_leaves_its_reserve_and_a_closed_one_its_last_number(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal(tmp_path, JournalSettings(sync=Sync.SYSTEM), threaded=False)
        broker = JournalBroker(journal)
        numbers = NumberReserve(journal)
        await numbers.begin()
        assert numbers.due == BLOCK // 2
        broker.sequence.reserve(BLOCK)
        numbers.extend()
        await journal.flush()
        # As after a kill: nothing was closed.
        (last,) = journal.reader.query("SELECT value FROM meta WHERE key = 'last'")[0]
        assert last > 2 * BLOCK
        assert numbers.due > BLOCK
        await broker.aclose()
        journal.close()
        with Journal(tmp_path, threaded=False) as again:
            assert again.intake.numbers.last == BLOCK

    asyncio.run(main())


def test_a_hub_without_a_journal_does_not_begin_again(tmp_path: Path) -> None:
    """Also one that is embedded in a program, which ends and starts again while a worker holds a message."""
    address = f"unix://{tmp_path / 'hub.sock'}"

    async def main() -> None:
        how = tl.ConnectionSettings(connect_s=DEADLINE_S, backoff_s=0.05)
        program = tl.connect(address, name="program", embed=True)
        await program.__aenter__()
        async with (
            asyncio.timeout(DEADLINE_S),
            tl.connect(address, name="worker", connection=how) as worker,
            worker.subscribe("work", group="workers", name="worker", ack=True) as work,
        ):
            run = await connected(worker, "")
            await program.publish("work", "first")
            first = await work.recv()
            assert first is not None
            await program.aclose()
            async with tl.connect(address, name="program", embed=True) as again:
                await connected(worker, run)
                while not await has_subscribers(again, "work"):
                    # Each question takes a round trip.
                    continue
                second_id = await again.publish("work", "second")
                assert work.ack(first)
                await worker.flush()
                (outcome,) = (await again.explain(second_id)).outcomes
                assert outcome.fate is tl.Fate.IN_FLIGHT
                assert await received(work) == "second"

    asyncio.run(main())
