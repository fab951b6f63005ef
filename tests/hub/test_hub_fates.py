"""A hub with a journal knows the fate of every message, including subscribers in other processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import trunkline as tl
from tests.hub.hubs import Place, until
from trunkline.journal import Reader
from trunkline.testing import Simulation, simulate, world


def test_the_journal_has_the_fates_of_plain_subscribers(tmp_path: Path) -> None:
    ids: list[str] = []

    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path)
        await place.start()
        async with place.bus("publisher") as publisher, place.bus("subscriber") as subscriber:

            @subscriber.on("orders.*", name="billing", retry=tl.Retry(attempts=1))
            async def billing(number: int) -> None:
                if number == 7:
                    raise tl.Reject("seven")

            async with subscriber.subscribe("orders.*", name="audit", where="payload != 3") as audit:
                for number in range(10):
                    ids.append(await publisher.publish("orders.placed", number))
                for _ in range(9):
                    await audit.recv()
                await subscriber.quiet()
                await until(lambda: len(subscriber.dead_letters) == 1, "the letter is there")
                await asyncio.sleep(0.1)
        await place.stop()

    simulate(play)
    with Reader(tmp_path) as journal:
        for number, message_id in enumerate(ids):
            message = journal.find(message_id)
            assert message is not None
            fates = {each.subscriber: each.fate for each in journal.outcomes(message)}
            assert fates["billing"] is (tl.Fate.DEAD if number == 7 else tl.Fate.DELIVERED)
            assert fates["audit"] is (tl.Fate.FILTERED if number == 3 else tl.Fate.DELIVERED)
        assert journal.query("SELECT subscriber, topic, cause FROM dead_letters") == [
            ("billing", "orders.placed", "rejected by the handler")
        ]
