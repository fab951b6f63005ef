"""A batch that is sent again is stored once, keeps its place in the order, and does not block the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import uuid_utils

import trunkline as tl
from tests.actors.running import run
from tests.journal.journals import until
from trunkline import columns
from trunkline.clock import World
from trunkline.delivery.batch import Batch
from trunkline.journal import Journal, JournalSettings
from trunkline.journal.broker import JournalBroker
from trunkline.message import Message
from trunkline.testing import no_leaks
from trunkline.wire.frames import PublishHead


class Publisher:
    """Notes what the broker says of its batches."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        """The number of the first message of each batch."""

    def settled(self, batch: Batch) -> None:
        assert not batch.failures
        self.numbers[batch.number] = batch.first


def batch(publisher: Publisher, messages: Sequence[Message], number: int, *, again: bool) -> Batch:
    head = PublishHead(number, messages[0].topic, len(messages), messages[0].priority, again=again)
    return Batch(publisher, head, columns.pack_batch(list(messages)), 7)


def messages(world: World, by_hand: bool) -> list[Message]:
    now_ns = world.time_ns()
    ids = [f"id-{name}" if by_hand else f"{uuid_utils.uuid7()}" for name in "1234"]
    return [
        tl.Message(id=message_id, topic="a", payload=name.encode(), timestamp_ns=now_ns)
        for message_id, name in zip(ids, "1234", strict=True)
    ]


@pytest.mark.parametrize("by_hand", [False, True], ids=["ids of the bus", "ids made by hand"])
def test_it_is_stored_once_and_in_order(tmp_path: Path, by_hand: bool) -> None:
    async def main() -> None:
        journal = Journal(tmp_path, JournalSettings(durable=("a",), seal=False))
        broker = JournalBroker(journal, owns_journal=True)
        publisher = Publisher()
        try:
            one, two, three, four = messages(broker.world, by_hand)
            broker.take(batch(publisher, [one], 1, again=False))
            await until(lambda: len(publisher.numbers) == 1)
            # The first was stored; the second was not, and the third is new: it must not overtake the second.
            broker.take(batch(publisher, [one], 2, again=True))
            broker.take(batch(publisher, [two], 3, again=True))
            broker.take(batch(publisher, [three], 4, again=False))
            assert len(publisher.numbers) == 1, "the event loop has not searched"
            await until(lambda: len(publisher.numbers) == 4)
            # One that is on its way is not stored twice, either.
            broker.take(batch(publisher, [four], 5, again=False))
            broker.take(batch(publisher, [four], 6, again=True))
            await until(lambda: 6 in publisher.numbers)
            assert [message.payload for message in journal.reader.messages("a")] == [b"1", b"2", b"3", b"4"]
            assert publisher.numbers[1] == publisher.numbers[2]
        finally:
            await broker.aclose()

    run(main())


def test_the_end_comes_while_one_is_looked_for(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal(tmp_path, JournalSettings(durable=("a",), seal=False))
        broker = JournalBroker(journal, owns_journal=True)
        publisher = Publisher()
        with no_leaks():
            broker.take(batch(publisher, messages(broker.world, False)[:1], 1, again=True))
            await broker.aclose()
        assert publisher.numbers == {}

    run(main())
