"""Entries that are not batches of Trunkline are counted, logged and skipped, on every engine."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import nats
import pytest
from redis.asyncio import Redis

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import KINDS, RedisServer
from tests.hub.hubs import until
from trunkline.brokers.engine import dead_letters
from trunkline.brokers.engine.adapter import EngineAdapter
from trunkline.brokers.engine.batches import HEAD_BYTES, BatchHead, entry_of, number_of
from trunkline.brokers.engine.broker import EngineBroker
from trunkline.brokers.engine.driver import Standing
from trunkline.bus.bus import Bus
from trunkline.delivery.dead_letters import UNREADABLE_BYTES

DEADLINE_S = 60.0
_namespaces = itertools.count()
Put = Callable[[str, bytes], Awaitable[None]]

POISON = {
    "nothing": b"",
    "text": b'{"action": "start"}',
    "bytes": b"\xff\x00" * 40,
    "the beginning of a head": b"TLB1\x00",
    "a head alone": BatchHead(1, 1, 0, 3).pack(),
    "a batch that was cut": BatchHead(1, 2, 0, 3).pack() + b"\x93\xa1",
    "more messages than it has": BatchHead(1, 3, 0, 65_536).pack() + b"\x90",
    "no priority": BatchHead(1, 4, 0, 1, priority=101).pack() + b"\x90",
    "numbers beyond all": BatchHead(1, 5, 2**64 - 1, 1, first=2**64 - 1).pack() + b"\x90",
    "large": b"x" * 5_000_000,
}


@pytest.fixture(scope="module", params=["nats", *KINDS])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    with NatsServer(folder) if request.param == "nats" else RedisServer(request.param, folder) as running:
        yield running.url


@asynccontextmanager
async def foreign(server: str, space: str, *, stored: bool) -> AsyncIterator[Put]:
    """Writes bytes where a topic of Trunkline is stored, as another program would."""
    if server.startswith("nats"):
        async with await nats.connect(server) as connection:

            async def publish(topic: str, data: bytes) -> None:
                await connection.publish(f"{space}.{topic}", data)
                await connection.flush()

            yield publish
        return
    async with Redis.from_url(server) as client:

        async def put(topic: str, data: bytes) -> None:
            if stored:
                # Between entries of ours, and with their fields.
                number = int(await client.incr(f"{{{space}}}:seq"))
                fields = {b"p": b"0", b"i": b"", b"d": data, b"b": b"0"}
                await client.xadd(f"{{{space}}}:s:{topic}", fields, id=f"{number}-1")  # type: ignore[arg-type]
            else:
                await client.publish(f"{{{space}}}:t:{topic}", data)

        yield put


def adapter_of(bus: Bus) -> EngineAdapter:
    assert isinstance(bus.broker, EngineBroker)
    return bus.broker.adapter


@asynccontextmanager
async def bus_at(server: str, space: str, more: str = "") -> AsyncIterator[Bus]:
    where = f"{server}?synced=true&connect_s=60&lease_s=1&namespace={space}{more}"
    async with asyncio.timeout(DEADLINE_S), tl.connect(where, name="bus") as bus:
        yield bus


def test_on_a_plain_topic(server: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        space = f"p{next(_namespaces)}"
        async with bus_at(server, space) as bus, foreign(server, space, stored=False) as put:
            got: dict[str, list[int]] = {"t": [], ">": []}

            @bus.on("t")
            async def take(number: int) -> None:
                got["t"].append(number)

            @bus.on(">")
            async def take_all(number: int) -> None:
                got[">"].append(number)

            assert isinstance(bus.broker, EngineBroker)
            for feed in list(bus.broker.feeds.values()):
                # The server has the subscription: others publish on connections of their own.
                await feed.opening
            for number, poison in enumerate(POISON.values()):
                await put("t", poison)
                await bus.publish("t", number)
            await bus.flush()
            wanted = list(range(len(POISON)))
            await until(lambda: got["t"] == got[">"] == wanted, "ours came")
            await until(lambda: adapter_of(bus).malformed == 2 * len(POISON), "each was counted, for both")
            assert adapter_of(bus).connects == 1
        assert "on t could not be read" in caplog.text

    with caplog.at_level(logging.ERROR, "trunkline"):
        asyncio.run(test())


@pytest.mark.parametrize("group", [True, False], ids=["a group", "a durable subscription"])
def test_on_a_stored_topic(server: str, group: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        space = f"s{next(_namespaces)}"
        async with bus_at(server, space, "&durable=t") as bus, foreign(server, space, stored=True) as put:
            got: list[int] = []

            async def take(number: int) -> None:
                got.append(number)

            bus.on("t", durable=True, group="g" if group else None, name=None if group else "d")(take)
            await bus.flush()
            for number, poison in enumerate(POISON.values()):
                await put("t", poison)
                await bus.publish("t", number)
            wanted = list(range(len(POISON)))
            await until(lambda: got == wanted, "ours came")
            await until(lambda: adapter_of(bus).malformed == len(POISON), "each was counted")
            async with bus.subscribe("t", start="beginning") as again:
                read = [message.decode() for _ in wanted if (message := await again.recv()) is not None]
            assert read == wanted
            last = await bus.last("t")
            assert last is not None
            assert last.decode() == wanted[-1]
            assert adapter_of(bus).connects == 1
            # All of it is acknowledged: nothing is redelivered.
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            driver = adapter_of(bus).driver
            for number in range(1, entry_of(last.seq)[0] + 1):
                while list((await driver.standings("t", number_of(number), set())).values()) != [Standing.ACKNOWLEDGED]:
                    assert asyncio.get_running_loop().time() < deadline, number
                    await asyncio.sleep(0.01)
            # Each is a dead letter, with its data.
            letters = list(bus.dead_letters)
            for (name, poison), letter in zip(POISON.items(), letters, strict=True):
                # The data of a batch is what comes after its head.
                data = [each[:UNREADABLE_BYTES] for each in (poison, poison[HEAD_BYTES:])]
                assert letter.message.payload in data, name
                assert (letter.subscriber, letter.cause) == ("g" if group else "d", tl.Cause.INVALID_PAYLOAD), name
                with pytest.raises(tl.InvalidPayload):
                    letter.message.decode()
            assert "the first 65,536 of 5,000,000 bytes are kept" in letters[-1].message.encoding
            assert isinstance(bus.broker, EngineBroker)
            (account,) = (each for each in bus.broker.served.accounts().values() if each.dead)
            assert (account.dead, account.balanced) == (len(POISON), True)
            # Other processes see them.
            kept = await bus.broker.dead_letters.find()
            assert sorted(each.letter.message.id for each in kept) == sorted(each.message.id for each in letters)
        assert "on t could not be read" in caplog.text

    with caplog.at_level(logging.ERROR, "trunkline"):
        asyncio.run(test())


def test_its_dead_letter_is_replayed(server: str) -> None:
    """As it is, it fails again. With a payload of its own, it is delivered, to the subscriber that failed."""

    async def test() -> None:
        space = f"r{next(_namespaces)}"
        async with bus_at(server, space, "&durable=t") as bus, foreign(server, space, stored=True) as put:
            got: list[int] = []

            @bus.on("t", group="g", durable=True)
            async def take(number: int) -> None:
                got.append(number)

            await bus.publish("t", 1)
            await put("t", b"?")
            await until(lambda: len(bus.dead_letters) == 1, "it is a dead letter")
            (letter,) = bus.dead_letters
            await bus.replay_dead()
            await until(lambda: bus.dead_letters.total == 2, "it failed again")
            assert got == [1]
            (again,) = bus.dead_letters
            assert (again.key, again.cause) == (letter.key, tl.Cause.INVALID_PAYLOAD)
            bus.dead_letters.replay(again, payload=7)
            await until(lambda: got == [1, 7], "the repaired message came")
            assert isinstance(bus.broker, EngineBroker)
            await bus.broker.adapter.settled()
            assert not await bus.broker.dead_letters.find()

    asyncio.run(test())


def test_the_newest_dead_letters_replace_the_oldest(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "MAX_UNREADABLE", 4)
    monkeypatch.setattr(dead_letters, "TRIM_EVERY", 5)

    async def test() -> None:
        space = f"n{next(_namespaces)}"
        async with bus_at(server, space, "&durable=t") as bus, foreign(server, space, stored=True) as put:
            assert isinstance(bus.broker, EngineBroker)
            kept = bus.broker.dead_letters
            async with bus.subscribe("t", name="d", durable=True):
                await bus.publish("t", 1)
                for number in range(10):
                    await put("t", b"%d" % number)
                await until(lambda: len(bus.dead_letters) == 10, "each is a dead letter here")
                await bus.broker.adapter.settled()
                found = [bytes(each.letter.message.payload) for each in await kept.find()]
                assert found == [b"6", b"7", b"8", b"9"]
                # The letter of an older one is gone. Removing it here removes no other.
                oldest = next(iter(bus.dead_letters))
                assert oldest.message.payload == b"0"
                assert bus.dead_letters.remove(oldest)
                await bus.broker.adapter.settled()
                assert len(await kept.find()) == 4

    asyncio.run(test())


@pytest.fixture(scope="module", params=KINDS)
def redis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(request.param, tmp_path_factory.mktemp("foreign")) as running:
        yield running


def test_entries_of_other_programs_with_our_numbers(redis: RedisServer) -> None:
    """In the stream of the topic and in the queue of the group: each is a dead letter, and ours is delivered."""

    async def test() -> None:
        space = f"c{next(_namespaces)}"
        async with bus_at(redis.url, space, "&durable=t") as bus, Redis.from_url(redis.url) as client:
            got: list[int] = []

            @bus.on("t", group="g", durable=True)
            async def take(number: int) -> None:
                got.append(number)

            await bus.flush()
            await bus.publish("t", 1)
            for key in ("s:t", "q:g"):
                await client.xadd(f"{{{space}}}:{key}", {"from": key}, id="2-0")
            # Its entry is 2 and the time.
            await bus.publish("t", 2)
            await until(lambda: got == [1, 2], "ours came")
            payloads = {b"from: s:t", b"from: q:g"}
            await until(
                lambda: {each.message.payload for each in bus.dead_letters} == payloads, "both are dead letters"
            )

    asyncio.run(test())


def test_entries_of_other_programs_in_a_stream_of_redis(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """With fields and numbers of their own: also who publishes there, reads from the beginning, or removes goes on."""

    async def test() -> None:
        space = f"f{next(_namespaces)}"
        async with (
            bus_at(redis.url, space, "&durable=t&max_bytes=100000") as bus,
            Redis.from_url(redis.url) as client,
        ):
            got: list[int] = []

            @bus.on("t", group="g", durable=True)
            async def take(number: int) -> None:
                if number < 1000:
                    got.append(number)

            await bus.flush()
            strange: list[dict[bytes, bytes]] = [
                {b"temperature": b"25"},
                {b"\xff\xfe": b"\xff", b"a": b"b", b"c": b"d"},
                {b"p": b"x", b"i": b"y", b"d": b"z", b"b": b"w"},
            ]
            for number, fields in enumerate(strange):
                await bus.publish("t", number)
                # Its number is the time in milliseconds, and thus higher than ours.
                await client.xadd(f"{{{space}}}:s:t", fields)  # type: ignore[arg-type]
            await client.xadd(f"{{{space}}}:q:g", {b"who": b"knows"})
            await client.publish(f"{{{space}}}:g:g", b"\xff")
            await client.publish(f"{{{space}}}:n", b"\xff")
            await bus.publish("t", len(strange))
            await until(lambda: got == list(range(len(strange) + 1)), "ours came")
            await until(lambda: adapter_of(bus).malformed >= len(strange) + 1, "each was counted")
            data = {b"temperature: 25", b"\xff\xfe: \xff\na: b\nc: d", b"p: x\ni: y\nd: z\nb: w", b"who: knows"}
            await until(lambda: {each.message.payload for each in bus.dead_letters} == data, "each is a dead letter")
            async with bus.subscribe("t", start="beginning") as again:
                read = [message.decode() for _ in range(4) if (message := await again.recv()) is not None]
            assert read == [0, 1, 2, 3]
            for number in range(1000, 1100):
                await bus.publish("t", number)
                await bus.publish("other", b"x" * 5000)
            await bus.publish_many("t", [b"x" * 1000 for _ in range(300)])
            key = f"{{{space}}}:s:t"

            async def pending() -> int:
                return int((await client.xpending(key, "g"))["pending"])

            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while await pending() or await client.xlen(key) > 50:
                assert asyncio.get_running_loop().time() < deadline, "what is too old is removed"
                await asyncio.sleep(0.05)
            assert adapter_of(bus).connects == 1
        assert "could not be removed" not in caplog.text

    with caplog.at_level(logging.ERROR, "trunkline"):
        asyncio.run(test())
