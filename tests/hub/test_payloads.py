"""`payloads()` and `batches()`: a message is built when it is accessed, and has the same fate if it never is."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

import trunkline as tl
from tests.hub.hubs import Place, until
from trunkline import columns
from trunkline.testing import Simulation, simulate, world

SENT = [str(number).encode() for number in range(700)]


def with_hub(test: Any) -> None:
    async def main(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        try:
            async with place.bus("publisher") as publisher, place.bus("subscriber") as subscriber:
                await test(publisher, subscriber)
        finally:
            await place.stop()

    simulate(main)


async def taken(stream: tl.Stream, count: int, max_size: int = 1000) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(stream.payloads(max_size)) as lists:
        async for each in lists:
            assert 0 < len(each) <= max_size
            found += each
            if len(found) >= count:
                break
    return found


async def reading(stream: tl.Stream) -> tuple[AsyncGenerator[list[bytes], None], asyncio.Task[list[bytes]]]:
    """Payloads, and a waiter for the first of them."""
    lists = stream.payloads()

    async def first() -> list[bytes]:
        return await anext(lists)

    waiting = asyncio.create_task(first())
    await asyncio.sleep(0)
    return lists, waiting


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of messages that were built from columns."""
    counts: list[int] = []
    build = columns.build

    def counted(topic: str, body: columns.Body, seqs: Any) -> list[tl.Message]:
        counts.append(len(seqs))
        return build(topic, body, seqs)

    monkeypatch.setattr(columns, "build", counted)
    return counts


def test_no_message_is_built(built: list[int]) -> None:
    async def test(publisher: tl.Bus, subscriber: tl.Bus) -> None:
        async with subscriber.subscribe("a", name="taker") as stream:

            async def take() -> list[bytes]:
                return await taken(stream, len(SENT), max_size=100)

            taking = asyncio.create_task(take())
            await asyncio.sleep(0)
            ids = await publisher.publish_many("a", SENT)
            await publisher.flush()
            assert await taking == SENT
            assert built == []
            account = stream.account()
            assert (account.accepted, account.delivered, account.in_flight) == (700, 700, 0)
            await asyncio.sleep(2)
            assert "taker: delivered" in str(await publisher.explain(ids[350]))

    with_hub(test)


def test_a_message_is_built_when_somebody_looks(built: list[int]) -> None:
    async def test(publisher: tl.Bus, subscriber: tl.Bus) -> None:
        async with subscriber.subscribe("a", name="taker") as stream:

            async def take() -> list[Sequence[tl.Message]]:
                found: list[Sequence[tl.Message]] = []
                async for batch in stream.batches(max_size=100):
                    assert 0 < len(batch) <= 100
                    found.append(batch)
                    if sum(map(len, found)) == len(SENT):
                        break
                return found

            taking = asyncio.create_task(take())
            await asyncio.sleep(0)
            ids = await publisher.publish_many("a", SENT)
            await publisher.flush()
            batches = await taking
            account = stream.account()
            assert (account.accepted, account.delivered, account.in_flight) == (700, 700, 0)
            assert built == []
            messages = [message for batch in batches for message in batch]
            assert sum(built) == 700
            assert [message.payload for message in messages] == SENT
            assert [message.id for message in messages] == ids
            assert [message for batch in batches for message in batch] == messages
            assert sum(built) == 700, "once"

    with_hub(test)


def test_who_stops_iterating_over_batches_finds_the_rest() -> None:
    async def test(publisher: tl.Bus, subscriber: tl.Bus) -> None:
        async with subscriber.subscribe("a") as stream:
            lists = stream.batches(max_size=10)

            async def first() -> Sequence[tl.Message]:
                return await anext(lists)

            waiting = asyncio.create_task(first())
            await asyncio.sleep(0)
            await publisher.publish_many("a", SENT)
            await publisher.flush()
            got = list(await waiting)
            await until(lambda: stream.depth == 690, "the others have arrived")
            # The iterator is still there, and takes nothing more: what was kept for it is for everybody.
            assert stream.try_recv().payload == SENT[10]
            got += await anext(aiter(stream.batches(max_size=1)))
            async for message in stream:
                got.append(message)
                if message.payload == SENT[-1]:
                    break
            assert [each.payload for each in got] == SENT[:10] + SENT[11:]
            await lists.aclose()

    with_hub(test)


def test_what_is_not_plain_keeps_its_place() -> None:
    async def test(publisher: tl.Bus, subscriber: tl.Bus) -> None:
        async with subscriber.subscribe("a") as stream:
            sent: list[bytes] = []
            for number in range(60):
                fields: dict[str, Any] = {"ttl_s": 60} if number % 7 == 0 else {}
                sent.append(str(number).encode())
                await publisher.publish("a", sent[-1], **fields)
            await publisher.flush()
            assert await taken(stream, 60) == sent
            assert stream.account().delivered == 60

    with_hub(test)


