"""Unopened messages: every way of taking them gives the same messages, in the same order and with the same books."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Sequence
from contextlib import aclosing
from math import inf

import pytest

import trunkline as tl
from trunkline import columns
from trunkline.delivery.custody import Custody
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.stream import Stream
from trunkline.delivery.subscriber import Overflow
from trunkline.delivery.unopened import MessageBatch, UnopenedBatch, UnopenedQueue
from trunkline.errors import InboxFull, StreamEmpty
from trunkline.message import Message
from trunkline.testing import Simulation, simulate, world
from trunkline.unchecked import numbered

TOPIC = "a.b"


def unopened(first: int, count: int, *, sizes: bool = False) -> UnopenedBatch:
    """Messages from the number `first` on, of one size or of several."""
    numbers = range(first, first + count)
    payloads = [b"%05d" % number + bytes(number % 3 if sizes else 0) for number in numbers]
    body = columns.pack_run([f"id-{number:05}" for number in numbers], list(numbers), payloads, "me", "text/plain")
    found = columns.read_plain(body, count)
    assert found is not None
    return UnopenedBatch(TOPIC, first, count, found, len(body))


def seqs(messages: Sequence[Message]) -> list[int]:
    return [message.seq for message in messages]


def test_a_batch_looks_like_the_list_of_its_messages() -> None:
    one, two = unopened(1, 3), unopened(4, 2, sizes=True)
    expected = [*one.open(), *two.open()]
    batch = MessageBatch([one, two])
    assert len(batch) == 5
    assert batch
    assert batch.payloads() == [message.payload for message in expected]
    assert batch == expected
    assert expected == batch
    assert batch != expected[:-1]
    assert batch == MessageBatch([one, two])
    assert list(batch) == expected
    assert (batch[0], batch[-1], batch[1:3]) == (expected[0], expected[-1], expected[1:3])
    assert batch[0] is batch[0], "built once"
    assert expected[2] in batch
    assert list(reversed(batch)) == expected[::-1]
    more = expected[:1]
    assert more + batch == [*more, *expected]
    assert batch + more == [*expected, *more]
    assert repr(batch) == repr(expected)
    assert pickle.loads(pickle.dumps(batch)) == expected
    assert batch.payloads() == [message.payload for message in expected]
    assert expected[0].sender == "me"
    assert (expected[3].topic, expected[3].id, expected[3].timestamp_ns) == (TOPIC, "id-00004", 4)
    with pytest.raises(TypeError):
        hash(batch)


def test_some_may_have_a_trace() -> None:
    ids, traces = [f"id-{number:05}" for number in range(5)], [None, "one", None, None, "two"]
    body = columns.pack_run(ids, list(range(5)), [b"x"] * 5, "me", "text/plain", traces)
    found = columns.read_plain(body, 5)
    assert found is not None
    first, rest = UnopenedBatch(TOPIC, 1, 5, found, len(body)).split(2)
    assert [message.trace for message in (*first.open(), *rest.open())] == traces
    assert [message.trace for message in columns.read(TOPIC, body, range(1, 6))] == traces
    # An empty one is not a trace, and is kept as it is.
    body = columns.pack_run(ids, list(range(5)), [b"x"] * 5, "me", "text/plain", ["", *traces[1:]])
    assert [message.trace for message in columns.read(TOPIC, body, range(1, 6))] == ["", *traces[1:]]
    for wrong in (traces[1:], [1, 2, 3, 4, 5], [None, "one", 0, None, "two"], 7, {"a": "b"}):
        body = columns.pack_run(ids, list(range(5)), [b"x"] * 5, "me", "text/plain", wrong)  # type: ignore[arg-type]
        assert columns.read_plain(body, 5) is None


@pytest.mark.parametrize("most", [1, 2, 3, 5, 100])
def test_a_queue_gives_no_more_than_is_wanted(most: int) -> None:
    queue = UnopenedQueue()
    for first, count in ((1, 4), (5, 1), (6, 7)):
        queue.put(unopened(first, count, sizes=True))
    assert queue.since_ns == 1
    found: list[int] = []
    while taken := queue.take(most):
        assert sum(batch.count for batch in taken) <= most
        for batch in taken:
            assert batch.payloads() == [message.payload for message in batch.open()]
            found += seqs(batch.open())
        assert queue.count == 12 - len(found)
    assert found == list(range(1, 13))
    assert (queue.count, queue.size, queue.since_ns) == (0, 0, 0)


class Twin:
    """An inbox and its stream. Messages come to it as columns, which stay unopened or not."""

    def __init__(self, now: Simulation, overflow: Overflow, *, keeps: bool) -> None:
        self.inbox = Inbox("twin", TOPIC, world(now).time_ns, capacity=40, overflow=overflow)
        custody = Custody(self.inbox, lease_s=30.0, retry=tl.Retry(), chance=random.Random(1), on_dead=lambda *_: None)
        self.stream = Stream(self.inbox, custody, ack=False)
        self.inbox.leave = lambda inbox: None
        self.keeps = keeps
        self.kept = 0

    def come(self, batch: UnopenedBatch) -> None:
        if self.keeps and self.inbox.keep(batch):
            self.kept += 1
            return
        self.inbox.open()
        for message in batch.open():
            self.offer(message)

    def offer(self, message: Message) -> None:
        try:
            assert self.inbox.offer(message) is None
        except InboxFull:
            assert self.inbox.overflow is Overflow.REJECT

    def recv(self) -> int:
        try:
            return self.stream.try_recv().seq
        except StreamEmpty:
            return 0


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.DROP_NEWEST, Overflow.REJECT])
@pytest.mark.parametrize("seed", range(12))
def test_unopened_or_not_makes_no_difference(seed: int, overflow: Overflow) -> None:
    async def main(now: Simulation) -> None:
        chance = random.Random(seed)
        twins = [Twin(now, overflow, keeps=keeps) for keeps in (False, True)]
        number = 1
        async with aclosing(twins[0].stream.batches(7)) as plain, aclosing(twins[1].stream.batches(7)) as lazy:
            # Somebody iterates over batches, and sleeps: what comes may stay unopened.
            sides = list(zip(twins, (plain, lazy), strict=True))
            for twin, batches in sides:
                twin.offer(numbered("first", TOPIC, b"", 0, number))
                assert seqs(await anext(batches)) == [number]
            for _ in range(300):
                event = chance.random()
                number += 1
                if event < 0.4:
                    count = chance.randrange(1, 12)
                    batch = unopened(number, count, sizes=chance.random() < 0.5)
                    for twin in twins:
                        twin.come(batch)
                    number += count
                elif event < 0.5:
                    priority = chance.choice([10, 50, 90])
                    ttl_s = chance.choice([None, 0.5])
                    fields = (f"id {number}", TOPIC, b"x", now.time_ns(), number, "", "", tl.MessageType.PUBLISH, None)
                    for twin in twins:
                        twin.offer(numbered(*fields, priority, ttl_s))
                elif event < 0.6:
                    await asyncio.sleep(chance.random())
                elif event < 0.7:
                    assert twins[0].recv() == twins[1].recv()
                elif event < 0.75:
                    assert seqs(twins[0].stream.unfinished()) == seqs(twins[1].stream.unfinished())
                elif any((each.expires_ns or inf) > now.time_ns() for each in twins[0].inbox.messages()):
                    # Batches may be cut elsewhere, never ordered otherwise.
                    taken = [seqs(await anext(batches)) for _, batches in sides]
                    while len(taken[0]) != len(taken[1]):
                        short = 0 if len(taken[0]) < len(taken[1]) else 1
                        taken[short] += seqs(await anext(sides[short][1]))
                    assert taken[0] == taken[1]
                assert twins[0].stream.account() == twins[1].stream.account()
                assert twins[0].stream.depth == twins[1].stream.depth
                assert twins[0].inbox.free == twins[1].inbox.free
                waiting = [twin.inbox.waiting_since_ns for twin in twins]
                assert waiting[0] == waiting[1]
        assert twins[1].kept
        for twin in twins:
            twin.inbox.close()
            twin.inbox.discard()
            twin.inbox.gone = True

    simulate(main, seed=seed)


def test_what_is_urgent_comes_before_what_is_not_open() -> None:
    async def main(now: Simulation) -> None:
        twin = Twin(now, Overflow.DROP_OLDEST, keeps=True)
        async with aclosing(twin.stream.batches()) as batches:
            twin.offer(numbered("first", TOPIC, b"", 0, 1))
            assert seqs(await anext(batches)) == [1]
            twin.come(unopened(2, 20))
            twin.offer(numbered("urgent", TOPIC, b"!", 0, 22, "", "", tl.MessageType.PUBLISH, None, 100))
            assert seqs(await anext(batches)) == [22]
            rest = await anext(batches)
            assert isinstance(rest, MessageBatch), "the urgent one did not open the others"
            assert seqs(rest) == list(range(2, 22))
        twin.inbox.gone = True

    simulate(main)