def test_what_was_not_taken_is_there_for_others() -> None:
    async def test(publisher: tl.Bus, subscriber: tl.Bus) -> None:
        async with subscriber.subscribe("a") as stream:
            lists, first = await reading(stream)
            for start in range(0, 600, 100):
                await publisher.publish_many("a", SENT[start : start + 100])
                await publisher.flush()
            got = await first
            assert 0 < len(got) < 600
            await until(lambda: stream.account().accepted == 600, "all have arrived")
            assert stream.account().in_flight == 600 - len(got)
            await lists.aclose()
            while len(got) < 600:
                message = await stream.recv(timeout_s=1)
                assert message is not None
                got.append(message.payload)
            assert got == SENT[:600]
            assert stream.account().in_flight == 0

    with_hub(test)


def test_who_leaves_loses_what_was_not_taken_and_that_is_on_record() -> None:
    async def test(publisher: tl.Bus, subscriber: tl.Bus) -> None:
        stream = await subscriber.subscribe("a", name="taker").open()
        lists, first = await reading(stream)
        ids: list[str] = []
        for start in range(0, 600, 100):
            ids += await publisher.publish_many("a", SENT[start : start + 100])
            await publisher.flush()
        got = await first
        assert 0 < len(got) < 600
        await until(lambda: stream.account().accepted == 600, "all have arrived")
        await stream.aclose()
        account = stream.account()
        assert account.in_flight == 0
        assert account.delivered == len(got)
        assert account.accepted == 600 == account.delivered + account.dropped
        await lists.aclose()
        await until(lambda: stream.closed, "it is closed")
        assert "taker: dropped" in str(await publisher.explain(ids[-1]))

    with_hub(test)


def test_an_inbox_is_no_larger_than_it_may_be() -> None:
    async def test(publisher: tl.Bus, subscriber: tl.Bus) -> None:
        async with subscriber.subscribe("a", capacity=50, overflow="drop_oldest") as stream:
            lists, first = await reading(stream)
            for start in range(0, 600, 20):
                await publisher.publish_many("a", SENT[start : start + 20])
                await publisher.flush()
            got = await first
            assert 0 < len(got) < 600
            await until(lambda: stream.account().accepted == 600, "all have arrived or were dropped")
            assert stream.account().in_flight <= 50
            await lists.aclose()
            while stream.depth:
                got.append(stream.try_recv().payload)
            account = stream.account()
            assert account.delivered == len(got)
            assert account.accepted == account.delivered + account.dropped
            assert got[-50:] == SENT[550:600]

    with_hub(test)


def test_without_a_hub_too() -> None:
    async def main(simulation: Simulation) -> None:
        async with tl.connect("memory:", world=world(simulation)) as bus, bus.subscribe("a") as stream:
            await bus.publish_many("a", SENT)
            assert await taken(stream, len(SENT), max_size=10) == SENT

    simulate(main)


@pytest.mark.parametrize("seed", range(8))
def test_cut_connections_lose_nothing_in_silence(seed: int) -> None:
    """Payloads arrive once and in order. Each missing one was refused to its publisher or recorded as dropped."""
    chance = random.Random(seed)

    async def main(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus("publisher") as publisher, place.bus("subscriber") as subscriber:
            stream = await subscriber.subscribe("a", name="taker").open()
            got: list[int] = []

            async def take() -> None:
                async for payloads in stream.payloads(max_size=chance.choice([3, 50, 1000])):
                    got.extend(map(int, payloads))
                    await asyncio.sleep(chance.random() / 100)

            taking = asyncio.create_task(take())
            numbers = itertools.count()
            # A subscriber that knows a publisher notices what it misses of it, by the positions of later messages.
            await publisher.publish("a", str(next(numbers)).encode())
            await until(lambda: bool(got), "the first payload is taken")
            for _ in range(40):
                batch = [str(number).encode() for number in itertools.islice(numbers, chance.randrange(1, 40))]
                if chance.random() < 0.5:
                    await publisher.publish_many("a", batch)
                else:
                    for payload in batch:
                        fields: dict[str, Any] = {"ttl_s": 30} if chance.random() < 0.05 else {}
                        await publisher.publish("a", payload, **fields)
                event = chance.random()
                if event < 0.08:
                    place.cut()
                elif event < 0.12:
                    await place.stop()
                    await place.start()
                    await place.back(publisher, subscriber)
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() / 10)
            # Both clients notice that the last connection was cut, and connect again.
            await asyncio.sleep(1)
            await place.back(publisher, subscriber)
            last = next(numbers)
            await publisher.publish("a", str(last).encode())
            await publisher.flush()
            await until(lambda: got[-1] == last, "the last payload is taken")
            account = stream.account()
            assert got == sorted(set(got))
            assert account.delivered == len(got)
            assert account.accepted == account.delivered + account.dropped + account.expired
            assert publisher.stats().total_refused + account.dropped >= next(numbers) - len(got)
            await stream.aclose()
            await taking
        await place.stop()

    simulate(main, seed=seed)
